//! Inference.
#![no_std]
