//! Which operator spends how much. The layers say where an operator begins and ends; with feature
//! `profile` a function of the caller's counts what lies between.

/// What a model's work is divided into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// All that no other one is.
    #[cfg(feature = "profile")]
    Other,
    /// Look-ups of tokens, positions added.
    Embedding,
    /// The next position's sines and cosines.
    Positions,
    /// LayerNorm.
    LayerNorm,
    /// Activations made ready for products, wherever that is.
    Input,
    /// Queries.
    Query,
    /// Keys, those of cross-attention too.
    Key,
    /// Values, likewise.
    Value,
    /// Products of queries and keys.
    Scores,
    /// softmax.
    Softmax,
    /// Products of probabilities and values.
    Context,
    /// Attention's output projections.
    Output,
    /// First layers of feed-forward, with the activation.
    FeedForward1,
    /// Second layers of feed-forward.
    FeedForward2,
    /// Logits, and the choice of a token.
    Logits,
}

/// Which stack an operator works for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Per source token; keys and values of cross-attention included.
    Encoder,
    /// Per target token.
    Decoder,
}

#[cfg(feature = "profile")]
pub use counted::{Spent, run, side, start, take};

/// Does `work`, which is `operator`'s.
#[cfg(not(feature = "profile"))]
#[inline(always)]
pub fn run<R>(_operator: Operator, work: impl FnOnce() -> R) -> R {
    work()
}

/// What follows is this stack's.
#[cfg(not(feature = "profile"))]
#[inline(always)]
pub fn side(_side: Side) {}

#[cfg(feature = "profile")]
mod counted {
    use core::cell::RefCell;

    use critical_section::Mutex;

    use super::{Operator, Side};

    const OPERATORS: usize = Operator::Logits as usize + 1;

    /// What an operator has spent.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Spent {
        /// In units of the counter, modulo 2^32.
        pub count: u32,
        /// How often it began.
        pub begun: u32,
        /// How often another one began inside it.
        pub inner: u32,
    }

    struct Profile {
        counter: fn() -> u32,
        /// When the current operator began or went on.
        since: u32,
        current: Operator,
        side: Side,
        spent: [[Spent; OPERATORS]; 2],
    }

    static PROFILE: Mutex<RefCell<Profile>> = Mutex::new(RefCell::new(Profile {
        counter: || 0,
        since: 0,
        current: Operator::Other,
        side: Side::Encoder,
        spent: [[Spent { count: 0, begun: 0, inner: 0 }; OPERATORS]; 2],
    }));

    fn with<R: Default>(work: impl FnOnce(&mut Profile) -> R) -> R {
        critical_section::with(|section| match PROFILE.borrow(section).try_borrow_mut() {
            Ok(mut profile) => work(&mut profile),
            Err(_) => R::default(),
        })
    }

    /// Begins anew; `counter` is read at every boundary, outside of critical sections.
    pub fn start(counter: fn() -> u32) {
        let since = counter();
        with(|profile| {
            profile.counter = counter;
            profile.since = since;
            profile.current = Operator::Other;
            profile.spent = Default::default();
        });
    }

    /// What was spent since [`start`], by stack and operator; all of it is forgotten.
    pub fn take() -> [[Spent; OPERATORS]; 2] {
        switch(Operator::Other);
        with(|profile| core::mem::take(&mut profile.spent))
    }

    /// Does `work`, which is `operator`'s.
    #[inline(always)]
    pub fn run<R>(operator: Operator, work: impl FnOnce() -> R) -> R {
        let outer = enter(operator);
        let result = work();
        switch(outer);
        result
    }

    /// What follows is this stack's.
    pub fn side(side: Side) {
        switch(Operator::Other);
        with(|profile| profile.side = side);
    }

    #[inline(never)]
    fn enter(operator: Operator) -> Operator {
        let outer = switch(operator);
        with(|profile| {
            profile.at(operator).begun += 1;
            profile.at(outer).inner += 1;
        });
        outer
    }

    /// `to` works from now on; who did before.
    #[inline(never)]
    fn switch(to: Operator) -> Operator {
        let mut counter: fn() -> u32 = || 0;
        with(|profile| counter = profile.counter);
        let now = counter();
        let mut from = to;
        with(|profile| {
            from = profile.current;
            let elapsed = now.wrapping_sub(profile.since);
            let spent = profile.at(from);
            spent.count = spent.count.wrapping_add(elapsed);
            profile.since = now;
            profile.current = to;
        });
        from
    }

    impl Profile {
        fn at(&mut self, operator: Operator) -> &mut Spent {
            let [encoder, decoder] = &mut self.spent;
            let side = match self.side {
                Side::Encoder => encoder,
                Side::Decoder => decoder,
            };
            let last = OPERATORS - 1;
            &mut side[(operator as usize).min(last)]
        }
    }
}
