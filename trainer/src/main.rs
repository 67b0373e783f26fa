//! Trainer.
fn main() {}
