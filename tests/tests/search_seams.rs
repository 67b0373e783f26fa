//! Where a search meets what was forced, what it may not say, and what it is asked for half-way.

use kiloformer_tests::random_model::{Random, random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::Precision as Stored;
use runtime::search::{BeamOptions, Constraints, Probability, Sampling};
use runtime::{
    FixedModel, FixedPoint, GenerateOptions, Limits, Poll, Session, StopReason, TokenId,
    arena_len_with, q16,
};

const BEAMS: u16 = 3;
const PREFIX: GenerateOptions<'static> = GenerateOptions { max_len: None, prefix: &[5, 6] };

/// Calls `test` with a session of a random model.
fn with_session(test: impl FnOnce(&mut Session<'_, '_, FixedPoint>)) {
    let file = random_model(Stored::FixedPoint, &tiny(), 1);
    let model = FixedModel::from_bytes(&file).expect("a sound model");
    let limits = Limits::of(model.model().config()).with_beams(BEAMS);
    let len = arena_len_with(&file, limits).expect("a sound model");
    let mut arena = AlignedBytes::filled(0, len);
    test(&mut Session::with_limits(&model, &mut arena, limits).expect("exact size"));
}

/// All outputs of a beam search, looked at between any two polls or at the end only.
fn beams(session: &mut Session<'_, '_, FixedPoint>, peek: bool) -> Vec<Vec<TokenId>> {
    let constraints = Constraints { no_repeat_ngram: Some(1), ..Constraints::default() };
    let options = BeamOptions { beams: BEAMS, n_best: BEAMS, ..BeamOptions::default() };
    let budget = session.smallest_budget();
    let generation = session.generate_text("queen", &PREFIX).expect("a text");
    let mut beams = generation.beams(&constraints, &options).expect("sound options");
    while beams.poll(budget).expect("enough") == Poll::Pending {
        if peek {
            let found = beams.hypotheses().len();
            (0..found).for_each(|index| assert!(beams.ids(index).len() < 20));
        }
    }
    (0..beams.hypotheses().len()).map(|index| beams.ids(index).to_vec()).collect()
}

#[test]
fn looking_at_a_search_does_not_change_it() {
    with_session(|session| {
        let undisturbed = beams(session, false);
        assert_eq!(undisturbed.len(), usize::from(BEAMS));
        assert!(undisturbed.iter().flatten().all(|id| ![5, 6].contains(id)), "{undisturbed:?}");
        assert_eq!(beams(session, true), undisturbed);
    });
}

#[test]
fn where_nothing_is_allowed_there_is_no_output_and_no_confidence() {
    with_session(|session| {
        // The only output repeats an id, which is not allowed either.
        let allowed: [&[TokenId]; 1] = [&[7, 8, 7]];
        let allowed = Some(&allowed[..]);
        let constraints =
            Constraints { allowed, no_repeat_ngram: Some(1), ..Constraints::default() };
        let free = GenerateOptions::default();
        let generation = session.generate_text("queen", &free).expect("a text");
        let mut generation = generation.constrained(&constraints).expect("sound options");
        assert_eq!(generation.by_ref().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(generation.stop_reason(), Some(StopReason::NothingAllowed));
        assert_eq!(generation.choice().score().confidence(), Probability::from_bits(0));

        let generation = session.generate_text("queen", &free).expect("a text");
        let drawn = generation.sampled(&constraints, &Sampling::default(), || 1);
        assert_eq!(drawn.expect("sound options").collect::<Vec<_>>(), [7, 8]);
        assert_eq!(session.last_stop(), Some(StopReason::NothingAllowed));

        let generation = session.generate_text("queen", &free).expect("a text");
        let options = BeamOptions { beams: BEAMS, ..BeamOptions::default() };
        let mut beams = generation.beams(&constraints, &options).expect("sound options");
        assert_eq!(beams.run(), StopReason::NothingAllowed);
        assert!(beams.hypotheses().is_empty());
    });
}

#[test]
fn lengths_and_allowed_outputs_are_about_what_follows_a_prefix() {
    with_session(|session| {
        let mut follow = |constraints: &Constraints<'_>, options: &GenerateOptions<'static>| {
            let generation = session.generate_text("queen", options).expect("a text");
            let ids: Vec<TokenId> =
                generation.constrained(constraints).expect("sound options").collect();
            (ids, session.last_stop())
        };
        let allowed: [&[TokenId]; 1] = [&[9, 10]];
        let constraints = Constraints { allowed: Some(&allowed), ..Constraints::default() };
        assert_eq!(follow(&constraints, &PREFIX), (vec![9, 10], Some(StopReason::EndToken)));
        // Six ids with the end, of which the prefix is none.
        let constraints = Constraints { min_len: 6, ..Constraints::default() };
        assert!(follow(&constraints, &PREFIX).0.len() >= 5);
        let six = GenerateOptions { max_len: Some(6), ..PREFIX };
        assert!((5..=6).contains(&follow(&constraints, &six).0.len()));
    });
}

#[test]
fn scores_asked_for_half_way_are_those_asked_for_at_once() {
    with_session(|session| {
        let free = GenerateOptions::default();
        let at_once = {
            let mut generation = session.generate_text("queen", &free).expect("a text").scored();
            let ids: Vec<TokenId> = generation.by_ref().collect();
            (ids, generation.choice().score())
        };
        let budget = session.smallest_budget();
        for polls in 1.. {
            let mut generation = session.generate_text("queen", &free).expect("a text");
            let is_pending = |_| generation.poll(budget).expect("enough") == Poll::Pending;
            if !(0..polls).all(is_pending) {
                assert!(polls > 10, "all stages before the first id were tried");
                break;
            }
            let mut generation = generation.scored();
            let ids: Vec<TokenId> = generation.by_ref().collect();
            assert_eq!((ids, generation.choice().score()), at_once, "after {polls} polls");
        }
    });
}

#[test]
fn a_generator_of_rand_core_gives_the_random_bits() {
    struct Generator(Random);
    impl rand_core::TryRng for Generator {
        type Error = core::convert::Infallible;
        fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
            self.try_next_u64().map(|bits| bits as u32)
        }
        fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
            Ok(self.0.bits())
        }
        fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
            bytes.fill_with(|| self.0.bits() as u8);
            Ok(())
        }
    }
    let sampling = Sampling { temperature: q16!(2.0), ..Sampling::default() };
    let (free, constraints) = (GenerateOptions::default(), Constraints::default());
    with_session(|session| {
        for seed in 0..5 {
            let mut bits = Random(seed);
            let generation = session.generate_text("queen", &free).expect("a text");
            let drawn = generation.sampled(&constraints, &sampling, || bits.bits());
            let drawn: Vec<TokenId> = drawn.expect("sound options").collect();
            let mut generator = Generator(Random(seed));
            let generation = session.generate_text("queen", &free).expect("a text");
            let again = generation.sampled_with(&constraints, &sampling, &mut generator);
            assert_eq!(again.expect("sound options").collect::<Vec<_>>(), drawn);
        }
    });
}
