//! Checkpoints from PyTorch: from a `.pt` or `.safetensors` file to a trained model.
//!
//! ```text
//! config       sizes and choices, from our JSON or Hugging Face's of Marian
//! vocabulary   symbols by id, from JSON
//! names        which tensor of the checkpoint is which of ours
//! state_dict   the tensors of a checkpoint, by their foreign names
//!   torch        PyTorch's zip archives
//!     pickle       the part of Python's pickle language that they use; never calls anything
//! ```

pub mod names;
pub mod pickle;
pub mod state_dict;
pub mod torch;
