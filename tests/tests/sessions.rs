//! Every kind of model, in exactly the memory that its plan asks for.

use kiloformer_tests::answer::{Answer, answer, run};
use kiloformer_tests::random_model::{Random, like_g2p, random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::{
    ModelConfig, NormPlace, Output, Positions, Precision as Stored, StackConfig,
};
use runtime::{
    ArenaTooSmall, FixedPoint, GenerateOptions, HalfFloat, Limits, LogitsHash, Precision, RunError,
    Session, StopReason, TypedModel, arena_len, arena_len_with,
};

/// Sizes that no loop divides evenly; the first needs learned positions.
fn shapes() -> Vec<ModelConfig> {
    let stack = |n_layers, n_heads, d_ff| StackConfig { n_layers, n_heads, d_ff };
    let shape = |d_model, encoder, decoder, max_source_len, max_target_len| ModelConfig {
        d_model,
        encoder,
        decoder,
        max_source_len,
        max_target_len,
        ..tiny()
    };
    vec![
        shape(15, stack(1, 5, 1), stack(2, 3, 13), 12, 12),
        shape(18, stack(2, 2, 33), stack(1, 3, 19), 9, 7),
        shape(22, stack(1, 22, 7), stack(3, 1, 41), 5, 12),
        shape(2, stack(1, 1, 70), stack(1, 2, 1), 3, 1),
        shape(4, stack(3, 2, 2), stack(2, 4, 3), 2, 3),
    ]
}

/// Every choice of the configuration in every shape.
fn grid() -> Vec<ModelConfig> {
    use Positions::{Learned, SinusoidalHalves, SinusoidalInterleaved};
    let mut grid = Vec::new();
    for shape in shapes() {
        for positions in [Learned, SinusoidalHalves, SinusoidalInterleaved] {
            for output in [Output::Tied, Output::TiedBias, Output::Untied, Output::UntiedBias] {
                for norm in [NormPlace::Pre, NormPlace::Post] {
                    for final_norm in [false, true] {
                        grid.push(ModelConfig { positions, output, norm, final_norm, ..shape });
                    }
                }
            }
        }
    }
    grid.retain(|config| config.fault().is_none());
    grid
}

/// Calls `test` with every model of the grid, integer and half-float.
fn for_each_model(test: impl Fn(Stored, &AlignedBytes, &ModelConfig)) {
    let grid = grid();
    assert!(grid.len() >= 200, "{}", grid.len());
    for (seed, config) in grid.iter().enumerate() {
        for precision in [Stored::FixedPoint, Stored::HalfFloat] {
            test(precision, &random_model(precision, config, seed as u64), config);
        }
    }
}

/// Memory on a multiple of 16, filled with `byte`.
fn arena(len: usize, byte: u8) -> AlignedBytes {
    AlignedBytes::from(&vec![byte; len][..])
}

/// Words of several lengths up to the limit.
fn words(config: &ModelConfig) -> Vec<&'static str> {
    const LETTERS: &str = "quickbrownfoxjumpedoverthelazydogs";
    let longest = usize::from(config.max_source_len) - 1;
    let mut lengths = vec![1, 2, longest / 2, longest - 1, longest];
    lengths.retain(|len| (1..=longest).contains(len));
    lengths.into_iter().map(|len| &LETTERS[..len]).collect()
}

fn answers<P: Precision>(
    model: &TypedModel<'_, P>,
    arena: &mut [u8],
    words: &[&str],
) -> Vec<Answer> {
    let mut session = Session::new(model, arena).expect("an arena that is large enough");
    words.iter().map(|word| run(&mut session, word)).collect()
}

fn runs_in_its_exact_arena<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let needed = arena_len(file);
    assert_eq!(model.plan().total, needed);
    let words = words(config);

    // The arena's first content must not matter.
    let zeros = answers(&model, &mut arena(needed, 0), &words);
    for garbage in [0xFF, 0x7F, 0xA5] {
        assert_eq!(answers(&model, &mut arena(needed, garbage), &words), zeros, "{config:?}");
    }
    for Answer { text, stop, .. } in &zeros {
        assert!(text.is_ok() && stop.is_some(), "{text:?} {stop:?}");
    }

    let mut short = arena(needed, 0);
    let error = Session::new(&model, &mut short[..needed - 1]).err();
    assert_eq!(error, Some(ArenaTooSmall { needed, given: needed - 1 }));

    // A slice that starts anywhere needs the bytes up to the next multiple of 16 too.
    for start in [1, 7, 15] {
        let skip = 16 - start;
        let mut memory = arena(16 + needed, 0xA5);
        assert_eq!(answers(&model, &mut memory[start..], &words), zeros);
        let error = Session::new(&model, &mut memory[start..15 + needed]).err();
        let expected = ArenaTooSmall { needed: needed + skip, given: needed + skip - 1 };
        assert_eq!(error, Some(expected));
    }
}

#[test]
fn every_model_runs_in_its_exact_arena() {
    for_each_model(|precision, file, config| match precision {
        Stored::FixedPoint => runs_in_its_exact_arena::<FixedPoint>(file, config),
        Stored::HalfFloat => runs_in_its_exact_arena::<HalfFloat>(file, config),
    });
}

fn forgets_what_was_before<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let words = words(config);
    let first: Vec<Answer> = words.iter().map(|word| run(&mut session, word)).collect();
    let too_long = "a".repeat(config.max_source_len.into());
    for (word, first) in words.iter().zip(&first).rev() {
        for wrong in ["", "a1", &too_long] {
            assert!(run(&mut session, wrong).text.is_err());
            assert_eq!(&run(&mut session, word), first);
        }
        let full = Err(RunError::BufferFull { capacity: 0 });
        if first.text != Ok(String::new()) {
            assert_eq!(session.run_into(word, &mut []), full);
        }
        assert_eq!(&run(&mut session, word), first);
        assert_eq!(run(&mut session, &word.to_uppercase()).hash, first.hash, "case is folded");
    }
}

#[test]
fn a_session_forgets_what_was_before() {
    for_each_model(|precision, file, config| match precision {
        Stored::FixedPoint => forgets_what_was_before::<FixedPoint>(file, config),
        Stored::HalfFloat => forgets_what_was_before::<HalfFloat>(file, config),
    });
}

fn small_limits_change_only_lengths<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let at_most = |limit: u16, most: u16| limit.min(most);
    let limits = Limits {
        source_len: at_most(3, config.max_source_len),
        target_len: at_most(2, config.max_target_len),
        beams: 0,
    };
    let needed = arena_len_with(file, limits).expect("a sound model");
    assert!(needed <= arena_len(file));
    let mut small = arena(needed, 0xA5);
    let error = Session::with_limits(&model, &mut small[..needed - 1], limits).err();
    assert_eq!(error, Some(ArenaTooSmall { needed, given: needed - 1 }));
    let mut large = arena(arena_len(file), 0xA5);
    let mut small = Session::with_limits(&model, &mut small, limits).expect("enough");
    let mut large = Session::new(&model, &mut large).expect("enough");
    assert_eq!((small.limits(), small.arena_len()), (limits, needed));

    let options = GenerateOptions { max_len: Some(limits.target_len), ..Default::default() };
    let mut ids: Vec<u16> = vec![4, 17, 2];
    ids.drain(..3 - usize::from(limits.source_len));
    let mut expected = large.generate(&ids, &options).expect("ids of the vocabulary");
    let mut hashes = [LogitsHash::default(); 2];
    let mut generation = small.generate(&ids, &GenerateOptions::default()).expect("the same");
    loop {
        let id = generation.next_observed(|_, logit| hashes[0].push(logit));
        assert_eq!(id, expected.next_observed(|_, logit| hashes[1].push(logit)));
        assert_eq!(generation.stop_reason(), expected.stop_reason());
        if id.is_none() {
            break;
        }
    }
    assert_eq!(hashes[0], hashes[1]);
    let too_long = [4; 4];
    assert!(small.generate(&too_long[..usize::from(limits.source_len) + 1], &options).is_err());
}

#[test]
fn small_limits_change_nothing_but_lengths() {
    for_each_model(|precision, file, config| match precision {
        Stored::FixedPoint => small_limits_change_only_lengths::<FixedPoint>(file, config),
        Stored::HalfFloat => small_limits_change_only_lengths::<HalfFloat>(file, config),
    });
}

/// Random words of 2 to 12 letters.
fn random_words(count: usize) -> Vec<String> {
    let mut random = Random(count as u64);
    let mut letter = || char::from(b'a' + (random.bits() % 26) as u8);
    (0..count).map(|i| (0..2 + i % 11).map(|_| letter()).collect()).collect()
}

/// Tests that compare answers prove something only where answers differ.
fn answers_depend_on_the_word<P: Precision>(file: &AlignedBytes) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let words = random_words(100);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answers = answers(&model, &mut memory, &words);
    let distinct = |key: &dyn Fn(&Answer) -> String| {
        answers.iter().map(key).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(distinct(&|a| a.hash.to_string()), words.len());
    let texts = distinct(&|a| a.text.clone().expect("an answer"));
    let ended = answers.iter().filter(|a| a.stop == Some(StopReason::EndToken)).count();
    println!("{texts} distinct texts, {ended} ended");
    assert!(texts > 25 && (3..=97).contains(&ended), "{texts} distinct, {ended} ended");
}

#[test]
fn answers_of_random_models_depend_on_the_word() {
    for config in [like_g2p(), tiny()] {
        let file = |precision| random_model(precision, &config, 1);
        answers_depend_on_the_word::<FixedPoint>(&file(Stored::FixedPoint));
        answers_depend_on_the_word::<HalfFloat>(&file(Stored::HalfFloat));
    }
}

#[test]
fn the_tiny_model_fits_a_microbit() {
    let file = random_model(Stored::FixedPoint, &tiny(), 1);
    assert!(arena_len(&file) < 8 * 1024 && file.len() < 64 * 1024);
}

fn hash_of_all_answers<P: Precision>(file: &AlignedBytes) -> u64 {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let mut hash = LogitsHash::default();
    for word in random_words(100) {
        answer(&mut session, &word, &mut hash).expect("an answer");
    }
    hash.value()
}

/// The bits of version 1. Files in the field rely on them: a change here is a change of the format.
#[test]
fn logits_have_the_bits_they_always_had() {
    for (config, fixed, half) in [
        (like_g2p(), 0x88f7_4a1b_5199_3b56, 0x3def_75af_f210_7f11),
        (
            ModelConfig { norm: NormPlace::Post, positions: Positions::Learned, ..tiny() },
            0x3330_6a19_76fc_a03f,
            0x7ca5_e08a_c310_3148,
        ),
    ] {
        let file = |precision| random_model(precision, &config, 1);
        let hashes = [
            hash_of_all_answers::<FixedPoint>(&file(Stored::FixedPoint)),
            hash_of_all_answers::<HalfFloat>(&file(Stored::HalfFloat)),
        ];
        assert_eq!(hashes, [fixed, half], "{hashes:016x?}");
    }
}
