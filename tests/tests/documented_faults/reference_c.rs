//! C, the architecture article.

use std::collections::BTreeSet;
use std::panic::catch_unwind;

use candle_core::DType;
use model_format::AlignedBytes;
use model_format::config::{ModelConfig, NormPlace, Precision as Stored};
use runtime::{EncodeError, FixedModel, GenerateOptions, RunError, Session, q16};
use trainer::data::batch::{Example, Pairs};
use trainer::data::corpus::{self, Pair};
use trainer::data::tokenizer::{Splitting, Tokenizer, Unit};
use trainer::engine::attention::{Columns, Shape, Span, Tiles, attend};
use trainer::engine::dropout::Place;
use trainer::engine::{Dropout, DropoutRates, LossOptions, Workspace};
use trainer::optimizer::{Schedule, ScheduleKind};
use trainer::rng;
use trainer::workers::Slice;

use super::beams::{Output, Search, defined, kept, log_prob_on_device, on_device, same};
use super::naive::{Rows, attention};
use super::networks::{
    PRECISIONS, Uneven, Weighted, architectures, examples, generate_as, near, small, sources,
    uneven,
};

/// C unpacks three sizes from tensors of four dimensions and transposes the wrong axes; here every
/// product of heads is that of four nested loops over sentence, head, query and key.
#[test]
fn attention_takes_products_over_the_columns_of_a_head() {
    // Queries, keys, whether causal.
    let sizes: [(Span, Span, bool); 5] = [
        ((0, 3), (0, 5), false),
        ((3, 1), (5, 9), false),
        ((4, 4), (14, 4), true),
        ((8, 7), (18, 1), false),
        ((15, 9), (19, 9), true),
    ];
    for (n_heads, d_k) in [(1, 6), (2, 5), (3, 4), (5, 1)] {
        let d = n_heads * d_k;
        let numbers = |key, n: usize| -> Vec<f32> {
            (0..n as u64).map(|i| 2.0 * rng::uniform(key, i) - 1.0).collect()
        };
        let (q, kv) = (numbers(1, 24 * d), numbers(2, 28 * 2 * d));
        for causal in [false, true] {
            let spans: Vec<_> = sizes.iter().filter(|size| size.2 == causal).collect();
            let query_spans: Vec<Span> = spans.iter().map(|size| size.0).collect();
            let key_spans: Vec<Span> = spans.iter().map(|size| size.1).collect();
            let (query_spans, key_spans) = (query_spans.as_slice(), key_spans.as_slice());
            let shape = Shape { query_spans, key_spans, n_heads, d_k, causal, mask: None };
            let columns = |data, stride, first| Columns { data, stride, first };
            let (mut probs, mut context) = (vec![0.0; shape.probs_len()], vec![0.0; 24 * d]);
            let keys = columns(&kv, 2 * d, 0);
            let values = columns(&kv, 2 * d, d);
            let queries = columns(&q, d, 0);
            let tiles = &mut Tiles::default();
            attend(queries, keys, values, &shape, tiles, &mut probs, &mut context);
            for &&((first, len), (first_key, key_len), _) in &spans {
                let rows = |data: &[f32], stride, at, first: usize, len: usize| -> Rows {
                    let row = |r: usize| &data[r * stride + at..][..d];
                    let wide = |r| row(r).iter().map(|&v| f64::from(v)).collect();
                    (first..first + len).map(wide).collect()
                };
                let queries = rows(&q, d, 0, first, len);
                let keys = rows(&kv, 2 * d, 0, first_key, key_len);
                let values = rows(&kv, 2 * d, d, first_key, key_len);
                let expected = attention(&queries, &keys, &values, n_heads, causal).concat();
                assert!(near(&context[first * d..(first + len) * d], &expected, 1e-5));
            }
        }
    }
}

/// As above, of whole networks: the engine and candle agree with the nested loops.
#[test]
fn networks_agree_with_nested_loops() {
    for config in architectures() {
        let w = Weighted::new(&config, 21);
        for example in &examples(&config) {
            let naive = w.naive_logits(&example.source, &example.target).concat();
            let example = std::slice::from_ref(example);
            assert!(near(&w.engine_logits(example), &naive, 1e-3));
            // candle's table of sinusoids is as exact, the parameters are the same f32.
            assert!(near(&w.candle_logits(example, DType::F64), &naive, 1e-9));
        }
    }
}

/// C passes the memory mask neither in training nor in greedy decoding, so the decoder looks at the
/// source's padding; here what stands at padding has no effect on loss, gradient or output.
#[test]
fn the_memory_mask_acts_in_training_and_in_greedy() {
    for config in architectures() {
        let w = Weighted::new(&config, 22);
        let d = usize::from(config.d_model);
        let mut poisoned = w.clone();
        poisoned.tensor_mut("source_embedding.weight")[..d].fill(7.0);
        let examples = examples(&config);
        assert_eq!(
            w.candle_logits(&examples, DType::F32),
            poisoned.candle_logits(&examples, DType::F32)
        );
        let rates = DropoutRates { residual: 0.1, attention: 0.1, activation: 0.1 };
        let gradient = |w: &Weighted| {
            let pairs = Pairs::pack(&examples, &config);
            let slice = Slice { pairs, dropout: Dropout { key: 5, rates } };
            let options = LossOptions { smoothing: 0.1, scale: 1.0 };
            w.reference(DType::F32).gradient(&[slice], options).expect("candle computes")
        };
        assert_eq!(gradient(&w), gradient(&poisoned));
        // An engine that touched padding would spread the NaN.
        poisoned.tensor_mut("source_embedding.weight")[..d].fill(f32::NAN);
        assert_eq!(w.engine_logits(&examples), poisoned.engine_logits(&examples));
        let sources = sources(&config, 30);
        assert_eq!(w.greedy(&sources), poisoned.greedy(&sources));
    }
}

/// C decodes with dropout on; here decoding has none, so it repeats itself and takes the best ids of
/// the logits without dropout.
#[test]
fn greedy_decodes_without_dropout() {
    for config in architectures() {
        let w = Weighted::new(&config, 23);
        let sources = sources(&config, 10);
        let decoded = w.greedy(&sources);
        assert_eq!(decoded, w.greedy(&sources));
        for (source, (ids, _)) in sources.into_iter().zip(decoded) {
            let rows = w.naive_steps(&source, &ids);
            for (row, &id) in rows.iter().zip(&ids) {
                let most = row[2..].iter().copied().fold(f64::MIN, f64::max);
                // Two ids may score the same to the rounding of f32.
                assert!(row[id as usize] > most - 1e-3, "{row:?}, not {id}");
            }
            let target = ids[..rows.len() - 1].to_vec();
            let example = Example { source, target };
            let mut workspace = Workspace::default();
            let rates = DropoutRates { residual: 0.2, attention: 0.0, activation: 0.0 };
            let pairs = Pairs::pack([&example], &config);
            let dropout = Dropout { key: 1, rates };
            w.network.forward(&w.params, &pairs, Some(&dropout), &mut workspace);
            assert!(!near(&workspace.logits, &rows.concat(), 0.1), "dropout would be noticed");
        }
    }
}

/// In C a row that has ended goes on as long as its neighbours; here it keeps what it had, beside every
/// other row and however long that one is.
#[test]
fn finished_rows_are_frozen() {
    let Uneven { weighted: w, sources, alone } = uneven();
    let mut overtaken = 0;
    for (a, row) in sources.iter().zip(&alone).take(12) {
        for (b, neighbour) in sources.iter().zip(&alone) {
            let together = w.greedy(&[a.clone(), b.clone()]);
            assert_eq!((&together[0], &together[1]), (row, neighbour));
            overtaken += u32::from(row.1 && neighbour.0.len() > row.0.len());
        }
    }
    assert!(overtaken > 10, "rows that end before their neighbour: {overtaken}");
}

/// C's schedule divides by zero before step 1; here every step of every schedule has a finite rate, the
/// first ones and those past the last included.
#[test]
fn the_first_step_of_every_schedule_is_finite() {
    for kind in [ScheduleKind::InverseSqrt, ScheduleKind::Cosine] {
        for warmup_steps in [0, 1, 4000] {
            let schedule = Schedule { kind, rate: 1.0, warmup_steps, floor: 0.0 };
            for total in [0, 1, 4000, 10_000] {
                for step in [0, 1, 2, 3999, 4000, 4001, 20_000, u64::MAX] {
                    let rate = schedule.at(step, total, 512);
                    assert!((0.0..=1.0).contains(&rate), "{schedule:?} {step} {total}: {rate}");
                }
                // Steps are counted from 1; 0 is taken for the first.
                assert_eq!(schedule.at(0, total, 512), schedule.at(1, total, 512));
                assert!(schedule.at(1, total, 512) > 0.0 || total <= 1);
            }
        }
    }
}

/// C drops on attention's output and again where it is added; here a number that a sublayer adds is
/// dropped once: with a constant 1 to add, the stream grows by 0 or by 1 / (1 - rate), as often as the
/// rate says.
#[test]
fn dropout_acts_once_on_what_a_sublayer_adds() {
    let config = ModelConfig { norm: NormPlace::Pre, ..small() };
    let mut w = Weighted::new(&config, 24);
    let names = ["encoder.layers.0", "decoder.layers.0"].iter().flat_map(|layer| {
        let parts = ["self_attention.output", "feed_forward.linear2", "cross_attention.output"];
        parts.map(|part| format!("{layer}.{part}"))
    });
    for name in names.filter(|name| !name.starts_with("encoder.layers.0.cross")) {
        w.tensor_mut(&format!("{name}.weight")).fill(0.0);
        w.tensor_mut(&format!("{name}.bias")).fill(1.0);
    }
    let example = Example { source: vec![4; 16], target: vec![5; 13] };
    let pairs = Pairs::pack(&vec![example; 30], &config);
    let rate = 0.25;
    let rates = DropoutRates { residual: rate, attention: 0.0, activation: 0.0 };
    let dropout = Dropout { key: 6, rates };
    let mut workspace = Workspace::default();
    w.network.forward(&w.params, &pairs, Some(&dropout), &mut workspace);
    let (encoder, decoder) = (&workspace.encoder, &workspace.decoder);
    let (source, target) = (&encoder.layers[0], &decoder.layers[0]);
    let [source_stack, target_stack] = [&w.network.encoder, &w.network.decoder];
    for (stack, place, before, after) in [
        (source_stack, Place::SelfAttention(0), &encoder.embedded, &source.self_attention.sum),
        (source_stack, Place::FeedForward(0), &source.self_attention.sum, &source.feed_forward.sum),
        (target_stack, Place::SelfAttention(0), &decoder.embedded, &target.self_attention.sum),
        (
            target_stack,
            Place::CrossAttention(0),
            &target.self_attention.sum,
            &target.cross_attention.sum,
        ),
        (
            target_stack,
            Place::FeedForward(0),
            &target.cross_attention.sum,
            &target.feed_forward.sum,
        ),
    ] {
        let stack = stack.as_ref().expect("both stacks are there");
        let mask = dropout.masks(stack, place).residual.expect("a mask");
        let mut dropped = 0;
        for ((before, after), factor) in before.iter().zip(after).zip(mask.factors(0)) {
            assert!((after - before - factor).abs() < 1e-5, "{place:?}: {before} {after}");
            dropped += u32::from((after - before).abs() < 1e-5);
        }
        let share = f64::from(dropped) / before.len() as f64;
        // The standard error of the share is below 0.005; dropping twice would drop 0.4375.
        assert!((share - f64::from(rate)).abs() < 0.02, "{place:?}: {share}");
    }
    // candle drops the same numbers as often: else its loss would be another.
    let options = LossOptions { smoothing: 0.0, scale: 1.0 };
    let engine = w.network.loss(&pairs, options, &mut workspace);
    let slice = Slice { pairs, dropout };
    let (_, candle) = w.reference(DType::F64).gradient(&[slice], options).expect("candle computes");
    assert!((engine.smoothed - candle.smoothed).abs() < 1e-5 * engine.smoothed, "{engine:?}");
}

/// In C a source past the table of positions is an index error deep inside; here it is refused at the
/// door, with its length and the limit.
#[test]
fn a_source_longer_than_the_position_table_is_refused_with_both_numbers() {
    for config in architectures() {
        let w = Weighted::new(&config, 25);
        for stored in PRECISIONS {
            let file = w.file(stored);
            assert!(!generate_as(stored, &file, &[4; 16], None).logits.is_empty());
        }
        let file = w.file(Stored::FixedPoint);
        let model = FixedModel::from_bytes(&file).expect("a sound file");
        let mut arena = AlignedBytes::filled(0, model.plan().total);
        let mut session = Session::new(&model, &mut arena).expect("the arena that it asks for");
        let error = session.generate(&[4; 18], &GenerateOptions::default()).err();
        assert_eq!(error, Some(RunError::Encode(EncodeError::TooLong { len: 18, limit: 17 })));
        let error = session.run_into(&"a".repeat(17), &mut [0; 99]).err();
        // The end id needs a position too.
        let expected = RunError::Encode(EncodeError::TooLong { len: 17, limit: 16 });
        assert_eq!(error, Some(expected));
        let message = expected.to_string();
        assert!(message.contains("17") && message.contains("16"), "{message}");
    }
    refused_by_the_trainer();
    let splitting = |unit| Splitting { unit, lowercase: false };
    let source = Tokenizer::build(splitting(Unit::Character), ["a"]).expect("a vocabulary");
    let target = Tokenizer::build(splitting(Unit::Word), ["A"]).expect("a vocabulary");
    let pair = Pair { source: "a".repeat(17), target: "A".into(), line: 3 };
    let error = corpus::encode(&[pair], (&source, &target), &small()).expect_err("too long");
    assert_eq!(error.to_string(), "line 3: the source has 17 symbols, the limit is 16");
}

/// 17 symbols and the end id, where there are 17 positions.
fn refused_by_the_trainer() {
    for config in architectures() {
        let w = Weighted::new(&config, 26);
        let long = Example { source: vec![4; 17], target: vec![4] };
        let fits = Example { source: vec![4; 16], target: vec![4; 13] };
        assert!(!w.engine_logits(std::slice::from_ref(&fits)).is_empty());
        let pairs = |example| Pairs::pack([example], &config);
        assert!(w.reference(DType::F32).logits(&pairs(&fits)).is_ok());
        let error = w.reference(DType::F32).logits(&pairs(&long)).expect_err("too long");
        let expected = "a sentence has 18 ids with its frame, the limit is 17";
        assert_eq!(error.to_string(), expected);
        let engine = || w.engine_logits(std::slice::from_ref(&long));
        for refused in
            [catch_unwind(|| drop(engine())), catch_unwind(|| drop(w.greedy_alone(&[4; 17])))]
        {
            let panic = refused.expect_err("too long");
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(expected));
        }
    }
}

/// Sources whose beams end at different steps, and weights that a HalfFloat file holds exactly.
fn branching() -> (Weighted, Vec<Vec<u32>>) {
    let Uneven { weighted, mut sources, .. } = uneven();
    sources.truncate(8);
    (weighted.rounded(), sources)
}

/// C's beam search crashes at its first step with more than one beam, where all beams would be copies
/// of each other; here it begins with one hypothesis and gives as many different ones as asked for.
#[test]
fn more_than_one_beam_works_from_the_first_step() {
    let (w, sources) = branching();
    let [fixed, half] = PRECISIONS.map(|stored| w.file(stored));
    for beams in [1, 2, 3, 5] {
        for max_len in [1, 2, 14] {
            let search = Search { beams, n_best: beams, length_penalty: q16!(0.6), max_len };
            for source in &sources[..4] {
                let outputs = kept(&w, source, search);
                assert!(same(&outputs, &defined(&w, source, search)), "{outputs:?}");
                assert!(same(&outputs, &on_device(Stored::HalfFloat, &half, source, search)));
                let fixed = on_device(Stored::FixedPoint, &fixed, source, search);
                for outputs in [&outputs, &fixed] {
                    let different: BTreeSet<_> =
                        outputs.iter().map(|o| (&o.ids, o.ended)).collect();
                    assert_eq!(different.len(), usize::from(beams), "{outputs:?}");
                }
                if (beams, max_len) == (1, 14) {
                    assert_eq!(outputs[0].ids, w.greedy_alone(source).0);
                }
            }
        }
    }
}

/// When a beam of C ends, its beams shrink, but neither scores nor memory do, so the rest go on with
/// the numbers of others; here every beam that goes on has the score of its own ids.
#[test]
fn a_finished_beam_keeps_scores_and_caches_of_the_others() {
    let (w, sources) = branching();
    let search = Search { beams: 4, n_best: 4, length_penalty: q16!(0.0), max_len: 14 };
    let mut after_an_end = 0;
    for source in &sources {
        let outputs = kept(&w, source, search);
        let first_end = outputs.iter().filter(|o| o.ended).map(|o| o.ids.len()).min();
        for Output { ids, score, ended } in &outputs {
            let mut wanted: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
            wanted.extend(ended.then_some(2));
            let rows = w.naive_steps(source, ids);
            let log_prob = |(row, id): (&Vec<f64>, &usize)| {
                row[*id] - row.iter().map(|x| x.exp()).sum::<f64>().ln()
            };
            let sum: f64 = rows.iter().zip(&wanted).map(log_prob).sum();
            assert!((sum - score).abs() < 1e-3, "{ids:?}: {score}, not {sum}");
            after_an_end += u32::from(first_end.is_some_and(|first| ids.len() > first));
        }
    }
    assert!(after_an_end > 8, "outputs that went on when another had ended: {after_an_end}");
    for stored in PRECISIONS {
        let file = w.file(stored);
        for source in &sources {
            for output in on_device(stored, &file, source, search) {
                let sum = log_prob_on_device(stored, &file, source, &output);
                // A cache holds the very bits of what is read anew.
                assert_eq!(output.score, sum, "{stored:?} {output:?}");
            }
        }
    }
}

/// C stacks its hypotheses to a tensor, which fails when their lengths differ; here they are ranked by
/// what their length makes of their probability.
#[test]
fn hypotheses_of_unequal_length_are_compared() {
    let (w, sources) = branching();
    let [fixed, half] = PRECISIONS.map(|stored| w.file(stored));
    let mut unequal = 0;
    let mut orders = BTreeSet::new();
    for source in &sources {
        for length_penalty in [q16!(0.0), q16!(1.0), q16!(2.0)] {
            let search = Search { beams: 5, n_best: 5, length_penalty, max_len: 14 };
            let outputs = kept(&w, source, search);
            assert!(same(&outputs, &defined(&w, source, search)), "{outputs:?}");
            assert!(same(&outputs, &on_device(Stored::HalfFloat, &half, source, search)));
            for outputs in [&outputs, &on_device(Stored::FixedPoint, &fixed, source, search)] {
                assert!(outputs.is_sorted_by(|a, b| a.score >= b.score));
            }
            let lengths: BTreeSet<_> = outputs.iter().map(|o| o.ids.len()).collect();
            unequal += u32::from(lengths.len() > 2);
            orders.insert((source, outputs[0].ids.clone()));
        }
    }
    assert!(unequal > 6, "{unequal}");
    assert!(orders.len() > sources.len(), "the penalty decides somewhere");
}

/// C asks for more candidates than there are ids and crashes; here a beam wider than the vocabulary finds
/// the best of all outputs there are.
#[test]
fn a_beam_wider_than_the_vocabulary_works() {
    let (w, sources) = branching();
    let [fixed, half] = PRECISIONS.map(|stored| w.file(stored));
    let wide = Search { beams: 200, n_best: 200, length_penalty: q16!(0.5), max_len: 2 };
    for source in &sources {
        let outputs = kept(&w, source, wide);
        // The end alone, or ten other symbols, each followed by the end or by another.
        assert_eq!(outputs.len(), 1 + 10 * 11);
        assert!(same(&outputs, &defined(&w, source, wide)));
        assert!(same(&outputs, &on_device(Stored::HalfFloat, &half, source, wide)));
        assert_eq!(on_device(Stored::FixedPoint, &fixed, source, wide).len(), outputs.len());
        let narrow = Search { n_best: 1, beams: 30, max_len: 4, ..wide };
        assert!(same(&kept(&w, source, narrow), &defined(&w, source, narrow)));
    }
}
