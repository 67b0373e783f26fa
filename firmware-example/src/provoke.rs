//! Every way to fail that a sound model in flash leaves open, provoked on purpose: each says its line,
//! and the stack is watched.

use embedded_io::{Read, Write};
use runtime::model_format::header::{BLOCK_LEN, BLOCK_OFFSET};
use runtime::{Checks, GenerateOptions, RunError, Session, StopReason, TypedModel};

use crate::{
    console::Console,
    explain::explain,
    speller::{Arithmetic, Failure, HEADER, LETTER_LIMIT, MODEL, Model, OtherArithmetic, Speller},
    stack,
};

/// The start of a file, damaged.
#[repr(align(16))]
struct Start([u8; START_LEN + 1]);

const START_LEN: usize = BLOCK_OFFSET + BLOCK_LEN;
/// Offsets of the version and of two fields of the configuration: precision, and width.
const DAMAGED: [usize; 3] = [4, 6, 22];

/// The start of the model with one byte set to 255.
const fn damaged(at: usize) -> Start {
    let mut bytes = [0; START_LEN + 1];
    let mut i = 0;
    while i < START_LEN {
        bytes[i] = MODEL[i];
        i += 1;
    }
    bytes[at] = 0xff;
    Start(bytes)
}

/// As [`damaged`], one byte away from its alignment.
const fn misaligned() -> Start {
    let mut bytes = [0; START_LEN + 1];
    let mut i = 0;
    while i < START_LEN {
        bytes[i + 1] = MODEL[i];
        i += 1;
    }
    Start(bytes)
}

static DAMAGED_STARTS: [Start; 3] = [damaged(DAMAGED[0]), damaged(DAMAGED[1]), damaged(DAMAGED[2])];
static MISALIGNED: Start = misaligned();

/// Provokes them all.
pub fn provoke<S: Read + Write>(console: &mut Console<S>, model: &Model, speller: &mut Speller) {
    loads(console);
    memory(console, model);
    words(console, speller);
    ids(console, speller);
}

fn loads<S: Read + Write>(console: &mut Console<S>) {
    let cuts = [0, START_LEN, MODEL.len() / 2, MODEL.len() - 1].map(|len| MODEL.get(..len));
    let starts = DAMAGED_STARTS.each_ref().map(|start| start.0.get(..START_LEN));
    let rest = [MODEL.get(16..), MISALIGNED.0.get(1..)];
    for file in cuts.into_iter().chain(starts).chain(rest) {
        let load = || Model::from_bytes(file.unwrap_or_default()).err();
        fail(console, stack::watch(load).map(Failure::Load));
    }
    let other = || TypedModel::<OtherArithmetic>::from_bytes_with(MODEL, Checks::Structure).err();
    fail(console, stack::watch(other).map(Failure::Load));
}

fn memory<S: Read + Write>(console: &mut Console<S>, model: &Model) {
    #[repr(align(16))]
    struct Aligned([u8; 16]);
    let mut memory = Aligned([0; 16]);
    let arena = || Session::<Arithmetic>::new(model, &mut memory.0).err();
    fail(console, stack::watch(arena).map(Failure::Arena));
}

fn words<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller) {
    let letters: [u8; LETTER_LIMIT + 1] = core::array::from_fn(|i| b'a' + (i % 26) as u8);
    let letters = core::str::from_utf8(&letters).unwrap_or_default();
    for word in ["", "route66", "\u{1f680}", letters] {
        fail(console, stack::watch(|| speller.spell(word).err()));
    }
    let longest = letters.get(1..).unwrap_or_default();
    match stack::watch(|| speller.spell(longest)) {
        // No buffer is too small for an empty answer.
        Ok("") => console.text("the longest word has an empty answer").end_line(),
        Ok(_) => {
            let full = || speller.session().run_into(longest, &mut []).err();
            fail(console, stack::watch(full).map(Failure::Run));
        }
        Err(failure) => explain(console, failure),
    }
}

fn ids<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller) {
    let end = HEADER.config.special.end;
    let options = GenerateOptions { max_len: Some(1), prefix: &[] };
    let (one, too_many) = ([end], [end; LETTER_LIMIT + 2]);
    for ids in [&[][..], &[end, u16::MAX], &too_many] {
        let generate = || speller.session().generate(ids, &options).err();
        fail(console, stack::watch(generate).map(Failure::Run));
    }
    let stops = stack::watch(|| -> Result<[Option<StopReason>; 2], RunError> {
        let mut limited = speller.session().generate(&one, &options)?;
        while limited.next().is_some() {}
        let limited = limited.stop_reason();
        let mut cancelled = speller.session().generate(&one, &options)?;
        cancelled.cancel();
        Ok([limited, cancelled.next().and(None).or(cancelled.stop_reason())])
    });
    for stop in stops.unwrap_or_default() {
        console.text("stopped: ").text(match stop {
            Some(StopReason::EndToken) => "the end id",
            Some(StopReason::LengthLimit) => "the length limit",
            Some(StopReason::NothingAllowed) => "nothing allowed",
            Some(StopReason::AllLabelled) => "all is labelled",
            Some(StopReason::Cancelled) => "cancelled",
            None => "! no reason",
        });
        console.end_line();
    }
}

fn fail<S: Read + Write>(console: &mut Console<S>, failure: Option<Failure>) {
    match failure {
        Some(failure) => explain(console, failure),
        None => console.text("! this should have failed").end_line(),
    }
}
