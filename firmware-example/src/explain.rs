//! One line for every way to fail, with its numbers; no `core::fmt`.

use embedded_io::{Read, Write};
use runtime::model_format::{
    ModelError, Side, TensorFault, VocabularyFault, config::Precision, header::HeaderError,
};
use runtime::{ArenaTooSmall, EncodeError, LoadError, MAX_SYMBOL_LEN, RunError};

use crate::{
    console::Console,
    speller::{Failure, HEADER},
};

/// Says why there is no answer: `! ` and a line.
pub fn explain<S: Read + Write>(console: &mut Console<S>, failure: Failure) {
    console.text("! ");
    match failure {
        Failure::Load(LoadError::Model(error)) => model(console, error),
        Failure::Load(LoadError::WrongPrecision { found }) => console.text(match found {
            Precision::FixedPoint => "this is an integer model",
            Precision::HalfFloat => "this is a half-float model",
        }),
        Failure::Load(LoadError::Unsupported { feature }) => lacking(console, feature),
        Failure::ArenaInUse => console.text("the arena is in use already"),
        Failure::Arena(ArenaTooSmall { needed, given }) => {
            numbers(console, ["the arena has ", " bytes and needs ", ""], [given, needed])
        }
        Failure::Run(error) => run(console, error),
    }
    .end_line();
}

/// `texts[0] numbers[0] texts[1] numbers[1] texts[2]`.
fn numbers<'c, S: Read + Write>(
    console: &'c mut Console<S>,
    [start, middle, end]: [&str; 3],
    [first, second]: [usize; 2],
) -> &'c mut Console<S> {
    console.text(start).grouped(first as u64).text(middle).grouped(second as u64).text(end)
}

/// `start number end`.
fn number<'c, S: Read + Write>(
    console: &'c mut Console<S>,
    start: &str,
    number: impl TryInto<u64>,
    end: &str,
) -> &'c mut Console<S> {
    console.text(start).grouped(number.try_into().unwrap_or(u64::MAX)).text(end)
}

fn run<S: Read + Write>(console: &mut Console<S>, error: RunError) -> &mut Console<S> {
    match error {
        RunError::Encode(error) => encode(console, error),
        RunError::IdOutOfRange { index, id, vocab } => {
            number(console, "id ", id, " (number ");
            numbers(console, ["", ") is not below ", ""], [index + 1, vocab.into()])
        }
        RunError::SpecialId { index, id } => {
            number(console, "id ", id, " (number ");
            number(
                console,
                "",
                index as u64 + 1,
                ") is padding or the start id, which no input has",
            )
        }
        RunError::PrefixTooLong { len, limit } => {
            numbers(console, ["a prompt of ", " ids is too long, the limit is ", ""], [len, limit])
        }
        RunError::BufferFull { capacity } => {
            number(console, "the answer does not fit into ", capacity as u64, " bytes")
        }
    }
}

fn encode<S: Read + Write>(console: &mut Console<S>, error: EncodeError) -> &mut Console<S> {
    match error {
        EncodeError::Empty => console.text("no word given"),
        EncodeError::UnknownSymbol { index, offset: _, first } => {
            number(console, "the model does not know letter ", index as u64 + 1, ": `");
            console.text(first.encode_utf8(&mut [0; 4])).text("`")
        }
        EncodeError::TooLong { len, limit } => {
            numbers(console, ["", " letters are too many: the model takes ", ""], [len, limit])
        }
        EncodeError::SymbolTooLong { offset } => numbers(
            console,
            ["the symbol at byte ", " has more than ", " bytes"],
            [offset, MAX_SYMBOL_LEN],
        ),
    }
}

fn model<S: Read + Write>(console: &mut Console<S>, error: ModelError) -> &mut Console<S> {
    match error {
        ModelError::Header(error) => header(console, error),
        ModelError::Truncated { len } => {
            number(console, "the model is cut short: ", len as u64, " bytes are not all of it")
        }
        ModelError::TrailingBytes { count } => {
            number(console, "", count as u64, " bytes follow the end of the model")
        }
        ModelError::Misaligned { offset } => {
            number(console, "the model lies ", offset as u64, " bytes past a multiple of 16")
        }
        ModelError::MisplacedWeights { offset } => {
            number(console, "the weights start at ", offset as u64, ", no multiple of 16")
        }
        ModelError::Checksum { stored, computed } => console
            .text("damaged model: its CRC-32 should be ")
            .hex::<8>(stored.into())
            .text(" and is ")
            .hex::<8>(computed.into()),
        ModelError::TooLong { len } => {
            number(console, "no integer model takes ", len, " positions")
        }
        ModelError::Tensor(slot, fault) => {
            number(console, "tensor ", slot.index(&HEADER.config) as u64, ": ");
            tensor(console, fault)
        }
        ModelError::Format { index } => {
            number(console, "activation format ", index as u64, " is out of range")
        }
        ModelError::ListLength { expected, found } => {
            numbers(console, ["a list has ", " bytes and should have ", ""], [found, expected])
        }
        ModelError::Vocabulary(side, fault) => {
            console.text(match side {
                Side::Source => "source vocabulary: ",
                Side::Target => "target vocabulary: ",
            });
            vocabulary(console, fault)
        }
    }
}

fn lacking<'c, S: Read + Write>(console: &'c mut Console<S>, feature: &str) -> &'c mut Console<S> {
    console.text("this build lacks the feature ").text(feature)
}

fn header<S: Read + Write>(console: &mut Console<S>, error: HeaderError) -> &mut Console<S> {
    match error {
        HeaderError::TooShort { len } => {
            number(console, "", len as u64, " bytes are too short for a model")
        }
        HeaderError::NotAModel => console.text("not a Kiloformer model"),
        HeaderError::UnsupportedVersion { found } => {
            number(console, "this firmware does not read format version ", found, "")
        }
        HeaderError::Config(field) => {
            number(console, "configuration field ", field as u64, " is out of range")
        }
        HeaderError::Unread { feature } => lacking(console, feature),
    }
}

fn tensor<S: Read + Write>(console: &mut Console<S>, fault: TensorFault) -> &mut Console<S> {
    match fault {
        TensorFault::Unread { feature } => lacking(console, feature),
        TensorFault::Kind { found } => number(console, "kind ", found, " does not belong here"),
        TensorFault::Shape { found: [rows, cols], expected: [wanted_rows, wanted_cols] } => {
            numbers(console, ["shape ", " x ", ""], [rows.into(), cols.into()]);
            let wanted = [wanted_rows.into(), wanted_cols.into()];
            numbers(console, [" where ", " x ", " is asked for"], wanted)
        }
        TensorFault::Length { found } => number(console, "", found, " bytes do not fit its shape"),
        TensorFault::Offset { found } => {
            number(console, "offset ", found, " is not aligned, overlaps or leaves the file")
        }
        TensorFault::Weight { row } => {
            number(console, "row ", row as u64, " has a weight out of range")
        }
        TensorFault::Overflow { row } => {
            number(console, "the sum of row ", row as u64, " could overflow")
        }
        TensorFault::Constant { index } => {
            number(console, "constant ", index as u64, " is out of range")
        }
    }
}

fn vocabulary<S: Read + Write>(
    console: &mut Console<S>,
    fault: VocabularyFault,
) -> &mut Console<S> {
    match fault {
        VocabularyFault::Truncated => console.text("cut short"),
        VocabularyFault::TrailingBytes => console.text("bytes follow it"),
        VocabularyFault::Range { id } => number(console, "id ", id, " leaves it"),
        VocabularyFault::Utf8 { id } => number(console, "id ", id, " is not UTF-8"),
        VocabularyFault::Order { index } => number(console, "not sorted at ", index, ""),
    }
}
