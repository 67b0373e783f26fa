//! B, the teaching version.

use candle_core::DType;
use trainer::data::batch::{Example, Packed, Pairs};
use trainer::engine::{LossOptions, LossSum, Workspace};
use trainer::workers::Slice;

use super::networks::{NO_DROPOUT, Weighted, architectures, examples, near, small};

/// Loss and gradient of candle over one padded batch.
fn padded(w: &Weighted, pairs: Pairs, options: LossOptions) -> (Vec<f32>, LossSum) {
    let slice = Slice { pairs, dropout: NO_DROPOUT };
    w.reference(DType::F64).gradient(&[slice], options).expect("candle computes")
}

/// Loss and gradient of the engine.
fn packed(w: &Weighted, pairs: &Pairs, options: LossOptions) -> (Vec<f32>, LossSum) {
    let mut workspace = Workspace::default();
    let mut grads = vec![0.0; w.params.len()];
    w.network.forward(&w.params, pairs, None, &mut workspace);
    let loss = w.network.loss(pairs, options, &mut workspace);
    w.network.backward(&w.params, pairs, None, &mut grads, &mut workspace);
    (grads, loss)
}

/// B trains without a mask over the source, so what a sentence teaches depends on how much padding its
/// neighbours give it; here a padded batch teaches what its sentences teach alone.
#[test]
fn padding_of_a_longer_neighbour_changes_no_gradient() {
    let options = LossOptions { smoothing: 0.1, scale: 1.0 };
    for config in architectures() {
        let w = Weighted::new(&config, 3);
        let (mut alone, mut loss) = (vec![0.0; w.params.len()], LossSum::default());
        for example in &examples(&config) {
            let (grads, sum) = padded(&w, Pairs::pack([example], &config), options);
            alone.iter_mut().zip(grads).for_each(|(a, g)| *a += g);
            loss += sum;
        }
        let pairs = Pairs::pack(&examples(&config), &config);
        let (engine, engine_loss) = packed(&w, &pairs, options);
        let (together, together_loss) = padded(&w, pairs, options);
        assert!(
            (together_loss.smoothed - loss.smoothed).abs() < 1e-9,
            "{together_loss:?} {loss:?}"
        );
        assert!((engine_loss.smoothed - loss.smoothed).abs() < 1e-3, "{engine_loss:?} {loss:?}");
        let largest = alone.iter().fold(0.0, |m: f32, g| m.max(g.abs()));
        assert!(largest > 1.0, "{largest}");
        // candle in f64 rounds the gradient of each sentence to f32; the engine computes in f32.
        assert!(near(&together, &alone, f64::from(largest) * 1e-6));
        assert!(near(&engine, &alone, f64::from(largest) * 1e-4));
    }
}

/// B's decoder sees the future unless its caller passes a mask; here nobody can leave it out.
#[test]
fn no_target_mask_is_still_causal() {
    for config in architectures() {
        let w = Weighted::new(&config, 4);
        let vocab = usize::from(config.target_vocab);
        let before = examples(&config)[3].clone();
        let mut after = before.clone();
        after.target[6] = if before.target[6] == 4 { 5 } else { 4 };
        // Position 7 is the first that reads the changed symbol.
        let past = ..7 * vocab;
        let [a, b] = [&before, &after].map(|e| w.engine_logits(std::slice::from_ref(e)));
        assert_eq!(a[past], b[past]);
        assert_ne!(a[7 * vocab..], b[7 * vocab..]);
        let [a, b] =
            [&before, &after].map(|e| w.candle_logits(std::slice::from_ref(e), DType::F32));
        assert_eq!(a[past], b[past]);
        assert_ne!(a[7 * vocab..], b[7 * vocab..]);
    }
}

/// B divides by the number of target tokens, so a target of nothing but padding gives NaN; here a target
/// without symbols costs its end id, and a batch without any label costs nothing.
#[test]
fn an_empty_target_gives_a_finite_loss() {
    let config = small();
    let w = Weighted::new(&config, 5);
    let empty = Example { source: vec![4, 5], target: vec![] };
    let nothing = Pairs {
        source: Packed { ids: vec![4, 2], spans: vec![(0, 2)] },
        target: Packed { ids: vec![], spans: vec![(0, 0)] },
        labels: vec![],
    };
    let cases = [(Pairs::pack([&empty], &config), 1), (nothing, 0)];
    for (pairs, tokens) in cases {
        let options = LossOptions { smoothing: 0.1, scale: 1.0 };
        let results = [packed(&w, &pairs, options), padded(&w, pairs, options)];
        for (grads, loss) in results {
            assert_eq!(loss.tokens, tokens);
            assert!(loss.smoothed_mean().is_finite() && loss.nll_mean().is_finite(), "{loss:?}");
            assert_eq!(loss.smoothed > 0.0, tokens > 0, "{loss:?}");
            assert!(grads.iter().all(|g| g.is_finite()));
            assert_eq!(grads.iter().any(|&g| g != 0.0), tokens > 0);
        }
    }
}

/// B spreads the mass of label smoothing over all ids, padding too, and so teaches the model to pad; here
/// padding's share is zero: its logit is pushed down by all of its probability.
#[test]
fn label_smoothing_gives_no_mass_to_padding() {
    let config = small();
    let w = Weighted::new(&config, 6);
    let pairs = Pairs::pack(&examples(&config), &config);
    let options = LossOptions { smoothing: 0.3, scale: 1.0 };
    let vocab = usize::from(config.target_vocab);
    let mut workspace = Workspace::default();
    w.network.forward(&w.params, &pairs, None, &mut workspace);
    let logits: Vec<f64> = workspace.logits.iter().map(|&x| x.into()).collect();
    let engine = w.network.loss(&pairs, options, &mut workspace);
    let mut expected = 0.0;
    let rows = logits.chunks_exact(vocab).zip(workspace.logits.chunks_exact(vocab));
    for ((logits, gradient), &label) in rows.zip(&pairs.labels) {
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        for (id, (x, &gradient)) in logits.iter().zip(gradient).enumerate() {
            let share = if id == 0 { 0.0 } else { 0.3 / (vocab - 1) as f64 };
            let wanted = share + if id == label as usize { 0.7 } else { 0.0 };
            let p = x.exp() / sum;
            expected -= wanted * p.ln();
            assert!((f64::from(gradient) - (p - wanted)).abs() < 1e-5, "id {id}");
        }
    }
    assert!((engine.smoothed - expected).abs() < 1e-3, "{} {expected}", engine.smoothed);
    let (_, candle) = padded(&w, pairs, options);
    assert!((candle.smoothed - expected).abs() < 1e-3, "{} {expected}", candle.smoothed);
}
