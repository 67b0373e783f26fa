//! Whatever happens to a file: a typed error, or a model that runs within its arena.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use kiloformer_tests::answer::run;
use kiloformer_tests::random_model::{Random, Storage, random_model, random_model_with, tiny};
use model_format::config::{
    ModelConfig, NormPlace, Output, Positions, Precision as Stored, StackConfig,
};
use model_format::directory::{EncoderSlot, Kind, Slot};
use model_format::header::{BLOCK_LEN, BLOCK_OFFSET, HeaderError, VERSION};
use model_format::layout::Layout;
use model_format::{AlignedBytes, Checks, Model, ModelError, Side, TensorFault, VocabularyFault};
use proptest::prelude::*;
use runtime::{
    FixedModel, FixedPoint, GenerateOptions, HalfFloat, HalfModel, Limits, LoadError, Precision,
    Session, TypedModel, arena_len_with,
};

/// Small models that between them have every kind of tensor.
fn files() -> Vec<AlignedBytes> {
    let stack = StackConfig { n_layers: 1, n_heads: 2, d_ff: 6 };
    let pre = ModelConfig { d_model: 8, encoder: stack, decoder: stack, ..tiny() };
    let post = ModelConfig {
        norm: NormPlace::Post,
        final_norm: false,
        positions: Positions::Learned,
        output: Output::UntiedBias,
        ..pre
    };
    let mut files = Vec::new();
    for config in [pre, post] {
        for precision in [Stored::FixedPoint, Stored::HalfFloat] {
            files.push(random_model(precision, &config, 1));
        }
    }
    for config in [pre, post] {
        files.push(random_model_with(Stored::FixedPoint, &config, 1, FOUR_BITS));
    }
    files
}

const FOUR_BITS: Storage = Storage { layout: Layout::RowMajor, four_bit: true };
/// Those of [`files`].
const N_FILES: usize = 6;

const ALL_CHECKS: [Checks; 3] = [Checks::Full, Checks::SkipCrc, Checks::Structure];
/// Those that let a changed file pass.
const LENIENT: [Checks; 2] = [Checks::SkipCrc, Checks::Structure];

/// Loads `file` and runs it where it is sound. `what` names the case if anything panics.
fn load_and_run(file: &[u8], checks: Checks, what: &dyn Fn() -> String) -> Result<(), ModelError> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let model = Model::from_bytes_with(file, checks)?;
        match model.header().precision {
            Stored::FixedPoint => run_within_arena::<FixedPoint>(file, model),
            Stored::HalfFloat => run_within_arena::<HalfFloat>(file, model),
        }
        Ok(())
    }));
    outcome.unwrap_or_else(|panic| {
        eprintln!("{checks:?}, {}", what());
        resume_unwind(panic)
    })
}

fn run_within_arena<P: Precision>(file: &[u8], model: Model<'_>) {
    let config = *model.config();
    let model = TypedModel::<P>::new(model).expect("the kind that the header names");
    // Damaged limits may ask for more memory than a test should take.
    let limits = Limits {
        source_len: config.max_source_len.min(9),
        target_len: config.max_target_len.min(6),
        beams: 2,
    };
    let needed = arena_len_with(file, limits).expect("a sound header");
    let mut arena = AlignedBytes::filled(0xA5, needed);
    let mut session = Session::with_limits(&model, &mut arena, limits).expect("the exact size");
    assert_eq!(session.arena_len(), needed);
    for word in ["a", "it's", "ZIGZAG", "zugzwang"] {
        let _ = run(&mut session, word);
    }
    let ids = [0, config.special.end, config.source_vocab.saturating_sub(1)];
    for ids in [&ids[..1], &ids] {
        let generation = session.generate(ids, &GenerateOptions { max_len: Some(3), prefix: &[] });
        let _ = generation.map(Iterator::count);
    }
}

/// Where the parts of a file lie, found without the library: `FORMAT.md` is enough.
struct Parts {
    directory: Range<usize>,
    vocabulary: Range<usize>,
    padding: Range<usize>,
    weights: Range<usize>,
}

impl Parts {
    fn of(file: &[u8]) -> Self {
        let mut at = BLOCK_OFFSET + BLOCK_LEN;
        let mut next = || {
            let (mut len, mut shift) = (0, 0);
            loop {
                let byte = usize::from(file[at]);
                at += 1;
                len |= (byte & 0x7F) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
            at += len;
            at - len..at
        };
        let _formats = next();
        Self { directory: next(), vocabulary: next(), padding: next(), weights: next() }
    }
}

/// CRC-32 (ISO-HDLC), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// Makes the checksum right again.
fn sign(file: &mut [u8]) {
    if let Some(covered) = file.len().checked_sub(4) {
        let crc = crc32(&file[..covered]);
        file[covered..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// `file` with `bytes` at `at`, and a right checksum.
fn changed(file: &AlignedBytes, at: usize, bytes: &[u8]) -> AlignedBytes {
    let mut file = file.clone();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    sign(&mut file);
    file
}

fn error_of(file: &[u8]) -> ModelError {
    load_and_run(file, Checks::Full, &|| "a damaged file".to_owned()).expect_err("an error")
}

#[test]
fn a_cut_at_any_length_is_an_error() {
    for file in files() {
        for len in 0..file.len() {
            for checks in ALL_CHECKS {
                let what = || format!("cut to {len}");
                assert!(load_and_run(&file[..len], checks, &what).is_err(), "{}", what());
            }
        }
    }
}

#[test]
fn a_cut_with_a_right_checksum_is_an_error() {
    for file in files() {
        for len in 0..file.len() {
            let mut cut = AlignedBytes::from(&file[..len]);
            sign(&mut cut);
            assert!(load_and_run(&cut, Checks::Full, &|| format!("cut to {len}")).is_err());
        }
    }
}

/// Every value of every byte of header, formats and the start of the directory.
#[test]
fn every_change_of_a_byte_of_the_header_part() {
    for mut file in files() {
        for at in 0..200 {
            let true_byte = file[at];
            for byte in 0..=u8::MAX {
                file[at] = byte;
                let what = || format!("byte {at} set to {byte}");
                let full = load_and_run(&file, Checks::Full, &what);
                assert_eq!(full.is_ok(), byte == true_byte, "{}", what());
                for checks in LENIENT {
                    let _ = load_and_run(&file, checks, &what);
                }
            }
            file[at] = true_byte;
        }
    }
}

/// Every bit of formats, directory, vocabulary and padding, and of all weights.
#[test]
fn every_bit_of_everything() {
    for mut file in files() {
        for at in BLOCK_OFFSET + BLOCK_LEN..file.len() {
            for bit in 0..8 {
                file[at] ^= 1 << bit;
                let what = || format!("bit {bit} of byte {at} flipped");
                assert!(load_and_run(&file, Checks::Full, &what).is_err(), "{}", what());
                for checks in LENIENT {
                    let _ = load_and_run(&file, checks, &what);
                }
                file[at] ^= 1 << bit;
            }
        }
    }
}

/// Numbers that sizes are likely to go wrong with.
fn extreme() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        Just(i32::MAX as u32),
        Just(1 << 31),
        Just(0xFFFF),
        Just(0x7FFF),
        Just(0x8000),
        (0_u32..32).prop_map(|bit| 1 << bit),
        any::<u32>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_bytes_are_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for checks in ALL_CHECKS {
            prop_assert!(load_and_run(&AlignedBytes::from(&bytes[..]), checks, &|| "random".into()).is_err());
        }
    }

    /// The start of a real file, then anything.
    #[test]
    fn random_bytes_after_a_true_start(
        which in 0_usize..N_FILES,
        kept in 6_usize..1200,
        tail in proptest::collection::vec(any::<u8>(), 4..600),
    ) {
        let file = &files()[which];
        let mut bytes = file[..kept.min(file.len())].to_vec();
        bytes.extend(tail);
        let mut bytes = AlignedBytes::from(&bytes[..]);
        sign(&mut bytes);
        for checks in ALL_CHECKS {
            let _ = load_and_run(&bytes, checks, &|| format!("random after {kept}"));
        }
    }

    /// Sizes, offsets and lengths out of all proportion, several at once, with a right checksum.
    #[test]
    fn absurd_sizes(
        which in 0_usize..N_FILES,
        words in proptest::collection::vec((0_usize..15, extreme()), 0..4),
        entries in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..4, extreme()), 0..4),
        raw in proptest::collection::vec((any::<prop::sample::Index>(), extreme()), 0..3),
    ) {
        let mut file = files()[which].clone();
        let Parts { directory, vocabulary, .. } = Parts::of(&file);
        for (word, value) in words {
            let at = BLOCK_OFFSET + 16 + 2 * word;
            file[at..at + 2].copy_from_slice(&value.to_le_bytes()[..2]);
        }
        for (entry, field, value) in entries {
            // Rows, columns, offset, length of a directory entry.
            let (offset, len) = [(2, 2), (4, 2), (8, 4), (12, 4)][field];
            let at = directory.start + 16 * entry.index(directory.len() / 16) + offset;
            file[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
        for (place, value) in raw {
            let at = vocabulary.start + place.index(vocabulary.len() - 3);
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        sign(&mut file);
        for checks in ALL_CHECKS {
            let _ = load_and_run(&file, checks, &|| "absurd sizes".into());
        }
    }

    /// Constants and weights of any value that the checks let pass: the arithmetic must hold.
    #[test]
    fn any_constants(which in 0_usize..N_FILES, seed in any::<u64>(), share in 1_u64..=100) {
        let mut file = files()[which].clone();
        let mut random = Random(seed);
        let Parts { directory, weights, .. } = Parts::of(&file);
        for entry in directory.step_by(16) {
            let shape = [2, 4].map(|at| u16::from_le_bytes([file[entry + at], file[entry + at + 1]]));
            let field = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| file[at + i])) as usize;
            let start = weights.start + field(entry + 8);
            let blob = start..start + field(entry + 12);
            let kind = file[entry];
            change_tensor(kind, shape.map(usize::from), &mut file[blob], &mut random, share);
        }
        sign(&mut file);
        for checks in LENIENT {
            let what = || format!("constants of seed {seed}");
            let loaded = load_and_run(&file, checks, &what);
            // A sum of weights may overflow, which `Structure` does not look for.
            prop_assert!(loaded.is_ok() || checks == Checks::SkipCrc, "{loaded:?}");
        }
    }
}

/// Sets `share` percent of a tensor's numbers to values within their range, extremes among them.
fn change_tensor(
    kind: u8,
    [rows, cols]: [usize; 2],
    blob: &mut [u8],
    random: &mut Random,
    share: u64,
) {
    let within = |random: &mut Random, low: i64, high: i64| match random.bits() % 4 {
        0 => low,
        1 => high,
        _ => low + (random.bits() % (high - low + 1) as u64) as i64,
    };
    let words = blob.len() / 4;
    // The word of a block of 4 bits that ends with its shifts, and the words of the block.
    let groups = cols.div_ceil(16);
    let shifts = 8 * groups + groups / 2;
    let block_words = shifts + 4;
    for (i, word) in blob.chunks_exact_mut(4).enumerate() {
        let (low, high) = match kind {
            // Weights and biases are anything, the multipliers at the end are not negative.
            1 if i < words - rows => (i32::MIN, i32::MAX),
            1 | 8 => (0, i32::MAX),
            2 if i % block_words != shifts => (i32::MIN, i32::MAX),
            // Finite halves.
            3 | 5 => (0, 0x7BFF),
            // Epsilon, gamma, beta.
            4 if i == 0 => (1, i32::MAX),
            4 if i == 1 => (0, (1 << 28) - 1),
            4 if i < 2 + (words - 2) / 2 => (i32::MIN, i32::MAX),
            4 => (-(1 << 20), 1 << 20),
            6 => (0, if i % 2 == 0 { i32::MAX } else { 0x7F00_0000 }),
            7 => (-(1 << 30), 1 << 30),
            _ => continue,
        };
        if random.bits() % 100 < share {
            let mut value = within(random, low.into(), high.into()) as u32;
            if matches!(kind, 3 | 5) {
                value |=
                    (within(random, 0, 0x7BFF) as u32) << 16 | (random.bits() as u32 & 0x8000_8000);
            }
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

#[test]
fn a_misaligned_slice_says_by_how_much() {
    for file in files() {
        let mut memory = AlignedBytes::filled(0, file.len() + 16);
        for offset in 1..16 {
            memory[offset..offset + file.len()].copy_from_slice(&file);
            let slice = &memory[offset..offset + file.len()];
            assert_eq!(error_of(slice), ModelError::Misaligned { offset });
        }
    }
}

#[test]
fn bytes_after_the_end_are_counted() {
    for file in files() {
        for count in [1, 15, 16, 4096] {
            let mut longer = file.to_vec();
            longer.resize(file.len() + count, 0);
            let longer = AlignedBytes::from(&longer[..]);
            assert_eq!(error_of(&longer), ModelError::TrailingBytes { count });
        }
    }
}

#[test]
fn other_files_and_versions_are_named() {
    let file = &files()[0];
    assert_eq!(error_of(&[]), HeaderError::TooShort { len: 0 }.into());
    assert_eq!(error_of(&changed(file, 0, b"GIF8")), HeaderError::NotAModel.into());
    for found in [0, VERSION + 1, u16::MAX] {
        let error = error_of(&changed(file, 4, &found.to_le_bytes()));
        assert_eq!(error, HeaderError::UnsupportedVersion { found }.into());
    }
}

#[test]
fn a_model_of_the_other_number_type_is_refused() {
    let [fixed, half, ..] = &files()[..] else { unreachable!("six files") };
    let error = HalfModel::from_bytes(fixed).err();
    assert_eq!(error, Some(LoadError::WrongPrecision { found: Stored::FixedPoint }));
    let error = FixedModel::from_bytes(half).err();
    assert_eq!(error, Some(LoadError::WrongPrecision { found: Stored::HalfFloat }));
}

#[test]
fn a_flipped_bit_shows_both_checksums() {
    let mut file = files()[0].clone();
    let (last, computed) = (file.len() - 5, file.len() - 4);
    let stored = u32::from_le_bytes(file[computed..].try_into().expect("four bytes"));
    file[last] ^= 1;
    let computed = crc32(&file[..computed]);
    assert_eq!(error_of(&file), ModelError::Checksum { stored, computed });
    assert_eq!(load_and_run(&file, Checks::SkipCrc, &String::new), Ok(()));
}

#[test]
fn weights_off_their_place_are_noticed() {
    let file = &files()[0];
    let Parts { padding, weights, .. } = Parts::of(file);
    assert!(!padding.is_empty(), "this test needs a file with padding");
    let mut bytes = file.to_vec();
    bytes[padding.start - 1] -= 1;
    bytes.remove(padding.start);
    sign(&mut bytes);
    let error = error_of(&AlignedBytes::from(&bytes[..]));
    assert_eq!(error, ModelError::MisplacedWeights { offset: weights.start - 1 });
}

/// One example of each fault of a tensor, with the numbers it must name.
#[test]
fn faults_of_a_tensor_are_named() {
    let file = &files()[0];
    let model = Model::from_bytes(file).expect("a sound model");
    let Parts { directory, weights, .. } = Parts::of(file);
    let slot = Slot::Encoder(0, EncoderSlot::Query);
    let entry = directory.start + 16 * slot.index(model.config());
    let offset = u32::from_le_bytes(file[entry + 8..entry + 12].try_into().expect("four bytes"));
    let start = weights.start + offset as usize;
    let (shape, len) = ([8, 8], 8 * 8 + 8 * 8);
    for (at, bytes, fault) in [
        (entry, &[7][..], TensorFault::Kind { found: 7 }),
        (entry + 2, &[9, 0], TensorFault::Shape { found: [9, 8], expected: shape }),
        (entry + 12, &[len + 1, 0, 0, 0], TensorFault::Length { found: u32::from(len) + 1 }),
        (entry + 8, &[0, 0, 0, 0], TensorFault::Offset { found: 0 }),
        (entry + 8, &[1, 255, 255, 255], TensorFault::Offset { found: 0xFFFF_FF01 }),
        (start + 3 * 8 + 1, &[0x80], TensorFault::Weight { row: 3 }),
        // Biases follow the 64 weights, multipliers the 8 biases.
        (start + 64 + 4 * 5, &[255, 255, 255, 127], TensorFault::Overflow { row: 5 }),
        (start + 96 + 4 * 2, &[255, 255, 255, 255], TensorFault::Constant { index: 2 }),
    ] {
        assert_eq!(error_of(&changed(file, at, bytes)), ModelError::Tensor(slot, fault));
    }
}

/// The same for weights of 4 bits, of which 8 rows of 8 columns are two blocks of one group.
#[test]
fn faults_of_a_tensor_of_4_bits_are_named() {
    let file = &files()[4];
    let model = Model::from_bytes(file).expect("a sound model");
    let Parts { directory, weights, .. } = Parts::of(file);
    let slot = Slot::Encoder(0, EncoderSlot::Query);
    assert_eq!(model.kind(slot), Kind::LinearI4);
    let entry = directory.start + 16 * slot.index(model.config());
    let offset = u32::from_le_bytes(file[entry + 8..entry + 12].try_into().expect("four bytes"));
    let start = weights.start + offset as usize;
    let block = 32 + 2 + 2 + 4 + 8;
    assert_eq!(model.byte_len(slot), 2 * block);
    for (at, byte, fault) in [
        (entry, 1, TensorFault::Length { found: 96 }),
        (entry, 3, TensorFault::Kind { found: 3 }),
        // Row 1 of the second block: a weight of -8.
        (start + block + 4, 0x80, TensorFault::Weight { row: 5 }),
        // Column 8, which is none.
        (start + 16 + 8, 0x98, TensorFault::Weight { row: 2 }),
        // The factors of rows 2 and 3.
        (start + 33, 0x01, TensorFault::Weight { row: 3 }),
        (start + 34, 15, TensorFault::Constant { index: 0 }),
        (start + block + 35, 24, TensorFault::Constant { index: 4 }),
    ] {
        let error = error_of(&changed(file, at, &[byte]));
        assert_eq!(error, ModelError::Tensor(slot, fault), "{at}");
    }
    let table = directory.start + 16 * Slot::SourceEmbedding.index(model.config());
    let fault = TensorFault::Kind { found: 2 };
    let error = error_of(&changed(file, table, &[2]));
    assert_eq!(error, ModelError::Tensor(Slot::SourceEmbedding, fault), "a table has 8 bits");
}

/// 1280 weights of -7 times 15, times the 2^14 that the tensor before saturates to, are more than 2^31.
#[test]
fn a_row_of_4_bits_that_could_overflow_is_named() {
    let stack = StackConfig { n_layers: 1, n_heads: 2, d_ff: 1280 };
    let config = ModelConfig { d_model: 8, encoder: stack, decoder: stack, ..tiny() };
    let mut file = random_model_with(Stored::FixedPoint, &config, 1, FOUR_BITS);
    let slot = Slot::Encoder(0, EncoderSlot::Linear2);
    let blob = Model::from_bytes(&file).expect("a sound model").bytes(slot).as_ptr().addr();
    let start = blob - file.as_ptr().addr();
    // Row 2 of the first block: its words of all halves of the 80 groups, and its factors.
    for half in 0..160 {
        file[start + 16 * half + 8..][..4].fill(0x11);
    }
    for group in 0..80 {
        file[start + 80 * 32 + 2 * group + 1] |= 0x0F;
    }
    sign(&mut file);
    let fault = TensorFault::Overflow { row: 2 };
    assert_eq!(error_of(&file), ModelError::Tensor(slot, fault));
}

/// One example of each fault of a vocabulary.
#[test]
fn faults_of_a_vocabulary_are_named() {
    let file = &files()[0];
    let Parts { vocabulary, .. } = Parts::of(file);
    let n = 31;
    // 32 offsets, 31 sorted ids, then the texts `a` to `z` and the apostrophe, which sorts first.
    let sorted = vocabulary.start + 4 * (n + 1);
    let texts = sorted + 2 * n;
    for (at, bytes, fault) in [
        (vocabulary.start + 4 * n, &[255, 255, 255, 255][..], VocabularyFault::Truncated),
        (vocabulary.start + 4 * 9, &[255, 0, 0, 0], VocabularyFault::Range { id: 8 }),
        (texts, &[0xC3], VocabularyFault::Utf8 { id: 4 }),
        (texts, b"b", VocabularyFault::Order { index: 6 }),
        (sorted + 2 * 6, &[4, 0, 4, 0], VocabularyFault::Order { index: 6 }),
    ] {
        let error = error_of(&changed(file, at, bytes));
        assert_eq!(error, ModelError::Vocabulary(Side::Source, fault), "{at}");
    }
    // The last offset of the target: one byte less leaves one over. 44 ids, of which 40 have 3 bytes.
    let last = vocabulary.end - 3 * 40 - 2 * 44 - 4;
    let error = error_of(&changed(file, last, &[3 * 40 - 1]));
    assert_eq!(error, ModelError::Vocabulary(Side::Target, VocabularyFault::TrailingBytes));
}

/// The sweeps above reach every kind of error: otherwise they prove less than they seem to.
#[test]
fn every_error_occurs() {
    let mut seen = BTreeSet::new();
    let mut note = |file: &[u8]| {
        if let Err(error) = Model::from_bytes(file) {
            seen.insert(kind(&error));
        }
    };
    for file in files() {
        let parts = Parts::of(&file);
        note(&file[..9]);
        note(&file[16..]);
        let end = parts.weights.start.min(file.len());
        for at in 0..end {
            for bytes in [[0], [0x80], [0x20], [0xFF], [file[at].wrapping_sub(1)]] {
                note(&changed(&file, at, &bytes));
            }
        }
        for at in (parts.weights.start..parts.weights.end - 4).step_by(4) {
            for word in [i32::MIN, i32::MAX, 0x7C00_7C00] {
                note(&changed(&file, at, &word.to_le_bytes()));
            }
        }
    }
    let names: Vec<&str> = seen.iter().map(String::as_str).collect();
    let expected = [
        "Config",
        "Format",
        "ListLength",
        "NotAModel",
        "Tensor.Constant",
        "Tensor.Kind",
        "Tensor.Length",
        "Tensor.Offset",
        "Tensor.Overflow",
        "Tensor.Shape",
        "Tensor.Weight",
        "TooLong",
        "TooShort",
        "TrailingBytes",
        "Truncated",
        "UnsupportedVersion",
        "Vocabulary.Order",
        "Vocabulary.Range",
        "Vocabulary.TrailingBytes",
        "Vocabulary.Truncated",
        "Vocabulary.Utf8",
    ];
    assert_eq!(names, expected);
}

fn kind(error: &ModelError) -> String {
    let word = |debug: String| debug.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
    match error {
        ModelError::Header(error) => word(format!("{error:?}")),
        ModelError::Tensor(_, fault) => format!("Tensor.{}", word(format!("{fault:?}"))),
        ModelError::Vocabulary(_, fault) => format!("Vocabulary.{}", word(format!("{fault:?}"))),
        error => word(format!("{error:?}")),
    }
}
