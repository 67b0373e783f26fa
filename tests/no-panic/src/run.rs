//! `runtime`: models of both kinds, sessions, generations.

use model_format::{Model, header::Header};
use runtime::{
    ARENA_ALIGN, Checks, FixedModel, GenerateOptions, Generation, HalfModel, Limits, LogitsHash,
    MAX_SYMBOL_LEN, Plan, Poll, Precision, Session, StaticArena, TypedModel, arena_len_with,
    kernels::{dot, dot4, reference},
    search::{BeamOptions, Constraints, Q16, Sampling},
};

use crate::opaque::{any, bytes, print, sink};
use crate::search::Constant;

static ARENA: StaticArena<64> = StaticArena::new();

/// Everything a caller can do with the bytes of a file and some memory.
pub fn probe(file: &'static [u8]) {
    let Some(arena) = ARENA.take() else { return };
    plans(file);
    kernels();
    for checks in [Checks::Full, Checks::SkipCrc, Checks::Structure] {
        match FixedModel::from_bytes_with(file, any(checks)) {
            Ok(model) => sessions(&model, any(&mut arena[..]), any("word")),
            Err(error) => print(&error),
        }
        match HalfModel::from_bytes_with(file, any(checks)) {
            Ok(model) => sessions(&model, any(&mut arena[..]), any("word")),
            Err(error) => print(&error),
        }
    }
    sink((FixedModel::from_bytes(file).is_ok(), HalfModel::from_bytes(file).is_ok()));
    if let Ok(model) = Model::from_bytes(file) {
        sink((FixedModel::new(model).is_ok(), HalfModel::new(model).is_ok()));
    }
}

fn plans(file: &[u8]) {
    let limits = Limits { source_len: any(3), target_len: any(4), beams: any(2) };
    match arena_len_with(file, limits) {
        Ok(len) => sink(len),
        Err(error) => print(&error),
    }
    if let Ok(header) = Header::read(file) {
        sink((Plan::new(&header, limits), Plan::of(&header), Limits::of(&header.config)));
    }
    sink(any(ARENA_ALIGN + MAX_SYMBOL_LEN));
}

fn kernels() {
    let (w, x) = (any(&[1_i8, 2, 3][..]), any(&[1_i16, 2, 3][..]));
    sink((dot(w, x), dot4([w; 4], x), reference::dot4([any(w); 4], x)));
}

fn sessions<P: Precision>(model: &TypedModel<'_, P>, arena: &mut [u8], text: &str) {
    sink((model.plan(), model.model().file_len()));
    let limits = Limits { source_len: any(3), target_len: any(4), beams: any(2) };
    match Session::with_limits(model, arena, limits) {
        Ok(mut session) => texts(&mut session, text),
        Err(error) => print(&error),
    }
    match Session::new(model, arena) {
        Ok(mut session) => texts(&mut session, text),
        Err(error) => print(&error),
    }
}

fn texts<P: Precision>(session: &mut Session<'_, '_, P>, text: &str) {
    sink((session.arena_len(), session.limits(), session.smallest_budget()));
    let buffer = &mut [0; 32];
    let mut hash = LogitsHash::default();
    match session.run_into(text, any(&mut buffer[..])) {
        Ok(answer) => sink(answer),
        Err(error) => print(&error),
    }
    match session.run_observed(text, any(&mut buffer[..]), |_, logit| hash.push(logit)) {
        Ok(answer) => sink(answer),
        Err(error) => print(&error),
    }
    match session.run::<24>(text) {
        Ok(answer) => sink(answer.len()),
        Err(error) => print(&error),
    }
    sink((hash.value(), session.last_stop()));
    let ids = any(&[4_u16, 5, 2][..]);
    let options = GenerateOptions { max_len: Some(any(3)), prefix: any(&[4, 5]) };
    for options in [GenerateOptions::default(), options] {
        match session.generate(ids, &options) {
            Ok(generation) => steps(generation),
            Err(error) => print(&error),
        }
        match session.generate_text(text, &options) {
            Ok(generation) => polls(generation),
            Err(error) => print(&error),
        }
        searches(session, text, &options);
    }
}

fn steps<P: Precision>(mut generation: Generation<'_, '_, '_, P>) {
    let mut hash = LogitsHash::default();
    while let Some(id) = generation.next() {
        sink((id, generation.next_observed(|_, logit| hash.push(logit))));
        sink(generation.next_aligned(|_, logit| hash.push(logit), |attention| sink(attention)));
        if any(false) {
            generation.cancel();
        }
    }
    sink((generation.stop_reason(), generation.count()));
}

fn polls<P: Precision>(mut generation: Generation<'_, '_, '_, P>) {
    let mut hash = LogitsHash::default();
    loop {
        match generation.poll(any(9)) {
            Ok(Poll::Done(reason)) => return sink(reason),
            Ok(poll) => sink(poll),
            Err(error) => print(&error),
        }
        sink(generation.poll_observed(any(8), |_, logit| hash.push(logit)).is_ok());
        sink(
            generation.poll_aligned(any(7), |id, _| sink(id), |attention| sink(attention)).is_ok(),
        );
    }
}

fn searches<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    options: &GenerateOptions<'_>,
) {
    let constraints = any(Constraints {
        min_len: any(1),
        suppressed: any(&[3]),
        repetition_penalty: any(Q16::ONE),
        no_repeat_ngram: any(Some(2)),
        allowed: any(Some(&[&[4, 5], &[5]])),
    });
    if let Ok(mut generation) = session.generate_text(text, options).map(Generation::scored) {
        while let Some(id) = generation.next() {
            sink((id, generation.choice().last(), generation.choice().score().confidence()));
        }
    }
    if let Ok(generation) = session.generate_text(text, options) {
        match generation.constrained(&constraints) {
            Ok(mut generation) => {
                sink((generation.next(), generation.choice().score()));
                sink(generation.write_into(any(&mut [0; 8][..])).is_ok());
            }
            Err(error) => print(&error),
        }
    }
    if let Ok(generation) = session.generate_text(text, options) {
        let sampling = any(Sampling { top_k: any(Some(3)), ..Sampling::default() });
        if let Ok(generation) = generation.sampled_with(&constraints, &sampling, Constant(any(7))) {
            sink(generation.count());
        }
    }
    if let Ok(generation) = session.generate_text(text, options)
        && let Ok(mut search) = generation.beams(&constraints, &any(BeamOptions::default()))
    {
        sink((search.poll(any(9)), search.run(), search.stop_reason()));
        sink((search.hypotheses().len(), search.ids(any(1)).len()));
        match search.write_into(any(0), any(&mut [0; 8][..])) {
            Ok(text) => sink(text),
            Err(error) => print(&error),
        }
        search.cancel();
    }
}

/// Stands for the application's critical section.
struct Nothing;
critical_section::set_impl!(Nothing);

// SAFETY: nothing runs: the program is linked only.
unsafe impl critical_section::Impl for Nothing {
    unsafe fn acquire() -> bool {
        any(false)
    }

    unsafe fn release(state: bool) {
        sink((state, bytes()));
    }
}
