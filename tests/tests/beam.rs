//! Other ways to choose than greedily, over random models of both number types.

use std::collections::{BTreeMap, BTreeSet};

use kiloformer_tests::for_precision;
use kiloformer_tests::precision::BOTH;
use kiloformer_tests::random_model::{Random, SOURCE_VOCAB, of_family, random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::{Family, ModelConfig, NormPlace, Positions, Precision as Stored};
use model_format::formats::ActivationSlot;
use runtime::search::{
    BeamOptions, Constraints, LogProb, LogSumExp, OptionsError, Probability, Q16, Sampling, Score,
};
use runtime::{
    ArenaTooSmall, FixedPoint, GenerateOptions, HalfFloat, Limits, Poll, Precision, SearchError,
    Session, StopReason, TokenId, TypedModel, arena_len, arena_len_with, q16,
};

const END: TokenId = 2;
/// Pad and start.
const NEVER: [TokenId; 2] = [0, 1];

/// Few ids and short outputs, so that all of them can be listed.
fn small(turn: u64) -> ModelConfig {
    ModelConfig {
        target_vocab: 6,
        max_target_len: 4,
        max_source_len: 8,
        norm: [NormPlace::Pre, NormPlace::Post][turn as usize % 2],
        positions: [Positions::SinusoidalInterleaved, Positions::Learned][turn as usize / 2 % 2],
        ..tiny()
    }
}

fn memory(len: usize) -> AlignedBytes {
    AlignedBytes::filled(0xA5, len)
}

/// Calls `test` with a session of `beams` in an arena of exact size.
fn with_beams<P: Precision, T>(
    file: &AlignedBytes,
    beams: u16,
    test: impl FnOnce(&mut Session<'_, '_, P>) -> T,
) -> T {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let limits = Limits::of(model.model().config()).with_beams(beams);
    let needed = arena_len_with(file, limits).expect("a sound model");
    let mut arena = memory(needed);
    let short = Session::with_limits(&model, &mut arena[..needed - 1], limits).err();
    assert_eq!(short, Some(ArenaTooSmall { needed, given: needed - 1 }));
    let mut session = Session::with_limits(&model, &mut arena, limits).expect("the exact size");
    test(&mut session)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Output {
    ids: Vec<TokenId>,
    has_end: bool,
    total: Score,
    score: LogProb,
}

fn search<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    prefix: &[TokenId],
    options: &BeamOptions,
) -> (Vec<Output>, StopReason) {
    let generate = GenerateOptions { prefix, ..Default::default() };
    let generation = session.generate_text(text, &generate).expect("a text");
    let mut beams = generation.beams(&Constraints::default(), options).expect("sound options");
    assert!(beams.hypotheses().is_empty() && beams.ids(0).is_empty());
    let stop = beams.run();
    let hypotheses = beams.hypotheses().to_vec();
    let output = |(index, hypothesis): (usize, &runtime::search::Hypothesis)| Output {
        ids: beams.ids(index).to_vec(),
        has_end: hypothesis.has_end(),
        total: hypothesis.total(),
        score: hypothesis.score,
    };
    (hypotheses.iter().enumerate().map(output).collect(), stop)
}

/// Log-probabilities of what follows, read from scratch for every prefix and kept.
struct Judge<'t> {
    text: &'t str,
    known: BTreeMap<Vec<TokenId>, Vec<LogProb>>,
}

impl Judge<'_> {
    fn after<P: Precision>(
        &mut self,
        session: &mut Session<'_, '_, P>,
        prefix: &[TokenId],
    ) -> &[LogProb] {
        self.known.entry(prefix.to_vec()).or_insert_with(|| {
            let options = GenerateOptions { prefix, ..Default::default() };
            let mut logits = Vec::new();
            let mut generation = session.generate_text(self.text, &options).expect("a text");
            generation.next_observed(|_, logit| logits.push(logit));
            log_probs::<P>(&logits, frac_bits(session_model(session)))
        })
    }

    /// The log-probability of `ids` after `prefix`.
    fn total<P: Precision>(
        &mut self,
        session: &mut Session<'_, '_, P>,
        prefix: &[TokenId],
        ids: &[TokenId],
    ) -> Score {
        let mut score = Score::default();
        let all = [prefix, ids].concat();
        for at in prefix.len()..all.len() {
            score.push(self.after(session, &all[..at])[usize::from(all[at])]);
        }
        score
    }
}

fn session_model<'m, P: Precision>(session: &Session<'m, '_, P>) -> &'m model_format::Model<'m> {
    session.model().model()
}

fn frac_bits(model: &model_format::Model<'_>) -> u32 {
    model.formats().get(ActivationSlot::Logits).frac_bits.unsigned_abs().into()
}

fn log_probs<P: Precision>(logits: &[P::Logit], frac_bits: u32) -> Vec<LogProb> {
    let sum = LogSumExp::of(logits, frac_bits);
    logits.iter().map(|logit| sum.log_prob(*logit, frac_bits)).collect()
}

/// Every output of at most `len` ids, the end id included.
fn all_outputs(vocab: u16, len: usize) -> Vec<Vec<TokenId>> {
    let mut done = Vec::new();
    let mut growing = vec![Vec::new()];
    for _ in 0..len {
        let mut longer = Vec::new();
        for ids in growing {
            for id in (0..vocab).filter(|id| !NEVER.contains(id)) {
                let next = [&ids[..], &[id]].concat();
                if id == END { done.push(next) } else { longer.push(next) }
            }
        }
        growing = longer;
    }
    done.extend(growing);
    done
}

fn equals_exhaustive_search<P: Precision>(file: &AlignedBytes, config: &ModelConfig) {
    let text = "cabin";
    let mut judge = Judge { text, known: BTreeMap::new() };
    with_beams::<P, _>(file, 64, |session| {
        for prefix in [&[][..], &[4]] {
            let len = usize::from(config.max_target_len) - prefix.len();
            let outputs = all_outputs(config.target_vocab, len);
            for length_penalty in [Q16::ZERO, q16!(0.6), Q16::ONE, q16!(2.0)] {
                let options = BeamOptions { beams: 64, n_best: 3, length_penalty };
                let (found, stop) = search(session, text, prefix, &options);
                let alpha = f64::from(length_penalty.to_bits()) / 65_536.0;
                let mut scored: Vec<(f64, &Vec<TokenId>, Score)> = outputs
                    .iter()
                    .map(|ids| {
                        let total = judge.total(session, prefix, ids);
                        let sum = f64::from(total.sum.to_bits());
                        (sum / (ids.len() as f64).powf(alpha), ids, total)
                    })
                    .collect();
                scored.sort_by(|a, b| b.0.total_cmp(&a.0));
                assert_eq!(found.len(), 3);
                for (found, (score, ids, total)) in found.iter().zip(&scored) {
                    let with_end: Vec<TokenId> =
                        found.ids.iter().copied().chain(found.has_end.then_some(END)).collect();
                    // A unit is 1/65536 nat; scores so near are equal once rounded.
                    assert!((f64::from(found.score.to_bits()) - score).abs() < 20.0);
                    if with_end == **ids {
                        assert_eq!(found.total, *total);
                    } else {
                        let near = scored.iter().filter(|other| (other.0 - score).abs() < 20.0);
                        assert!(near.count() > 1, "{with_end:?} is not {ids:?}");
                    }
                }
                let ended =
                    if found[0].has_end { StopReason::EndToken } else { StopReason::LengthLimit };
                assert_eq!(stop, ended);
            }
        }
    });
}

#[test]
fn a_wide_beam_search_finds_what_an_exhaustive_search_finds() {
    for seed in 0..6 {
        let config = small(seed);
        for precision in BOTH {
            let file = random_model(precision, &config, seed);
            for_precision!(precision, equals_exhaustive_search(&file, &config));
        }
    }
}

/// Sums of what beams found, whose caches were copied and moved, against reading from scratch.
fn caches_equal_recomputed_ones<P: Precision>(file: &AlignedBytes) -> usize {
    let mut divided = 0;
    for beams in [2, 3, 5] {
        with_beams::<P, _>(file, beams, |session| {
            for text in ["a", "queen", "zebra"] {
                let mut judge = Judge { text, known: BTreeMap::new() };
                let options = BeamOptions { beams, n_best: beams, length_penalty: q16!(1.0) };
                let (found, _) = search(session, text, &[], &options);
                assert!(!found.is_empty());
                assert!(found.windows(2).all(|pair| pair[0].score >= pair[1].score), "sorted");
                let distinct: BTreeSet<_> =
                    found.iter().map(|o| (o.ids.clone(), o.has_end)).collect();
                assert_eq!(distinct.len(), found.len());
                for output in &found {
                    let ids: Vec<_> =
                        output.ids.iter().copied().chain(output.has_end.then_some(END)).collect();
                    assert_eq!(judge.total(session, &[], &ids), output.total, "{ids:?}");
                    assert_eq!(usize::from(output.total.tokens), ids.len());
                }
                let firsts: BTreeSet<_> = found.iter().filter_map(|o| o.ids.first()).collect();
                divided += found.len() - firsts.len().min(found.len());
            }
        });
    }
    divided
}

#[test]
fn outputs_are_sorted_and_their_scores_are_those_of_reading_them_from_scratch() {
    let mut divided = 0;
    for seed in 0..4 {
        let config = ModelConfig { target_vocab: 13, max_target_len: 10, ..small(seed) };
        for precision in BOTH {
            let file = random_model(precision, &config, seed);
            divided += for_precision!(precision, caches_equal_recomputed_ones(&file));
        }
    }
    assert!(divided > 50, "beams divided, so that caches were copied: {divided}");
}

fn greedy_ids<P: Precision>(session: &mut Session<'_, '_, P>, text: &str) -> Vec<TokenId> {
    session.generate_text(text, &GenerateOptions::default()).expect("a text").collect()
}

/// A sum of logits one by one and one at once are each within 0.2 units: rounded, the log-probability
/// of an id may differ by one.
fn assert_near(streamed: Score, at_once: Score) {
    assert_eq!(streamed.tokens, at_once.tokens);
    let difference = streamed.sum.to_bits().abs_diff(at_once.sum.to_bits());
    assert!(difference <= streamed.tokens.into(), "{difference}");
}

fn degenerate_choices_are_greedy<P: Precision>(file: &AlignedBytes) {
    with_beams::<P, _>(file, 1, |session| {
        let (free, unfiltered) = (GenerateOptions::default(), Constraints::default());
        for text in ["a", "queen", "zebra", "it"] {
            let greedy = greedy_ids(session, text);
            let stop = session.last_stop().expect("an end");
            let options = BeamOptions { beams: 1, n_best: 1, length_penalty: Q16::ZERO };
            let (found, found_stop) = search(session, text, &[], &options);
            assert_eq!((&found[0].ids, found_stop), (&greedy, stop));

            let generation = session.generate_text(text, &free).expect("a text");
            let mut scored = generation.scored();
            assert!(scored.by_ref().eq(greedy.iter().copied()));
            assert_near(scored.choice().score(), found[0].total);

            let generation = session.generate_text(text, &free).expect("a text");
            let mut filtered = generation.constrained(&unfiltered).expect("sound");
            assert!(filtered.by_ref().eq(greedy.iter().copied()));
            assert_eq!(filtered.choice().score(), found[0].total);

            let sampling = Sampling { top_k: Some(1), ..Sampling::default() };
            let generation = session.generate_text(text, &free).expect("a text");
            let mut bits = Random(3);
            let sampled = generation.sampled(&unfiltered, &sampling, || bits.bits());
            assert!(sampled.expect("sound").eq(greedy));
        }
    });
}

#[test]
fn any_choice_writes_its_text_and_says_its_score_after_it() {
    let config = ModelConfig { max_target_len: 12, ..tiny() };
    let file = random_model(Stored::FixedPoint, &config, 1);
    with_beams::<FixedPoint, _>(&file, 1, |session| {
        let mut buffers = [[0; 128]; 2];
        let [first, second] = &mut buffers;
        let expected = session.run_into("queen", first).expect("an answer");
        let greedy = session.generate_text("queen", &GenerateOptions::default()).expect("a text");
        let mut scored = greedy.scored();
        assert_eq!(scored.write_into(second), Ok(expected));
        let score = scored.choice().score();
        assert!(score.tokens > 0 && score.confidence() < Probability::ONE);
        let greedy = session.generate_text("queen", &GenerateOptions::default()).expect("a text");
        let short = &mut second[..expected.len() - 1];
        let full = runtime::RunError::BufferFull { capacity: short.len() };
        assert_eq!(greedy.scored().write_into(short), Err(full));
    });
}

#[test]
fn one_beam_no_constraints_and_top_1_are_greedy_with_one_score() {
    for seed in 0..4 {
        let config = ModelConfig { target_vocab: 20, max_target_len: 12, ..small(seed) };
        for precision in BOTH {
            let file = random_model(precision, &config, seed);
            for_precision!(precision, degenerate_choices_are_greedy(&file));
        }
    }
}

fn polled_searches_are_the_same<P: Precision>(file: &AlignedBytes) {
    with_beams::<P, _>(file, 3, |session| {
        let smallest = session.smallest_budget();
        let options = BeamOptions { beams: 3, n_best: 3, length_penalty: Q16::ONE };
        let text = "queen";
        let (expected, stop) = search(session, text, &[4], &options);
        for budget in [smallest, smallest * 2 + 1, u32::MAX] {
            let generate = GenerateOptions { prefix: &[4], ..Default::default() };
            let generation = session.generate_text(text, &generate).expect("a text");
            let mut beams =
                generation.beams(&Constraints::default(), &options).expect("sound options");
            let mut polls = 0;
            while beams.poll(budget).expect("enough") == Poll::Pending {
                polls += 1;
            }
            assert!(budget == u32::MAX || polls > 10, "{polls}");
            assert_eq!(beams.stop_reason(), Some(stop));
            for (index, output) in expected.iter().enumerate() {
                assert_eq!(beams.ids(index), output.ids);
                assert_eq!(beams.hypotheses()[index].total(), output.total);
            }
        }
    });
}

#[test]
fn a_search_in_bounded_pieces_finds_the_same() {
    for precision in BOTH {
        let config = ModelConfig { target_vocab: 13, max_target_len: 10, ..small(1) };
        let file = random_model(precision, &config, 1);
        for_precision!(precision, polled_searches_are_the_same(&file));
    }
}

#[test]
fn a_language_model_searches_after_its_prompt() {
    let config = of_family(Family::DecoderOnly, &tiny());
    let file = random_model(Stored::FixedPoint, &config, 5);
    with_beams::<FixedPoint, _>(&file, 2, |session| {
        let options = BeamOptions { beams: 2, n_best: 2, length_penalty: Q16::ONE };
        let (found, _) = search(session, "abc", &[], &options);
        assert_eq!(found.len(), 2);
        let longest = usize::from(config.max_target_len) - 3;
        assert!(found.iter().all(|o| usize::from(o.total.tokens) <= longest));
        for output in &found {
            let mut score = Score::default();
            let mut read = vec![4, 5, 6];
            for &id in output.ids.iter().chain(output.has_end.then_some(&END)) {
                let mut logits = Vec::new();
                let mut generation =
                    session.generate(&read, &GenerateOptions::default()).expect("sound ids");
                generation.next_observed(|_, logit| logits.push(logit));
                let frac_bits = frac_bits(session_model(session));
                score.push(log_probs::<FixedPoint>(&logits, frac_bits)[usize::from(id)]);
                read.push(id);
            }
            assert_eq!(score, output.total);
        }
    });
    assert_eq!(config.target_vocab, SOURCE_VOCAB);
}

#[test]
fn text_of_an_output_is_written_where_it_fits() {
    let file = random_model(Stored::FixedPoint, &tiny(), 1);
    with_beams::<FixedPoint, _>(&file, 2, |session| {
        let options = BeamOptions { beams: 2, n_best: 2, length_penalty: Q16::ONE };
        let vocabulary = *session.model().model().target_vocabulary();
        let generation =
            session.generate_text("stone", &GenerateOptions::default()).expect("a text");
        let mut beams = generation.beams(&Constraints::default(), &options).expect("sound options");
        beams.run();
        for index in 0..2 {
            let symbols: Vec<_> = beams.ids(index).iter().map(|id| vocabulary.text(*id)).collect();
            let text = symbols.into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
            assert!(!text.is_empty());
            let mut buffer = vec![0; text.len()];
            assert_eq!(beams.write_into(index, &mut buffer), Ok(&*text));
            let short = text.len() - 1;
            assert!(beams.write_into(index, &mut buffer[..short]).is_err());
        }
        assert_eq!(beams.write_into(2, &mut []), Ok(""), "no third output");
    });
}

#[test]
fn constraints_hold_for_every_choice() {
    let config = ModelConfig { max_target_len: 12, ..tiny() };
    let file = random_model(Stored::FixedPoint, &config, 1);
    with_beams::<FixedPoint, _>(&file, 3, |session| {
        let free = GenerateOptions::default();
        let allowed: [&[TokenId]; 3] = [&[7, 8], &[7, 9, 9], &[12]];
        let among = Constraints { allowed: Some(&allowed), ..Constraints::default() };
        let no_repeat =
            Constraints { no_repeat_ngram: Some(1), min_len: 6, ..Constraints::default() };
        let sampling = Sampling { temperature: q16!(2.0), ..Sampling::default() };
        let mut bits = Random(1);
        for text in ["a", "queen", "zebra"] {
            for constraints in [&among, &no_repeat] {
                let mut outputs: Vec<(Vec<TokenId>, Option<StopReason>)> = Vec::new();
                let generation = session.generate_text(text, &free).expect("a text");
                let ids = generation.constrained(constraints).expect("sound").collect();
                outputs.push((ids, session.last_stop()));
                for _ in 0..20 {
                    let generation = session.generate_text(text, &free).expect("a text");
                    let sampled = generation.sampled(constraints, &sampling, || bits.bits());
                    let ids = sampled.expect("sound").collect();
                    outputs.push((ids, session.last_stop()));
                }
                let generation = session.generate_text(text, &free).expect("a text");
                let options = BeamOptions { beams: 3, n_best: 3, ..BeamOptions::default() };
                let mut beams = generation.beams(constraints, &options).expect("sound");
                beams.run();
                let found = beams.hypotheses().len();
                for index in 0..found {
                    let stop = match beams.hypotheses()[index].has_end() {
                        true => StopReason::EndToken,
                        false => StopReason::LengthLimit,
                    };
                    outputs.push((beams.ids(index).to_vec(), Some(stop)));
                }
                for (ids, stop) in outputs {
                    if constraints.allowed.is_some() {
                        assert!(allowed.contains(&&ids[..]) && stop == Some(StopReason::EndToken));
                    } else {
                        let distinct: BTreeSet<_> = ids.iter().collect();
                        assert_eq!(distinct.len(), ids.len());
                        assert!(ids.len() >= 5, "{ids:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn equal_bits_draw_equal_ids_and_a_prefix_counts_as_history() {
    let file = random_model(Stored::HalfFloat, &tiny(), 1);
    with_beams::<HalfFloat, _>(&file, 1, |session| {
        let sampling = Sampling { temperature: q16!(1.5), ..Sampling::default() };
        let prefix = [5, 6, 7];
        let options = GenerateOptions { prefix: &prefix, ..Default::default() };
        let constraints = Constraints { no_repeat_ngram: Some(1), ..Constraints::default() };
        let mut draw = |seed| -> Vec<TokenId> {
            let mut bits = Random(seed);
            let generation = session.generate_text("word", &options).expect("a text");
            let sampled = generation.sampled(&constraints, &sampling, || bits.bits());
            sampled.expect("sound options").collect()
        };
        let outputs: BTreeSet<_> = (0..30).map(&mut draw).collect();
        assert!(outputs.len() > 20, "{}", outputs.len());
        assert!(outputs.iter().flatten().all(|id| !prefix.contains(id)));
        assert_eq!(draw(7), draw(7));
    });
}

#[test]
fn a_label_has_a_log_probability() {
    for family in [Family::Tagger, Family::Classifier] {
        for precision in BOTH {
            let file = random_model(precision, &of_family(family, &tiny()), 2);
            for_precision!(precision, labels_are_scored(&file));
        }
    }
}

fn labels_are_scored<P: Precision>(file: &AlignedBytes) {
    with_beams::<P, _>(file, 4, |session| {
        assert_eq!(session.limits().beams, 0, "nothing to search");
        assert_eq!(session.arena_len(), arena_len(file));
        let frac_bits = frac_bits(session_model(session));
        let generation = session.generate_text("abc", &GenerateOptions::default()).expect("a text");
        let mut labels = generation.scored();
        let mut expected = Score::default();
        loop {
            let mut logits: Vec<P::Logit> = Vec::new();
            let Some(label) = labels.next_observed(|_, logit| logits.push(logit)) else { break };
            let log_probs = log_probs::<P>(&logits, frac_bits);
            let (last, best) = (labels.choice().last(), log_probs[usize::from(label)]);
            assert!(last.to_bits().abs_diff(best.to_bits()) <= 1);
            assert!(log_probs.iter().all(|other| *other <= best));
            expected.push(best);
        }
        assert_near(labels.choice().score(), expected);
        assert!(expected.confidence() > Probability::from_percent(0));
    });
}

#[test]
fn options_that_are_not_sound_or_not_planned_are_refused() {
    let file = random_model(Stored::FixedPoint, &tiny(), 1);
    let vocab = tiny().target_vocab;
    with_beams::<FixedPoint, _>(&file, 2, |session| {
        let (free, unfiltered) = (GenerateOptions::default(), Constraints::default());
        let mut beams = |beams, n_best| {
            let options = BeamOptions { beams, n_best, ..BeamOptions::default() };
            let generation = session.generate_text("word", &free).expect("a text");
            generation.beams(&unfiltered, &options).err()
        };
        assert_eq!(beams(0, 1), Some(SearchError::Options(OptionsError::NoBeams)));
        assert_eq!(beams(3, 1), Some(SearchError::TooFewBeams { needed: 3, planned: 2 }));
        let n_best = OptionsError::NBest { n_best: 3, beams: 2 };
        assert_eq!(beams(2, 3), Some(SearchError::Options(n_best)));
        assert_eq!(beams(2, 2), None);

        let mut sampled = |sampling: Sampling| {
            let generation = session.generate_text("word", &free).expect("a text");
            generation.sampled(&unfiltered, &sampling, || 0).err()
        };
        let top_k = Sampling { top_k: Some(vocab + 1), ..Sampling::default() };
        let error = OptionsError::TopK { top_k: vocab + 1, vocab };
        assert_eq!(sampled(top_k), Some(SearchError::Options(error)));
        for temperature in [Q16::ZERO, q16!(-1.0)] {
            let error = OptionsError::Temperature { temperature };
            let sampling = Sampling { temperature, ..Sampling::default() };
            assert_eq!(sampled(sampling), Some(SearchError::Options(error)));
        }

        let max_len = tiny().max_target_len;
        let long = Constraints { min_len: max_len + 1, ..Constraints::default() };
        let generation = session.generate_text("word", &free).expect("a text");
        let error = OptionsError::MinAboveMax { min_len: max_len + 1, max_len };
        assert_eq!(generation.constrained(&long).err(), Some(SearchError::Options(error)));

        let text = ["stone", "queen", "zebra", "apple"]
            .into_iter()
            .find(|text| !greedy_ids(session, text).is_empty())
            .expect("an answer");
        let mut begun = session.generate_text(text, &free).expect("a text");
        assert!(begun.next().is_some());
        assert_eq!(begun.constrained(&unfiltered).err(), Some(SearchError::Begun));
    });
    with_beams::<FixedPoint, _>(&file, 0, |session| {
        assert_eq!(session.arena_len(), arena_len(&file), "greedy search needs no more");
        let generation =
            session.generate_text("word", &GenerateOptions::default()).expect("a text");
        let error = generation.constrained(&Constraints::default()).err();
        assert_eq!(error, Some(SearchError::TooFewBeams { needed: 1, planned: 0 }));
    });
}

#[test]
fn a_greedy_answer_does_not_depend_on_the_beams_that_were_planned() {
    for precision in BOTH {
        let file = random_model(precision, &tiny(), 1);
        for_precision!(precision, greedy_is_the_same_with_beams(&file));
    }
}

fn greedy_is_the_same_with_beams<P: Precision>(file: &AlignedBytes) {
    let answers = |beams| {
        with_beams::<P, _>(file, beams, |session| {
            ["a", "queen"].map(|text| greedy_ids(session, text))
        })
    };
    assert_eq!(answers(0), answers(3));
}
