//! The arena is what a run really needs: close to the least that any layout of its tensors can do with,
//! and written to its end.

mod trace;

use kiloformer_tests::for_precision;
use kiloformer_tests::precision::BOTH;
use kiloformer_tests::random_model::{like_g2p, of_family, random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::{
    Family, ModelConfig, NormPlace, Positions, Precision as Stored, StackConfig,
};
use model_format::header::Header;
use runtime::{
    FixedPoint, GenerateOptions, HalfFloat, Limits, Precision, Session, StopReason, TokenId,
    TypedModel, arena_len, arena_len_with, kernels,
};
use trace::{Machine, Trace, of_run};

/// What this build computes with.
fn machine(precision: Stored) -> Machine {
    match precision {
        Stored::FixedPoint => Machine {
            activation: 2,
            cached: 1,
            score: 4,
            probability: 2,
            tokens: FixedPoint::TOKENS,
            workspace: kernels::scratch_len,
        },
        Stored::HalfFloat => Machine {
            activation: 4,
            cached: 4,
            score: 4,
            probability: 4,
            tokens: HalfFloat::TOKENS,
            workspace: |_, _| 0,
        },
    }
}

/// The least memory of the longest run that `limits` allow.
fn bound(config: &ModelConfig, precision: Stored, limits: Limits) -> usize {
    let (source, target) = (limits.source_len.into(), limits.target_len.into());
    of_run(config, machine(precision), source, target).peak()
}

/// Bytes above the bound where 5% of it are less: a plan has one place for whatever a buffer holds over
/// a run, rounded up to four bytes, of which a decoder has seven.
const SLACK: usize = 7 * 3;

/// Whether an arena of `len` bytes is as small as asked for.
fn is_tight(len: usize, bound: usize) -> bool {
    len <= bound + (bound / 20).max(SLACK)
}

fn shapes() -> Vec<ModelConfig> {
    let stack = |n_layers, n_heads, d_ff| StackConfig { n_layers, n_heads, d_ff };
    let small = ModelConfig {
        d_model: 64,
        encoder: stack(2, 4, 256),
        decoder: stack(2, 4, 256),
        max_source_len: 40,
        max_target_len: 48,
        ..like_g2p()
    };
    let odd = ModelConfig {
        d_model: 54,
        encoder: stack(1, 3, 75),
        decoder: stack(3, 2, 101),
        max_source_len: 37,
        max_target_len: 21,
        positions: Positions::SinusoidalHalves,
        ..like_g2p()
    };
    let long = ModelConfig { positions: Positions::Learned, max_source_len: 70, ..small };
    vec![like_g2p(), small, odd, long, tiny()]
}

/// All families in all shapes, with both places of LayerNorm.
fn models() -> Vec<ModelConfig> {
    let families =
        [Family::EncoderDecoder, Family::DecoderOnly, Family::Tagger, Family::Classifier];
    let mut models = Vec::new();
    for shape in shapes() {
        for family in families {
            let place = |norm| ModelConfig { norm, ..of_family(family, &shape) };
            models.extend([NormPlace::Pre, NormPlace::Post].map(place));
        }
    }
    models
}

/// Calls `test` with every model, integer and half-float, and with those that ship.
fn for_each_model(test: impl Fn(Stored, &AlignedBytes, &ModelConfig)) {
    for (seed, config) in models().iter().enumerate() {
        for precision in BOTH {
            test(precision, &random_model(precision, config, seed as u64), config);
        }
    }
    for name in ["g2p-en.kfm", "g2p-en-f16.kfm"] {
        let path = format!("{}/../models/{name}", env!("CARGO_MANIFEST_DIR"));
        let file = AlignedBytes::from(&std::fs::read(path).expect("a model that ships")[..]);
        let header = Header::read(&file).expect("a sound model");
        test(header.precision, &file, &header.config);
    }
}

#[test]
fn the_arena_is_within_5_percent_of_what_lives_at_once() {
    for_each_model(|precision, file, config| {
        let limits = Limits::of(config);
        let (len, bound) = (arena_len(file), bound(config, precision, limits));
        let (family, norm, d_model) = (config.family, config.norm, config.d_model);
        let ratio = len as f64 / bound as f64;
        println!("{len:>7} / {bound:>7} = {ratio:.4} {family:?} {norm:?} {precision:?} {d_model}");
        assert!(len >= bound, "no layout is that small: {len}, {bound}: {config:?}");
        assert!(is_tight(len, bound), "{len}, {bound}: {config:?}");
    });
}

/// Ids that fill the source and, before a choice is left to the model, the target.
fn longest_ids(config: &ModelConfig) -> [Vec<TokenId>; 2] {
    let ids = |len: u16, vocab: u16| -> Vec<TokenId> {
        (0..len).map(|i| 4 + i * 7 % (vocab - 4)).collect()
    };
    let target = ids(config.max_target_len.saturating_sub(1), config.target_vocab);
    match config.family {
        Family::DecoderOnly => [target, Vec::new()],
        Family::EncoderDecoder => [ids(config.max_source_len, config.source_vocab), target],
        Family::Tagger | Family::Classifier => {
            [ids(config.max_source_len, config.source_vocab), Vec::new()]
        }
    }
}

/// Which bytes of an arena of `len` bytes the longest run writes. Filled with two patterns, so that none
/// is missed that is written as it was.
fn painted<P: Precision>(file: &AlignedBytes, config: &ModelConfig, len: usize) -> Vec<bool> {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let [source, prefix] = longest_ids(config);
    let mut touched = vec![false; len];
    for pattern in [0xA5, 0x5A] {
        let mut memory = AlignedBytes::filled(pattern, len);
        let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
        let options = GenerateOptions { max_len: None, prefix: &prefix };
        let mut generation = session.generate(&source, &options).expect("ids that fit");
        while generation.next().is_some() {}
        assert!(generation.stop_reason().is_some_and(|stop| stop != StopReason::Cancelled));
        for (touched, &byte) in touched.iter_mut().zip(memory.iter()) {
            *touched |= byte != pattern;
        }
    }
    touched
}

/// At most this much of the last buffer is as it was: its padding, or room to start on a cache line
/// where it is what kernels work with.
const END: usize = 64;

fn is_written_to_its_end<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let len = arena_len(file);
    // More room behind shows what is written there.
    let room = 4096;
    let touched = painted::<P>(file, config, len + room);
    let peak = touched.iter().rposition(|&touched| touched).map_or(0, |last| last + 1);
    let count = touched.iter().filter(|&&touched| touched).count();
    println!("{len:>7}: {count:>7} bytes written, the last at {peak:>7}");
    assert!(peak <= len, "written past the arena: {peak} of {len}: {config:?}");
    assert!(len - peak <= END, "the end is never written: {peak} of {len}: {config:?}");
    let bound = bound(config, P::STORED, Limits::of(config));
    assert!(is_tight(peak, bound), "{peak}, {bound}: {config:?}");
}

#[test]
fn a_run_writes_the_arena_to_its_end() {
    for_each_model(|precision, file, config| {
        for_precision!(precision, is_written_to_its_end(file, config));
    });
}

#[test]
fn shorter_sequences_need_less() {
    for_each_model(|precision, file, config| {
        let all = Limits::of(config);
        let less = Limits {
            source_len: all.source_len.saturating_sub(3),
            target_len: all.target_len.saturating_sub(3),
            beams: 0,
        };
        let (small, large) = (bound(config, precision, less), bound(config, precision, all));
        let len = arena_len_with(file, less).expect("a sound model");
        assert!(small < large && small <= len, "{len}, {small}, {large}: {config:?}");
        assert!(len < large, "it would not do for the longest: {len}, {large}: {config:?}");
    });
}

/// Worked out by hand for one token a product and kernels without working memory: 32 rows of 80 of the
/// stream, queries (16 bits), keys and values (8 bits), and the last row's norm (16 bits).
#[test]
fn the_bound_of_a_known_model() {
    let alone = Machine { tokens: 1, workspace: |_, _| 0, ..machine(Stored::FixedPoint) };
    let peak = |config, source, target| of_run(&config, alone, source, target).peak();
    let encoder = 32 * 80 * (2 + 2 + 1 + 1);
    assert_eq!(peak(like_g2p(), 32, 32), encoder + 80 * 2);
    // Without that norm: all but a query of 20, with 32 scores (32 bits) and probabilities (16 bits).
    let post = ModelConfig { norm: NormPlace::Post, ..like_g2p() };
    assert_eq!(peak(post, 32, 32), encoder - 20 * 2 + 32 * (4 + 2));
    // The last step but one, for what the last has is dead after it: keys and values of 31 positions,
    // the rotation, the stream, its norm and 160 that are hidden.
    let decoder = of_family(Family::DecoderOnly, &like_g2p());
    assert_eq!(peak(decoder, 0, 32), 31 * 80 * 2 + 40 * 8 + 80 * 2 + (80 + 160) * 2);
}

#[test]
fn waste_does_not_pass() {
    let config = like_g2p();
    let bound = bound(&config, Stored::FixedPoint, Limits::of(&config));
    assert!(is_tight(bound * 104 / 100, bound) && !is_tight(bound * 106 / 100, bound));
    // A buffer for the contexts of all positions beside the queries.
    let wasteful = bound + 32 * 80 * 2;
    assert!(!is_tight(wasteful, bound));
}

#[test]
fn a_tensor_lives_from_its_first_use_to_its_last() {
    let mut trace = Trace::default();
    let [a, b, c, unused] = [100, 10, 1, 1000].map(|bytes| trace.tensor(bytes));
    trace.operator(&[&[a]]);
    trace.operator(&[&[a, b]]);
    trace.operator(&[&[b], &[c]]);
    assert_eq!(trace.peak(), 110);
    trace.operator(&[&[a]]);
    assert_eq!(trace.peak(), 111);
    trace.operator(&[&[unused]]);
    assert_eq!(trace.peak(), 1000);
}
