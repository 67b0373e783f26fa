//! Every kernel that this processor has, against the contract. Without feature `std` they are those of
//! the target.

use model_format::AlignedBytes;
use model_format::layout::{Layout, Packing, pack_nibbles};
use model_format::numeric::rescale;

use super::*;
use crate::kernels::{Block, vectors as portable};
use crate::precision::{HeadCache, Rows};

/// Forcing is for all threads, so that one test does it all.
#[test]
#[cfg(feature = "std")]
fn kernels_of_every_set_of_instructions_equal_sums_in_64_bits() {
    for isa in Isa::ALL.into_iter().filter(|&isa| force(isa)) {
        assert_eq!(choice::chosen(), isa);
        let comparisons =
            crate::kernels::suite::run().unwrap_or_else(|error| panic!("{isa:?}: {error:?}"));
        assert!(comparisons > 100_000);
        attention_agrees(isa);
        heads_agree(isa);
    }
    assert!(Isa::ALL.into_iter().rev().any(force));
}

/// The suite has a test of its own then.
#[test]
#[cfg(not(feature = "std"))]
fn attention_of_the_target_agrees() {
    attention_agrees(choice::chosen());
    heads_agree(choice::chosen());
}

/// More rows and columns than the suite tries: more than one register of either.
fn attention_agrees(isa: Isa) {
    const STRIDE: usize = 140;
    let (rows, x) = mixture(9 * STRIDE, 1);
    for (len, cols) in (1..70).flat_map(|len| [1, 15, 16, 17, 32, 33, 64, 131].map(|c| (len, c))) {
        let end = (len - 1) * STRIDE + cols;
        let cache = Rows { data: &rows[..end], stride: STRIDE, rows: len, cols };
        let (mut ours, mut truth) = (std::vec![0; len], std::vec![0; len]);
        scores(cache, &x[..cols], &mut ours);
        portable::scores(cache, &x[..cols], &mut truth);
        assert_eq!(ours, truth, "{isa:?}: {len} scores of {cols} columns");

        let (mut powers, mut expected) = (std::vec![0; len], std::vec![0; len]);
        let sum = exp2_all(&ours, 1 << 22, &mut powers);
        assert_eq!(sum, portable::exp2_all(&ours, 1 << 22, &mut expected), "{isa:?}: {len} powers");
        assert_eq!(powers, expected, "{isa:?}: {len} powers");

        let (mut ours, mut truth) = (std::vec![0; cols], std::vec![0; cols]);
        let (bounds, multiplier) = ([-9000, 9000], 3 << 19);
        if try_context(cache, &powers, multiplier, bounds, &mut ours) {
            let clamp = |value: i32| value.clamp(-9000, 9000) as i16;
            portable::context(cache, &powers, multiplier, clamp, &mut truth);
            assert_eq!(ours, truth, "{isa:?}: context of {len} rows, {cols} columns");
        }
        assert_eq!(moments(&x[..cols]), portable::moments(&x[..cols]));
    }
}

/// All heads in one go, and one after the other.
fn heads_agree(isa: Isa) {
    const BOUNDS: [i32; 2] = [-9000, 9000];
    let lens = (1..=18).chain([31, 32, 33, 64, 511, 512]);
    let mut done = 0;
    for (len, shape) in lens.flat_map(|len| SHAPES.map(|shape| (len, shape))) {
        let [n_heads, d_k] = shape;
        let d_model = n_heads * d_k;
        let stride = d_model + 5;
        let data: std::vec::Vec<i8> = (0..2 * len * stride)
            .map(|i| ((i * i / 7 + i) % 255) as i32 - 127)
            .map(|w| w as i8)
            .collect();
        let (keys, values) = data.split_at(len * stride);
        let rows = |data| Rows { data, stride, rows: len, cols: d_model };
        let cache = HeadCache { keys: rows(keys), values: rows(values) };
        let heads: std::vec::Vec<[i32; 2]> =
            (0..n_heads as i32).map(|h| [(h + 1) << 18, (h + 3) << 20]).collect();
        let x: std::vec::Vec<i16> =
            (0..d_model).map(|i| ((i * 28_657 + len) % 65_000) as i16).collect();
        let queries: std::vec::Vec<i16> = x.iter().map(|&x| x.min(0x7F7F)).collect();
        let mut ours = queries.clone();
        if !try_attend(cache, (&heads, d_k), BOUNDS, &mut ours) {
            assert_eq!(ours, queries);
            continue;
        }
        done += 1;
        let mut truth = queries.clone();
        for (head, (x, multipliers)) in truth.chunks_mut(d_k).zip(&heads).enumerate() {
            let rows = |data| Rows { data, stride, rows: len, cols: d_k };
            let [keys, values] = [keys, values].map(|data| rows(&data[head * d_k..]));
            attend_portably(keys, values, *multipliers, x);
        }
        assert_eq!(ours, truth, "{isa:?}: {len} positions, {shape:?}");
        // 0x7F80 has no high byte.
        let mut large = queries.clone();
        large[d_model - 1] = 0x7F80;
        let before = large.clone();
        assert!(!try_attend(cache, (&heads, d_k), BOUNDS, &mut large));
        assert_eq!(large, before);
    }
    assert_eq!(done > 0, isa == Isa::Avx512Vnni);

    fn attend_portably(
        keys: Rows<'_, i8>,
        values: Rows<'_, i8>,
        [scale, context]: [i32; 2],
        x: &mut [i16],
    ) {
        let (mut scores, mut powers) = (std::vec![0; keys.rows], std::vec![0; keys.rows]);
        portable::scores(keys, x, &mut scores);
        let sum = portable::exp2_all(&scores, scale, &mut powers);
        let multiplier = crate::fixed::softmax::context_multiplier(context, sum);
        let clamp = |value: i32| value.clamp(BOUNDS[0], BOUNDS[1]) as i16;
        portable::context(values, &powers, multiplier, clamp, x);
    }
}

/// Heads and their columns: those that share registers, whole or not, and some that do not.
const SHAPES: [[usize; 2]; 9] =
    [[1, 16], [4, 16], [5, 16], [8, 16], [1, 32], [3, 32], [2, 64], [3, 8], [2, 128]];

/// Weights and inputs of `cols` columns, all of them a fixed mixture.
fn mixture(cols: usize, tokens: usize) -> (std::vec::Vec<i8>, std::vec::Vec<i16>) {
    let weight = |i: usize| ((i * 37 + i / 251) % 255) as i32 - 127;
    let weights = (0..ROWS * cols).map(|i| weight(i) as i8).collect();
    (weights, (0..tokens * cols).map(|i| (i * 28_657) as i16).collect())
}

/// A matrix, and what it lies in.
fn packed(packing: Packing, rows: usize, cols: usize) -> AlignedBytes {
    let weights: std::vec::Vec<i8> =
        mixture(cols, 1).0.into_iter().cycle().take(rows * cols).collect();
    let bias: std::vec::Vec<i32> = (0..rows as i32).map(|row| 77 * row - 1000).collect();
    let multipliers: std::vec::Vec<i32> = (0..rows as i32).map(|row| (1 + row % 9) << 18).collect();
    let blob = match packing {
        Packing::Nibbles => {
            let weights: std::vec::Vec<i8> = weights.iter().map(|w| w % 8).collect();
            let factors = (0..rows * cols.div_ceil(16)).map(|i| (1 + i % 15) as u8);
            let factors: std::vec::Vec<u8> = factors.collect();
            pack_nibbles(&weights, &factors, &bias, &multipliers)
        }
        Packing::RowMajor => LinearInt::pack(Layout::RowMajor, &weights, &bias, &multipliers),
        Packing::PairedRows => LinearInt::pack(Layout::PairedRows, &weights, &bias, &multipliers),
        Packing::QuadRows => LinearInt::pack(Layout::QuadRows, &weights, &bias, &multipliers),
    };
    AlignedBytes::from(&blob[..])
}

const PACKINGS: [Packing; 4] =
    [Packing::RowMajor, Packing::PairedRows, Packing::QuadRows, Packing::Nibbles];

#[test]
fn rows_longer_than_a_panel_equal_the_reference() {
    let shapes = [509, 516, 1026, 2048, 4096, 4100];
    for (packing, cols) in PACKINGS.into_iter().flat_map(|p| shapes.map(|cols| (p, cols))) {
        let blob = packed(packing, ROWS, cols);
        let linear = linear(packing, [ROWS, cols], &blob);
        for (tokens, most) in [(1, i16::MAX), (1, 0x7F7F), (21, i16::MAX)] {
            let (_, mut x) = mixture(cols, tokens);
            x.iter_mut().for_each(|x| *x = (*x).min(most));
            let mut scratch = std::vec![0_u32; scratch_len(tokens, cols).div_ceil(4)];
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
                let scratch = bytemuck::cast_slice_mut(&mut scratch);
                let ready = ready_for(isa, &x, [tokens, cols], scratch);
                assert!(!ready.is_cut || most < i16::MAX);
                let input = Input { x: &x, tokens, cols, ready };
                let (mut ours, mut truth): (Block, Block) = Default::default();
                block(&linear, 0, &input, &mut ours);
                reference::block(&linear, 0, &input, &mut truth);
                assert_eq!(ours, truth, "{isa:?} {packing:?} {cols} columns, {tokens} tokens");
            }
        }
    }
}

#[test]
fn rows_of_a_table_are_its_weights() {
    if !Isa::Avx512Vnni.is_here() {
        return;
    }
    for (packing, cols) in PACKINGS.into_iter().flat_map(|p| [16, 17, 64, 80].map(|c| (p, c))) {
        let rows = 11;
        let blob = packed(packing, rows, cols);
        let linear = linear(packing, [rows, cols], &blob);
        for (row, column) in (0..=rows).flat_map(|r| (0..cols).step_by(16).map(move |c| (r, c))) {
            let mut sums: [i32; 16] = core::array::from_fn(|i| 1000 * i as i32);
            let (before, mut weights) = (sums, [0_i8; 16]);
            linear.copy_weights(row, column, &mut weights);
            // SAFETY: it is here.
            if !unsafe { row_avx512::add(&linear, [row, column], 3 << 20, &mut sums) } {
                assert!(sums == before && (packing == Packing::RowMajor || cols == 17));
                continue;
            }
            let truth = |i: usize| before[i] + rescale(i32::from(weights[i]) << 24, 3 << 20);
            let count = (cols - column).min(16);
            assert!((0..count).all(|i| sums[i] == truth(i)), "{packing:?} {cols} {row} {column}");
        }
    }
}

fn linear(packing: Packing, [rows, cols]: [usize; 2], blob: &[u8]) -> LinearInt<'_> {
    let constants = if packing == Packing::RowMajor { blob.len() - rows * 8 } else { blob.len() };
    let (weights, constants) = blob.split_at(constants);
    let (bias, multipliers) = constants.split_at(constants.len() / 2);
    LinearInt {
        packing,
        rows,
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
    let whole = linear(Packing::PairedRows, [ROWS, 16], &blob);
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
