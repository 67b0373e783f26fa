//! Bounded pieces: never more work than the budget, and always the same answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kiloformer_tests::random_model::{of_family, random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::{
    Family, ModelConfig, NormPlace, Output, Positions, Precision as Stored, StackConfig,
};
use runtime::{
    BudgetTooSmall, FixedPoint, GenerateOptions, HalfFloat, LogitsHash, Poll, Precision, Session,
    StopReason, TokenId, TypedModel, arena_len, macs,
};

/// The count of multiply-accumulates is one for the whole program.
fn alone() -> MutexGuard<'static, ()> {
    static COUNTER: Mutex<()> = Mutex::new(());
    COUNTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In each, another part has the largest unit.
fn models() -> Vec<ModelConfig> {
    let stack = |n_layers, n_heads, d_ff| StackConfig { n_layers, n_heads, d_ff };
    let shape = |d_model, encoder, decoder, source, target| ModelConfig {
        d_model,
        encoder,
        decoder,
        max_source_len: source,
        max_target_len: target,
        ..tiny()
    };
    let shapes = [
        shape(15, stack(2, 5, 13), stack(2, 3, 9), 12, 12),
        shape(18, stack(2, 3, 70), stack(1, 2, 19), 9, 7),
        shape(22, stack(1, 11, 7), stack(3, 2, 141), 5, 12),
        shape(2, stack(1, 1, 1), stack(1, 2, 1), 30, 40),
    ];
    let mut models = Vec::new();
    for (turn, shape) in shapes.into_iter().enumerate() {
        let shape = ModelConfig {
            positions: [Positions::Learned, Positions::SinusoidalHalves][turn % 2],
            norm: [NormPlace::Pre, NormPlace::Post][turn / 2],
            final_norm: turn % 2 == 0,
            output: [Output::TiedBias, Output::Untied][turn % 2],
            ..shape
        };
        let families =
            [Family::EncoderDecoder, Family::DecoderOnly, Family::Tagger, Family::Classifier];
        models.extend(families.map(|family| of_family(family, &shape)));
    }
    models
}

fn for_each_model(test: impl Fn(Stored, &AlignedBytes)) {
    for (seed, config) in models().iter().enumerate() {
        for precision in [Stored::FixedPoint, Stored::HalfFloat] {
            test(precision, &random_model(precision, config, seed as u64));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    ids: Vec<TokenId>,
    hash: LogitsHash,
    stop: Option<StopReason>,
    macs: u64,
}

fn run_through<P: Precision>(session: &mut Session<'_, '_, P>, text: &str) -> Outcome {
    macs::take();
    let mut hash = LogitsHash::default();
    let mut generation = session.generate_text(text, &GenerateOptions::default()).expect("a text");
    let mut ids = Vec::new();
    while let Some(id) = generation.next_observed(|_, logit| hash.push(logit)) {
        ids.push(id);
    }
    Outcome { ids, hash, stop: generation.stop_reason(), macs: macs::take() }
}

/// Polls to the end; the outcome, and the most that one poll did.
fn run_polled<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    budget: u32,
) -> (Outcome, u64) {
    macs::take();
    let mut hash = LogitsHash::default();
    let mut generation = session.generate_text(text, &GenerateOptions::default()).expect("a text");
    assert_eq!(macs::take(), 0, "nothing is computed before the first poll");
    let (mut ids, mut total, mut most) = (Vec::new(), 0, 0);
    let stop = loop {
        let poll = generation.poll_observed(budget, |_, logit| hash.push(logit));
        let macs = macs::take();
        assert!(macs <= budget.into(), "{macs} of {budget}");
        (total, most) = (total + macs, most.max(macs));
        match poll.expect("a budget that is large enough") {
            Poll::Pending => assert!(macs > 0, "every poll gets on"),
            Poll::Token(id) => ids.push(id),
            Poll::Done(reason) => break reason,
        }
    };
    assert_eq!(generation.poll(budget), Ok(Poll::Done(stop)), "the end stays the end");
    (Outcome { ids, hash, stop: Some(stop), macs: total }, most)
}

fn budgets_change_nothing<P: Precision>(file: &AlignedBytes) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = AlignedBytes::filled(0xA5, arena_len(file));
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let smallest = session.smallest_budget();
    for text in ["a", "cab", "fork"] {
        let expected = run_through(&mut session, text);
        for budget in [smallest, smallest + 1, smallest * 3 / 2, smallest * 7, u32::MAX] {
            let (polled, _) = run_polled(&mut session, text, budget);
            assert_eq!(polled, expected, "{budget} of {smallest}");
        }
    }
}

#[test]
fn no_poll_exceeds_its_budget_and_no_budget_changes_the_answer() {
    let _alone = alone();
    for_each_model(|precision, file| match precision {
        Stored::FixedPoint => budgets_change_nothing::<FixedPoint>(file),
        Stored::HalfFloat => budgets_change_nothing::<HalfFloat>(file),
    });
}

fn smallest_budget_is_the_largest_unit<P: Precision>(file: &AlignedBytes) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = AlignedBytes::filled(0, arena_len(file));
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let needed = session.smallest_budget();
    assert_eq!(needed, model.plan().smallest_budget(model.model().header()));
    let longest = match model.model().config().has_encoder() {
        true => session.limits().source_len - model.model().config().source_frame.len(),
        false => session.limits().target_len - 1,
    };
    let text = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
    let text = &text[..longest.into()];
    let (outcome, most) = run_polled(&mut session, text, needed);
    let is_long = outcome.stop != Some(StopReason::EndToken);
    assert!(most == needed.into() || !is_long, "{most} of {needed}");

    let given = needed - 1;
    let mut generation = session.generate_text(text, &GenerateOptions::default()).expect("a text");
    assert_eq!(generation.poll(given), Err(BudgetTooSmall { needed, given }));
    assert_eq!(generation.poll(0), Err(BudgetTooSmall { needed, given: 0 }));
    assert!(generation.eq(outcome.ids), "a refused budget has done nothing");
}

#[test]
fn the_smallest_budget_is_that_of_the_largest_unit_and_less_is_refused() {
    let _alone = alone();
    for_each_model(|precision, file| match precision {
        Stored::FixedPoint => smallest_budget_is_the_largest_unit::<FixedPoint>(file),
        Stored::HalfFloat => smallest_budget_is_the_largest_unit::<HalfFloat>(file),
    });
}

#[test]
fn polling_and_running_through_may_be_mixed_and_left_at_any_point() {
    let _alone = alone();
    let file = random_model(Stored::FixedPoint, &tiny(), 1);
    let model = TypedModel::<FixedPoint>::from_bytes(&file).expect("a sound model");
    let mut memory = AlignedBytes::filled(0, arena_len(&file));
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let smallest = session.smallest_budget();
    let expected = run_through(&mut session, "queen").ids;
    let options = GenerateOptions::default();
    for pieces in 0..400 {
        let mut generation = session.generate_text("queen", &options).expect("a text");
        let mut ids = Vec::new();
        for _ in 0..pieces {
            if let Poll::Token(id) = generation.poll(smallest).expect("enough") {
                ids.push(id);
            }
        }
        if pieces % 2 == 0 {
            ids.extend(generation);
            assert_eq!(ids, expected, "after {pieces} pieces");
        } else if generation.stop_reason().is_none() {
            generation.cancel();
            assert_eq!(generation.poll(smallest), Ok(Poll::Done(StopReason::Cancelled)));
            assert_eq!(generation.next(), None);
        }
    }
}
