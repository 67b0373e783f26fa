//! Language models, taggers, classifiers, and what an encoder-decoder may share or leave out.

use std::collections::BTreeSet;

use kiloformer_tests::answer::{Answer, run};
use kiloformer_tests::for_precision;
use kiloformer_tests::precision::BOTH;
use kiloformer_tests::random_model::{SOURCE_VOCAB, of_family, random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, Precision as Stored,
    SourceFrame, SpecialIds, StackConfig,
};
use runtime::{
    EncodeError, FixedPoint, GenerateOptions, LogitsHash, Precision, RunError, Session, StopReason,
    TokenId, TypedModel, arena_len,
};

const FAMILIES: [Family; 4] =
    [Family::EncoderDecoder, Family::DecoderOnly, Family::Tagger, Family::Classifier];

/// Odd sizes, heads whose size is not a multiple of 4, one choice after the other.
fn shapes() -> Vec<ModelConfig> {
    use Activation::{Gelu, GeluTanh, Relu, Silu};
    use Positions::{Learned, SinusoidalHalves, SinusoidalInterleaved};
    let stack = |n_layers, n_heads, d_ff| StackConfig { n_layers, n_heads, d_ff };
    let sizes = [
        (15, stack(2, 5, 13), stack(1, 3, 21), 12, 9),
        (18, stack(1, 2, 33), stack(2, 3, 19), 9, 14),
        (22, stack(2, 11, 7), stack(3, 1, 41), 6, 12),
    ];
    let mut shapes = Vec::new();
    for (index, (d_model, encoder, decoder, max_source_len, max_target_len)) in
        sizes.into_iter().enumerate()
    {
        for (choice, activation) in [Relu, Gelu, GeluTanh, Silu].into_iter().enumerate() {
            let turn = index + choice;
            shapes.push(ModelConfig {
                d_model,
                encoder,
                decoder,
                max_source_len,
                max_target_len,
                activation,
                positions: match index {
                    0 => Learned,
                    1 => SinusoidalHalves,
                    _ => SinusoidalInterleaved,
                },
                norm: [NormPlace::Pre, NormPlace::Post][choice % 2],
                final_norm: turn % 3 != 0,
                output: [Output::Tied, Output::UntiedBias, Output::TiedBias, Output::Untied]
                    [turn % 4],
                scale_embedding: turn % 2 == 0,
                source_frame: [SourceFrame::End, SourceFrame::StartEnd, SourceFrame::Bare]
                    [turn % 3],
                ..tiny()
            });
        }
    }
    shapes
}

/// Every family in every shape, encoder-decoders with a shared embedding too.
fn models() -> Vec<ModelConfig> {
    let mut models = Vec::new();
    for shape in shapes() {
        models.extend(FAMILIES.map(|family| of_family(family, &shape)));
        let (shared_embedding, target_vocab) = (true, SOURCE_VOCAB);
        models.push(ModelConfig { shared_embedding, target_vocab, ..shape });
    }
    for config in &models {
        assert_eq!(config.fault(), None, "{config:?}");
    }
    models
}

fn for_each_model(test: impl Fn(Stored, &AlignedBytes, &ModelConfig)) {
    for (seed, config) in models().iter().enumerate() {
        for precision in BOTH {
            test(precision, &random_model(precision, config, seed as u64), config);
        }
    }
}

fn arena(len: usize, byte: u8) -> AlignedBytes {
    AlignedBytes::from(&vec![byte; len][..])
}

/// Texts of several lengths up to the limit.
fn texts(config: &ModelConfig) -> Vec<&'static str> {
    const LETTERS: &str = "quickbrownfox";
    let longest = match config.has_encoder() {
        true => usize::from(config.max_source_len - config.source_frame.len()),
        false => usize::from(config.max_target_len) - 1,
    };
    [1, 2, longest - 1, longest].map(|len| &LETTERS[..len]).into()
}

fn answers<P: Precision>(session: &mut Session<'_, '_, P>, texts: &[&str]) -> Vec<Answer> {
    texts.iter().map(|text| run(session, text)).collect()
}

fn same_in_any_memory<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let (needed, texts) = (arena_len(file), texts(config));
    let mut first = arena(needed, 0);
    let mut first = Session::new(&model, &mut first).expect("an arena of exact size");
    let expected = answers(&mut first, &texts);
    assert_eq!(answers(&mut first, &texts), expected, "again: {config:?}");
    let mut garbage = arena(needed, 0xA5);
    let mut garbage = Session::new(&model, &mut garbage).expect("an arena of exact size");
    assert_eq!(answers(&mut garbage, &texts), expected, "{config:?}");
    let hashes: BTreeSet<u64> = expected.iter().map(|answer| answer.hash).collect();
    assert_eq!(hashes.len(), texts.len(), "every text has logits of its own: {config:?}");
    assert!(expected.iter().all(|answer| answer.text.is_ok() && answer.stop.is_some()));
    let mut short = arena(needed - 1, 0);
    assert!(Session::new(&model, &mut short).is_err());
}

#[test]
fn every_family_gives_the_same_in_any_memory_of_exact_size() {
    for_each_model(|precision, file, config| {
        for_precision!(precision, same_in_any_memory(file, config));
    });
}

/// Ids as the model reads them for `text`: what the letters are, and the frame.
fn ids(config: &ModelConfig, text: &str) -> Vec<TokenId> {
    let letters = text.bytes().map(|letter| TokenId::from(letter - b'a') + 4);
    let frame = if config.has_encoder() { config.source_frame } else { SourceFrame::Bare };
    let start = frame.has_start().then_some(config.special.start);
    let end = frame.has_end().then_some(config.special.end);
    start.into_iter().chain(letters).chain(end).collect()
}

fn text_and_ids_agree<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    for text in texts(config) {
        let options = GenerateOptions::default();
        let from_ids: Vec<_> =
            session.generate(&ids(config, text), &options).expect("ids").collect();
        let from_text: Vec<_> = session.generate_text(text, &options).expect("a text").collect();
        assert_eq!(from_ids, from_text);
        let stop = session.last_stop();
        let count = from_text.len();
        match config.family {
            Family::Tagger => {
                assert_eq!((count, stop), (text.len(), Some(StopReason::AllLabelled)))
            }
            Family::Classifier => assert_eq!((count, stop), (1, Some(StopReason::AllLabelled))),
            Family::DecoderOnly if stop == Some(StopReason::LengthLimit) => {
                assert_eq!(text.len() + count, config.max_target_len.into());
            }
            Family::EncoderDecoder | Family::DecoderOnly => assert!(stop.is_some()),
        }
        let vocabulary = model.model().target_vocabulary();
        let symbols: Vec<&str> =
            from_text.iter().map(|id| vocabulary.text(*id)).filter(|s| !s.is_empty()).collect();
        let separator = if config.target_vocab == SOURCE_VOCAB { "" } else { " " };
        let mut buffer = [0; 256];
        assert_eq!(session.run_into(text, &mut buffer), Ok(&*symbols.join(separator)));
    }
}

#[test]
fn a_text_gives_what_its_ids_give() {
    for_each_model(|precision, file, config| {
        for_precision!(precision, text_and_ids_agree(file, config));
    });
}

/// The logits of the id after `forced`, in a fresh run over all of it.
fn logits_after<P: Precision>(
    session: &mut Session<'_, '_, P>,
    source: &[TokenId],
    forced: &[TokenId],
) -> u64 {
    let mut hash = LogitsHash::default();
    let has_encoder = !source.is_empty();
    let options = match has_encoder {
        true => GenerateOptions { prefix: forced, max_len: Some(1) },
        false => GenerateOptions { prefix: &[], max_len: Some(1) },
    };
    let ids = if has_encoder { source } else { forced };
    let mut generation = session.generate(ids, &options).expect("sound ids");
    generation.next_observed(|_, logit| hash.push(logit));
    hash.value()
}

fn cache_equals_reading_again<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let source = if config.has_encoder() { ids(config, "cab") } else { Vec::new() };
    let mut forced = if config.has_encoder() { Vec::new() } else { ids(config, "ab") };
    // Step by step, with the cache of the steps before.
    let mut steps = Vec::new();
    {
        let options = GenerateOptions::default();
        let ids = if config.has_encoder() { &source } else { &forced };
        let mut generation = session.generate(ids, &options).expect("sound ids");
        loop {
            let mut hash = LogitsHash::default();
            let id = generation.next_observed(|_, logit| hash.push(logit));
            if generation.stop_reason() != Some(StopReason::LengthLimit) {
                steps.push((hash.value(), id));
            }
            if id.is_none() {
                break;
            }
        }
    }
    assert!(!steps.is_empty());
    for (hash, id) in steps {
        assert_eq!(logits_after(&mut session, &source, &forced), hash, "{forced:?}, {config:?}");
        forced.extend(id);
    }
}

#[test]
fn a_step_with_its_cache_equals_reading_the_whole_prefix_again() {
    for_each_model(|precision, file, config| {
        if config.has_decoder() {
            for_precision!(precision, cache_equals_reading_again(file, config));
        }
    });
}

fn labels_have_the_largest_logits<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let options = GenerateOptions::default();
    let mut generation = session.generate_text("abc", &options).expect("a text");
    let mut labels = BTreeSet::new();
    loop {
        let mut logits = Vec::new();
        let Some(label) = generation.next_observed(|id, logit| logits.push((id, logit))) else {
            break;
        };
        assert!(logits.iter().map(|(id, _)| *id).eq(0..config.target_vocab));
        let best = logits.iter().fold(logits[0], |best, l| if l.1 > best.1 { *l } else { best });
        assert_eq!(best.0, label);
        labels.insert(label);
    }
    assert!(!labels.is_empty());
}

#[test]
fn a_label_is_the_id_with_the_largest_logit_special_ids_included() {
    let mut config = of_family(Family::Tagger, &tiny());
    // Labels 0, 1 and 2 have the places of special ids; with few labels they win often.
    config.target_vocab = 3;
    for precision in BOTH {
        let won: BTreeSet<u16> = (0..20)
            .flat_map(|seed| {
                let file = random_model(precision, &config, seed);
                for_precision!(precision, labels_have_the_largest_logits(&file, &config));
                for_precision!(precision, labels_of(&file, "abcxyz"))
            })
            .collect();
        assert_eq!(won, BTreeSet::from([0, 1, 2]));
    }
}

fn labels_of<P: Precision>(file: &AlignedBytes, text: &str) -> Vec<TokenId> {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    session.generate_text(text, &GenerateOptions::default()).expect("a text").collect()
}

fn prefix_is_read_and_not_produced<P: Precision>(file: &AlignedBytes) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let mut free_of = |word| -> Vec<TokenId> {
        session.generate_text(word, &GenerateOptions::default()).expect("a text").collect()
    };
    let (word, free) = ["word", "bird", "stone", "queen", "apple", "zebra"]
        .map(|word| (word, free_of(word)))
        .into_iter()
        .max_by_key(|(_, ids)| ids.len())
        .expect("six words");
    assert!(free.len() > 3, "{free:?}");
    for cut in 0..free.len() {
        let options = GenerateOptions { prefix: &free[..cut], ..Default::default() };
        let rest: Vec<_> = session.generate_text(word, &options).expect("a text").collect();
        assert_eq!(rest, free[cut..]);
        let options = GenerateOptions { max_len: Some(1), ..options };
        let one: Vec<_> = session.generate_text(word, &options).expect("a text").collect();
        assert_eq!(one, free[cut..=cut]);
    }
    let other = [(free[0] - 4 + 1) % 20 + 4];
    let options = GenerateOptions { prefix: &other, ..Default::default() };
    let forced: Vec<_> = session.generate_text(word, &options).expect("a text").collect();
    assert_ne!(forced, free[1..], "another prefix has another end");
}

#[test]
fn a_prefix_is_read_and_not_produced_again() {
    for precision in BOTH {
        let file = random_model(precision, &tiny(), 1);
        for_precision!(precision, prefix_is_read_and_not_produced(&file));
    }
}

fn bad_input_is_refused<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = arena(arena_len(file), 0);
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let before = run(&mut session, "ab");
    let free = GenerateOptions::default();
    let mut error = |ids: &[TokenId], options: &GenerateOptions<'_>| {
        session.generate(ids, options).err().expect("a refusal")
    };
    let target_limit = usize::from(config.max_target_len).saturating_sub(1);
    let prefix_limit = if config.has_cross_attention() { target_limit } else { 0 };
    let long = vec![5; target_limit.max(usize::from(config.max_source_len)) + 1];
    let too_long = |len, limit| RunError::PrefixTooLong { len, limit };
    let sound = ids(config, "ab");
    let options = GenerateOptions { prefix: &long[..=prefix_limit], ..free };
    assert_eq!(error(&sound, &options), too_long(prefix_limit + 1, prefix_limit));
    if config.has_encoder() {
        let (len, limit) = (long.len(), config.max_source_len.into());
        assert_eq!(error(&[], &free), RunError::Encode(EncodeError::Empty));
        assert_eq!(error(&long, &free), RunError::Encode(EncodeError::TooLong { len, limit }));
        let (vocab, id) = (config.source_vocab, config.source_vocab);
        assert_eq!(error(&[5, id], &free), RunError::IdOutOfRange { index: 1, id, vocab });
    } else {
        let prompt = &long[..=target_limit];
        assert_eq!(error(prompt, &free), too_long(target_limit + 1, target_limit));
    }
    if config.has_decoder() {
        let (vocab, id) = (config.target_vocab, config.target_vocab);
        let refusal = RunError::IdOutOfRange { index: 1, id, vocab };
        match config.has_encoder() {
            true => {
                let options = GenerateOptions { prefix: &[5, id], ..free };
                assert_eq!(error(&sound, &options), refusal);
            }
            false => assert_eq!(error(&[5, id], &free), refusal),
        }
    }
    // Padding has no place in what a device reads, nor has a start id that it reads by itself.
    let SpecialIds { pad, start, .. } = config.special;
    let special = |id| RunError::SpecialId { index: 1, id };
    if config.has_encoder() {
        assert_eq!(error(&[5, pad], &free), special(pad));
    }
    for id in [pad, start].into_iter().filter(|_| config.has_decoder()) {
        let read = [5, id];
        let refused = match config.has_encoder() {
            true => error(&sound, &GenerateOptions { prefix: &read, ..free }),
            false => error(&read, &free),
        };
        assert_eq!(refused, special(id));
    }
    assert!(run(&mut session, &"a".repeat(200)).text.is_err());
    assert!(run(&mut session, "a1").text.is_err());
    assert_eq!(run(&mut session, "ab"), before, "the session stays usable");
}

#[test]
fn prompts_prefixes_and_ids_that_do_not_fit_are_refused() {
    for_each_model(|precision, file, config| {
        for_precision!(precision, bad_input_is_refused(file, config));
    });
}

#[test]
fn an_empty_prompt_starts_a_text_and_an_empty_source_is_refused() {
    for family in FAMILIES {
        let config = of_family(family, &tiny());
        let file = random_model(Stored::FixedPoint, &config, 3);
        let model = TypedModel::<FixedPoint>::from_bytes(&file).expect("a sound model");
        let mut memory = arena(arena_len(&file), 0);
        let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
        let answer = run(&mut session, "").text;
        match config.has_encoder() {
            true => assert_eq!(answer, Err(RunError::Encode(EncodeError::Empty))),
            false => assert!(answer.is_ok()),
        }
    }
}

#[test]
fn an_arena_has_no_room_for_stacks_that_are_not_there() {
    let config = ModelConfig { max_source_len: 6, max_target_len: 30, ..tiny() };
    let full = random_model(Stored::FixedPoint, &config, 1);
    for family in [Family::DecoderOnly, Family::Tagger, Family::Classifier] {
        let file = random_model(Stored::FixedPoint, &of_family(family, &config), 1);
        assert!(arena_len(&file) < arena_len(&full), "{family:?}");
    }
}
