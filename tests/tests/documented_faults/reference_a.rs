//! A, the full implementation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::DType;
use model_format::config::{ModelConfig, Precision as Stored, SourceFrame};
use runtime::StopReason;
use trainer::backend::Device;
use trainer::checkpoint::Checkpoint;
use trainer::config::RunConfig;
use trainer::data::batch::{Example, Packed, Pairs};
use trainer::engine::attention::{Columns, Shape, Span, Tiles, attend};
use trainer::engine::{DropoutRates, LossOptions, Workspace};
use trainer::session::Session;
use trainer::workers::Slice;

use super::networks::{
    NO_DROPOUT, PRECISIONS, Uneven, Weighted, architectures, examples, generate_as, near, small,
    sources, uneven,
};

/// Trains a small model on made-up pairs, evaluating it after every `eval_epochs` epochs.
fn train(folder: &std::path::Path, eval_epochs: u64) -> Checkpoint {
    std::fs::create_dir_all(folder).expect("a folder for the run");
    let word = |i: usize| -> String {
        (0..1 + i % 7).map(|j| char::from(b'a' + (i * 5 + j * j + i / 7) as u8 % 20)).collect()
    };
    let upper = |word: &str| -> Vec<String> {
        word.chars().map(|c| c.to_ascii_uppercase().to_string()).collect()
    };
    let pair = |word: String| format!("{word}\t{}\n", upper(&word).join(" "));
    let tsv = folder.join("pairs.tsv");
    std::fs::write(&tsv, (0..200).map(word).map(pair).collect::<String>()).expect("a file");
    let mut config = RunConfig::default();
    config.data.train = Some(tsv);
    config.model = small();
    config.train.epochs = 4;
    config.train.batch_size = 16;
    config.train.eval_epochs = eval_epochs;
    config.train.dropout = DropoutRates { residual: 0.2, attention: 0.1, activation: 0.1 };
    let mut session = Session::begin(folder.join("run"), config).expect("a sound run");
    assert!(!session.split.dev.is_empty(), "there is something to evaluate on");
    session.device = Device::Cpu;
    session.train(&false.into()).expect("a run to its end");
    session.run
}

/// A's `generate` leaves the model in evaluation mode or in training mode, whichever it was not in; here
/// there is no mode: a run that is evaluated after every epoch has the bits of one that is not.
#[test]
fn evaluating_in_the_middle_of_training_changes_nothing() {
    let folder = std::env::temp_dir().join(format!("kiloformer-faults-{}", std::process::id()));
    let often = train(&folder.join("often"), 1);
    let once = train(&folder.join("once"), 4);
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    assert_eq!(often.header.progress, once.header.progress);
    assert!(often.header.progress.step > 20);
    assert_eq!(often.weights, once.weights);
}

/// A's loop stops when every row of the batch produces its end token at the same step, and rows go on
/// after theirs; here each row stops at its own, whatever its neighbours do.
#[test]
fn rows_of_a_batch_stop_at_their_own_end_token() {
    let Uneven { weighted: w, sources, alone } = uneven();
    let together = w.greedy(&sources);
    assert_eq!(together, alone);
    for (source, (ids, ended)) in sources.iter().zip(together) {
        assert!(!ids.contains(&2), "the end id is no part of the output");
        let best = |row: &Vec<f64>| (2..13).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let wanted: Vec<usize> = w.naive_steps(source, &ids).iter().map(best).collect();
        let end = ended.then_some(2);
        assert_eq!(wanted, ids.iter().map(|&id| id as usize).chain(end).collect::<Vec<_>>());
    }
}

/// A generates without the padding mask that it trains with; here a longer neighbour changes no logit,
/// in the padded batches of candle, in the packed ones of the engine and in greedy decoding.
#[test]
fn padding_of_a_longer_neighbour_changes_no_logit() {
    for config in architectures() {
        let w = Weighted::new(&config, 2);
        let examples = examples(&config);
        let mut alone = Vec::new();
        let mut naive = Vec::new();
        for example in &examples {
            alone.extend(w.candle_logits(std::slice::from_ref(example), DType::F64));
            naive.extend(w.naive_logits(&example.source, &example.target).concat());
        }
        assert!(near(&w.candle_logits(&examples, DType::F64), &alone, 1e-10));
        assert!(near(&w.engine_logits(&examples), &alone, 1e-3));
        assert!(near(&alone, &naive, 1e-5));
        let sources: Vec<Vec<u32>> = examples.into_iter().map(|e| e.source).collect();
        let one_by_one: Vec<_> = sources.iter().map(|source| w.greedy_alone(source)).collect();
        assert_eq!(w.greedy(&sources), one_by_one);
    }
}

/// A can produce padding and start tokens; here neither comes, however high it scores, on the host and on
/// a device.
#[test]
fn pad_and_start_are_never_produced_even_when_they_score_highest() {
    for banned in [0, 1] {
        let w = Weighted::new(&small(), 7).favour(banned, 60.0);
        let sources = sources(w.config(), 10);
        for (ids, _) in w.greedy(&sources) {
            assert!(!ids.contains(&banned.into()), "{ids:?}");
        }
        for stored in PRECISIONS {
            let file = w.file(stored);
            for source in &sources {
                let generated = generate_as(stored, &file, source, None);
                assert!(!generated.ids.is_empty() || generated.stop == Some(StopReason::EndToken));
                assert!(!generated.ids.contains(&banned), "{:?}", generated.ids);
                for row in &generated.logits {
                    let most = row.iter().copied().fold(f64::MIN, f64::max);
                    assert_eq!(row[usize::from(banned)], most, "it scores highest");
                }
            }
        }
    }
}

/// A's `max_length` N returns the start token and N more; here N is the most ids that come.
#[test]
fn max_len_n_gives_at_most_n_ids() {
    let never_ends = |max_target_len| {
        let config = ModelConfig { max_target_len, ..small() };
        Weighted::new(&config, 8).favour(2, -60.0)
    };
    for n in [1, 2, 5, 14] {
        let w = never_ends(n);
        for (ids, ended) in w.greedy(&sources(w.config(), 10)) {
            assert_eq!((ids.len(), ended), (n.into(), false));
        }
    }
    let w = never_ends(14);
    for stored in PRECISIONS {
        let file = w.file(stored);
        let all = generate_as(stored, &file, &[4, 5], None).ids;
        assert_eq!(all.len(), 14);
        for n in [0, 1, 2, 5, 13, 14, 15] {
            let generated = generate_as(stored, &file, &[4, 5], Some(n));
            assert_eq!(generated.ids, all[..usize::from(n.min(14))]);
            assert_eq!(generated.stop, Some(StopReason::LengthLimit));
        }
    }
}

/// `attend` of the engine over made-up numbers of width 4, two heads.
fn attended(query_spans: &[Span], key_spans: &[Span], causal: bool) -> Vec<f32> {
    let numbers: Vec<f32> = (0..80).map(|i| ((i * 37) % 23) as f32 / 10.0 - 1.0).collect();
    let columns = |first| Columns { data: &numbers, stride: 4, first };
    let shape = Shape { query_spans, key_spans, n_heads: 2, d_k: 2, causal, mask: None };
    let rows: usize = query_spans.iter().map(|span| span.1).sum();
    let mut probs = vec![f32::NAN; shape.probs_len()];
    let mut context = vec![f32::NAN; rows * 4];
    let (q, k, v) = (columns(0), columns(4), columns(8));
    attend(q, k, v, &shape, &mut Tiles::default(), &mut probs, &mut context);
    context
}

/// In A a query whose mask hides every key attends to all of them equally, because -1e9 everywhere is a
/// constant; here it gets zeros.
#[test]
fn a_row_that_sees_nothing_gets_zeros_not_a_uniform_mixture() {
    let context = attended(&[(0, 2), (2, 3)], &[(0, 0), (0, 5)], false);
    assert_eq!(context[..8], [0.0; 8]);
    assert!(context[8..].iter().all(|v| v.is_finite() && *v != 0.0));

    // The first source is empty: whatever the encoder makes of its neighbour's padding has no effect.
    let bare = ModelConfig { source_frame: SourceFrame::Bare, ..small() };
    let w = Weighted::new(&bare, 9);
    let example = |source| Example { source, target: vec![5, 6, 7] };
    let pair = [example(vec![]), example(vec![4, 5, 6, 7])];
    let mut other = w.clone();
    for name in ["encoder.layers.1.norm2.bias", "source_embedding.weight"] {
        other.tensor_mut(name).iter_mut().for_each(|v| *v += 1.0);
    }
    let row = 4 * usize::from(bare.target_vocab);
    let [a, b] = [&w, &other].map(|w| w.candle_logits(&pair, DType::F32));
    assert_eq!(a[..row], b[..row]);
    assert_ne!(a[row..], b[row..]);
    let [a, b] = [&w, &other].map(|w| w.engine_logits(&pair));
    assert_eq!(a[..row], b[..row]);
    assert_ne!(a[row..], b[row..]);
    assert!(near(&w.engine_logits(&pair), &w.candle_logits(&pair, DType::F64), 1e-3));
}

/// A hides a target's padding by its id, so a target that begins with the pad id has a row that sees
/// nothing and therefore mixes in the future; here every position sees itself and what stands before it.
#[test]
fn a_target_that_begins_with_the_pad_id_sees_no_future() {
    let config = small();
    let w = Weighted::new(&config, 10);
    let example = |last| Example { source: vec![4, 5, 6], target: vec![0, 0, 5, last] };
    let longer = Example { source: vec![4; 9], target: vec![5; 9] };
    let row = 4 * usize::from(config.target_vocab);
    let logits = |last, dtype| w.candle_logits(&[example(last), longer.clone()], dtype);
    assert_eq!(logits(6, DType::F32)[..row], logits(7, DType::F32)[..row]);
    let [a, b] = [6, 7].map(|last| w.engine_logits(&[example(last)]));
    assert_eq!(a[..row], b[..row]);
    let naive = w.naive_logits(&[4, 5, 6], &[0, 0, 5, 6]).concat();
    assert!(near(&a, &naive, 1e-3));
    assert!(near(&logits(6, DType::F64)[..naive.len()], &naive, 1e-5));
}

/// A's -1e9 is minus infinity in half precision, where a hidden row is NaN; here padded batches, a source
/// of nothing among them, have finite logits and gradients in f16 and bf16, near those of f64.
#[test]
fn masks_are_finite_in_half_precision() {
    let bare = ModelConfig { source_frame: SourceFrame::Bare, ..small() };
    let w = Weighted::new(&bare, 11);
    let mut examples = examples(&bare);
    examples.push(Example { source: vec![], target: vec![4] });
    let exact = w.candle_logits(&examples, DType::F64);
    // Ten and seven bits of fraction through a network of some thirty sums.
    for (dtype, tolerance) in [(DType::F16, 0.1), (DType::BF16, 0.6)] {
        let logits = w.candle_logits(&examples, dtype);
        assert!(near(&logits, &exact, tolerance), "{dtype:?}");
        let slice = Slice { pairs: Pairs::pack(&examples, &bare), dropout: NO_DROPOUT };
        let options = LossOptions { smoothing: 0.1, scale: 1.0 };
        let (grads, loss) =
            w.reference(dtype).gradient(&[slice], options).expect("candle computes");
        assert!(loss.smoothed.is_finite() && grads.iter().all(|g| g.is_finite()), "{dtype:?}");
    }
}

/// In A keys of another batch size are reshaped until they fit, which mixes sentences without a word;
/// here they are refused.
#[test]
fn keys_of_another_batch_size_are_refused() {
    let spans = [(0, 2), (2, 2)];
    assert_eq!(attended(&spans, &spans, false).len(), 16);
    for (queries, keys) in [(2, 1), (1, 2), (2, 0)] {
        let refused = catch_unwind(|| attended(&spans[..queries], &spans[..keys], false));
        assert!(refused.is_err(), "{queries} sentences of queries, {keys} of keys");
    }
    let w = Weighted::new(&small(), 12);
    let packed = |n: usize, len: usize| {
        let mut packed = Packed::default();
        (0..n).for_each(|_| packed.push((0..len as u32).map(|i| 4 + i)));
        packed
    };
    for (n_sources, source_len, n_targets, target_len) in
        [(1, 4, 2, 4), (2, 4, 1, 8), (2, 2, 4, 4), (4, 4, 2, 8)]
    {
        let target = packed(n_targets, target_len);
        let labels = target.ids.clone();
        let pairs = Pairs { source: packed(n_sources, source_len), target, labels };
        assert!(w.reference(DType::F32).logits(&pairs).is_err());
        let mut workspace = Workspace::default();
        let forward = || w.network.forward(&w.params, &pairs, None, &mut workspace);
        assert!(catch_unwind(AssertUnwindSafe(forward)).is_err());
    }
}

/// A proposes to feed only the new token, without a cache and always at position 0, which gives other
/// logits; here one token with its cache gives those of the whole prefix, on the host and on a device.
#[test]
fn one_new_token_with_its_cache_equals_the_whole_prefix() {
    for config in architectures() {
        let w = Weighted::new(&config, 13).favour(2, -3.0);
        let sources = sources(&config, 12);
        // Weights of eleven bits; weights, keys and values of eight. Seen: 0.003 and 0.06, of logits
        // up to 3.
        for (stored, tolerance) in [(Stored::HalfFloat, 0.01), (Stored::FixedPoint, 0.1)] {
            let file = w.file(stored);
            let (mut proposed, mut right) = (Vec::new(), Vec::new());
            for source in &sources {
                let generated = generate_as(stored, &file, source, None);
                let target: Vec<u32> = generated.ids.iter().map(|&id| id.into()).collect();
                let whole = w.naive_steps(source, &target);
                assert!(near(&generated.logits.concat(), &whole.concat(), tolerance));
                let alone = |id| w.naive_decoder(source, &[id]).concat();
                proposed.extend(target[..whole.len() - 1].iter().copied().flat_map(alone));
                right.extend(whole[1..].concat());
            }
            // What A proposes would be noticed.
            assert!(!near(&proposed, &right, 5.0 * tolerance), "{stored:?}");
        }
    }
}
