//! Faults of the three public tutorials that the project began with (A, the full implementation; B, the
//! teaching version; C, the architecture article): each test states what is right instead.
//! `docs/reference-faults.md` lists them.
//!
//! ```text
//! reference_a, reference_b, reference_c   the tests, by document
//!   beams                                   beam search, defined and kept
//!   networks                                small networks, their files and what they answer
//!   naive                                   the definition in nested loops: the judge
//! ```

mod beams;
mod naive;
mod networks;
mod reference_a;
mod reference_b;
mod reference_c;
