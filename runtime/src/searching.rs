//! The other ways to choose: what a generation becomes before its first id.

use crate::beams::{BeamChoice, Beams};
use crate::budget::Cursor;
use crate::choice::{Choice, Constrained, Sampled, Scored};
use crate::error::SearchError;
use crate::generation::Generation;
use crate::precision::Precision;
use crate::search::{BeamOptions, Constraints, Sampling};
use crate::steps::Stage;

impl<'s, 'm, 'a, P: Precision> Generation<'s, 'm, 'a, P> {
    /// Greedy search that says how probable its ids are, without more memory; of labels too. Before
    /// the first id.
    pub fn scored(mut self) -> Generation<'s, 'm, 'a, P, Scored<P::Logit>> {
        if self.stage == Stage::Output {
            // Logits that were computed already are not in the sum: once more.
            self.cursor = Cursor::START;
        }
        let mut scored = Scored::new();
        Choice::<P>::begin(&mut scored, self.model());
        self.choosing(scored)
    }

    /// Greedy search among the ids that `constraints` leave, with scores. Before the first id.
    ///
    /// # Errors
    /// When the constraints are not sound, or the session was planned without beams.
    pub fn constrained<'c>(
        self,
        constraints: &Constraints<'c>,
    ) -> Result<Generation<'s, 'm, 'a, P, Constrained<'c>>, SearchError> {
        self.check_search(constraints, 1)?;
        Ok(self.choosing(Constrained::new(constraints)))
    }

    /// Draws from the ids that `constraints` leave, with scores; `random` gives 64 random bits for
    /// each, as `|| generator.next_u64()` does for a generator of `rand_core`. Before the first id.
    ///
    /// # Errors
    /// When the options are not sound, or the session was planned without beams.
    pub fn sampled<'c, R: FnMut() -> u64>(
        self,
        constraints: &Constraints<'c>,
        sampling: &Sampling,
        random: R,
    ) -> Result<Generation<'s, 'm, 'a, P, Sampled<'c, R>>, SearchError> {
        self.check_search(constraints, 1)?;
        sampling.check(self.model().config().target_vocab).map_err(SearchError::Options)?;
        Ok(self.choosing(Sampled::new(constraints, sampling, random)))
    }

    /// As [`sampled`](Self::sampled), with a generator of `rand_core`.
    ///
    /// # Errors
    /// As `sampled`.
    #[cfg(feature = "sampling")]
    pub fn sampled_with<'c, R: rand_core::Rng>(
        self,
        constraints: &Constraints<'c>,
        sampling: &Sampling,
        mut generator: R,
    ) -> Result<Generation<'s, 'm, 'a, P, Sampled<'c, impl FnMut() -> u64>>, SearchError> {
        self.sampled(constraints, sampling, move || generator.next_u64())
    }

    /// The outputs of the highest score, under `constraints`. Before the first id.
    ///
    /// ```
    /// # use runtime::{FixedModel, Limits, Session, search::{BeamOptions, Constraints}};
    /// # fn translate(model: &FixedModel<'_>, arena: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// let limits = Limits::of(model.model().config()).with_beams(4);
    /// let mut session = Session::with_limits(model, arena, limits)?;
    /// let options = BeamOptions { beams: 4, n_best: 2, ..BeamOptions::default() };
    /// let generation = session.generate_text("kilobyte", &Default::default())?;
    /// let mut beams = generation.beams(&Constraints::default(), &options)?;
    /// beams.run();
    /// let mut buffer = [0; 64];
    /// for index in 0..beams.hypotheses().len() {
    ///     println!("{}", beams.write_into(index, &mut buffer)?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the options are not sound, or ask for more beams than the session was planned with.
    pub fn beams<'c>(
        self,
        constraints: &Constraints<'c>,
        options: &BeamOptions,
    ) -> Result<Beams<'s, 'm, 'a, 'c, P>, SearchError> {
        options.check().map_err(SearchError::Options)?;
        self.check_search(constraints, options.beams)?;
        let generation = self.choosing(BeamChoice::new(constraints, options));
        Ok(Beams { generation })
    }

    fn check_search(&self, constraints: &Constraints<'_>, beams: u16) -> Result<(), SearchError> {
        let (config, planned) = (self.model().config(), self.session.plan.limits.beams);
        if beams > planned {
            return Err(SearchError::TooFewBeams { needed: beams, planned });
        }
        if self.position > 0 || self.stage == Stage::Output {
            return Err(SearchError::Begun);
        }
        let max_len = self.max_len.saturating_sub(self.forced_len);
        let check = constraints.check(config.target_vocab, &config.special, max_len);
        check.map_err(SearchError::Options)
    }
}
