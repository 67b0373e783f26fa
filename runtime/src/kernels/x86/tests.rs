//! Every kernel that this processor has, against the contract. Without feature `std` they are those of
//! the target.

use model_format::AlignedBytes;
use model_format::layout::{Layout, Packing};

use super::*;
use crate::kernels::{Block, suite};

/// Forcing is for all threads, so that one test does it all.
#[test]
#[cfg(feature = "std")]
fn kernels_of_every_set_of_instructions_equal_sums_in_64_bits() {
    for isa in Isa::ALL.into_iter().filter(|&isa| force(isa)) {
        assert_eq!(choice::chosen(), isa);
        let comparisons = suite::run().unwrap_or_else(|error| panic!("{isa:?}: {error:?}"));
        assert!(comparisons > 100_000);
    }
    assert!(Isa::ALL.into_iter().rev().any(force));
}

/// Weights and inputs of `cols` columns, all of them a fixed mixture.
fn mixture(cols: usize, tokens: usize) -> (std::vec::Vec<i8>, std::vec::Vec<i16>) {
    let weight = |i: usize| ((i * 37 + i / 251) % 255) as i32 - 127;
    let weights = (0..ROWS * cols).map(|i| weight(i) as i8).collect();
    (weights, (0..tokens * cols).map(|i| (i * 28_657) as i16).collect())
}

#[test]
fn rows_longer_than_a_panel_equal_the_reference() {
    for layout in [Layout::RowMajor, Layout::PairedRows, Layout::QuadRows] {
        for (cols, tokens) in [509, 516, 1026, 2048].into_iter().flat_map(|c| [(c, 1), (c, 21)]) {
            let (weights, x) = mixture(cols, tokens);
            let blob = LinearInt::pack(layout, &weights, &[77; ROWS], &[1 << 20; ROWS]);
            let blob = AlignedBytes::from(&blob[..]);
            let linear = linear(layout, cols, &blob);
            let mut scratch = std::vec![0_u32; scratch_len(tokens, cols).div_ceil(4)];
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
                let scratch = bytemuck::cast_slice_mut(&mut scratch);
                let ready = ready_for(isa, &x, [tokens, cols], scratch);
                let input = Input { x: &x, tokens, cols, ready };
                let (mut ours, mut truth): (Block, Block) = Default::default();
                block(&linear, 0, &input, &mut ours);
                reference::block(&linear, 0, &input, &mut truth);
                assert_eq!(ours, truth, "{isa:?} {layout:?} {cols} columns, {tokens} tokens");
            }
        }
    }
}

fn linear(layout: Layout, cols: usize, blob: &[u8]) -> LinearInt<'_> {
    let packing = Packing::of(layout);
    let constants = if packing == Packing::RowMajor { blob.len() - ROWS * 8 } else { blob.len() };
    let (weights, constants) = blob.split_at(constants);
    let (bias, multipliers) = constants.split_at(constants.len() / 2);
    LinearInt {
        packing,
        rows: ROWS,
        cols,
        data: bytemuck::cast_slice(weights),
        bias: bytemuck::cast_slice(bias),
        multipliers: bytemuck::cast_slice(multipliers),
    }
}

#[test]
fn a_matrix_shorter_than_its_sizes_is_left_to_the_reference() {
    let blob = LinearInt::pack(Layout::PairedRows, &[1; 256], &[0; 16], &[1; 16]);
    let blob = AlignedBytes::from(&blob[..]);
    let whole = linear(Layout::PairedRows, 16, &blob);
    let x = [1; 17];
    let mut scratch = [0_u32; scratch_len(1, 17).div_ceil(4)];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        let ready = ready_for(isa, &x, [1, 16], bytemuck::cast_slice_mut(&mut scratch));
        let input = Input { x: &x, tokens: 1, cols: 16, ready };
        let mut out = [0; 20];
        let is_vector = isa != Isa::Baseline;
        assert_eq!(try_project(&whole, &input, [0, 9], &mut out), is_vector);
        assert!(!try_project(&LinearInt { rows: 17, ..whole }, &input, [0, 9], &mut out));
        let wider = Input { cols: 17, ..input };
        assert!(!try_project(&LinearInt { cols: 17, ..whole }, &wider, [0, 9], &mut out));
    }
}
