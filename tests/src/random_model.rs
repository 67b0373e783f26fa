//! Sound models of any shape with random weights: what the tests run where nothing is trained.
//!
//! Scales are chosen as an exporter would, by the spread (standard deviation) that each tensor is
//! meant to have, so that values use their range and answers differ from word to word.

use half::f16;
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, Precision, Segmentation,
    SourceFrame, SpecialIds, StackConfig, TextConfig, UnknownPolicy,
};
use model_format::directory::{DecoderSlot, EncoderSlot, Kind, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation, EncoderActivation};
use model_format::header::Header;
use model_format::layout::{
    BLOCK_ROWS, GROUP_COLS, Layout, LinearF16, LinearInt, pack_nibbles, round_biases,
    round_multipliers,
};
use model_format::numeric::QFormat;
use model_format::{AlignedBytes, FileBuilder};

/// Ids of a source of letters: the special ones, the letters, the apostrophe.
pub const SOURCE_VOCAB: u16 = SPECIAL + 27;
const SPECIAL: u16 = 4;

/// The shape of the model that ships: 80 wide, 4 + 1 layers.
pub fn like_g2p() -> ModelConfig {
    ModelConfig {
        family: Family::EncoderDecoder,
        shared_embedding: false,
        scale_embedding: true,
        source_frame: SourceFrame::End,
        d_model: 80,
        encoder: StackConfig { n_layers: 4, n_heads: 4, d_ff: 160 },
        decoder: StackConfig { n_layers: 1, n_heads: 4, d_ff: 160 },
        source_vocab: SOURCE_VOCAB,
        target_vocab: SPECIAL + 69,
        max_source_len: 32,
        max_target_len: 32,
        norm: NormPlace::Pre,
        final_norm: true,
        positions: Positions::SinusoidalInterleaved,
        output: Output::Tied,
        activation: Activation::Relu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    }
}

/// A model for 16 KB of RAM.
pub fn tiny() -> ModelConfig {
    ModelConfig {
        d_model: 20,
        encoder: StackConfig { n_layers: 1, n_heads: 2, d_ff: 30 },
        decoder: StackConfig { n_layers: 1, n_heads: 2, d_ff: 30 },
        target_vocab: SPECIAL + 40,
        max_source_len: 24,
        max_target_len: 20,
        ..like_g2p()
    }
}

/// A language model over letters, a tagger or a classifier in the sizes of `config`; `config` itself
/// for an encoder-decoder.
pub fn of_family(family: Family, config: &ModelConfig) -> ModelConfig {
    let config = ModelConfig { family, ..*config };
    let untied = match config.output {
        Output::Tied | Output::Untied => Output::Untied,
        Output::TiedBias | Output::UntiedBias => Output::UntiedBias,
    };
    match family {
        Family::EncoderDecoder => config,
        Family::DecoderOnly => ModelConfig {
            encoder: StackConfig::NONE,
            source_vocab: 0,
            target_vocab: SOURCE_VOCAB,
            max_source_len: 0,
            shared_embedding: false,
            ..config
        },
        Family::Tagger | Family::Classifier => ModelConfig {
            decoder: StackConfig::NONE,
            max_target_len: 0,
            shared_embedding: false,
            output: untied,
            ..config
        },
    }
}

/// How a file stores its matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// The order of weights.
    pub layout: Layout,
    /// Whether the weights of an integer model have 4 bits wherever they may.
    pub four_bit: bool,
}

impl Default for Storage {
    fn default() -> Self {
        Self { layout: Layout::RowMajor, four_bit: false }
    }
}

/// The file of a random model, row-major and of 8 bits. The same arguments give the same bytes.
///
/// # Panics
/// When `config` is not sound.
pub fn random_model(precision: Precision, config: &ModelConfig, seed: u64) -> AlignedBytes {
    random_model_with(precision, config, seed, Storage::default())
}

/// [`random_model`] with its matrices stored as asked for.
///
/// # Panics
/// As [`random_model`], and when the layout does not suit the precision.
pub fn random_model_with(
    precision: Precision,
    config: &ModelConfig,
    seed: u64,
    storage: Storage,
) -> AlignedBytes {
    let random = Random(seed);
    Maker { config: *config, storage, random, ends: true }.file(precision)
}

/// As [`random_model_with`], but the end id is never the best: every answer is as long as allowed.
///
/// # Panics
/// As [`random_model_with`], and when the output has no bias to hold the end id down with.
pub fn endless_model(
    precision: Precision,
    config: &ModelConfig,
    seed: u64,
    storage: Storage,
) -> AlignedBytes {
    assert!(config.output.has_bias(), "the end id is held down by a bias");
    let random = Random(seed);
    Maker { config: *config, storage, random, ends: false }.file(precision)
}

/// What a model with `vocab` ids reads: letters where that is their number, else symbols.
fn texts_read(vocab: u16) -> (Vec<String>, Segmentation) {
    match vocab {
        SOURCE_VOCAB => (letters(), Segmentation::Characters),
        _ => (symbols(SPECIAL, vocab), Segmentation::Symbols),
    }
}

fn letters() -> Vec<String> {
    let special = std::iter::repeat_n(String::new(), SPECIAL.into());
    special.chain(('a'..='z').chain(['\'']).map(String::from)).collect()
}

/// Made up, all different: `AA0`, `AB1`, ...; the first `special` ids have no text.
fn symbols(special: u16, vocab: u16) -> Vec<String> {
    let letter = |i: u16| char::from(b'A' + (i % 26) as u8);
    let stem = |i: u16| format!("{}{}{}", letter(i / 26), letter(i), i % 3);
    // The stems repeat.
    let symbol = |i: u16| match i / (26 * 26 * 3) {
        0 => stem(i),
        turn => format!("{}-{turn}", stem(i)),
    };
    let without_text = std::iter::repeat_n(String::new(), special.into());
    without_text.chain((0..vocab - special).map(symbol)).collect()
}

/// The Q format of a tensor: its range is at least four times its spread.
fn format(config: &ModelConfig, slot: ActivationSlot) -> QFormat {
    use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
    let wide = |frac_bits| QFormat { frac_bits, bits: 16 };
    let narrow = |frac_bits| QFormat { frac_bits, bits: 15 };
    match slot {
        slot if !slot.is_used(config) => QFormat::UNUSED,
        A::EncoderEmbed | A::DecoderEmbed => wide(12),
        A::Encoder(_, E::Sum1 | E::Sum2) | A::Decoder(_, D::Sum1 | D::Sum2 | D::Sum3) => wide(11),
        A::Encoder(_, E::Query) | A::Decoder(_, D::CrossQuery) => narrow(11),
        A::Encoder(_, E::Context) | A::Decoder(_, D::Context) => narrow(13),
        A::Encoder(_, E::Hidden) => narrow(12),
        A::Memory | A::DecoderFinal if let Some(stream) = slot.stream(config) => {
            format(config, stream)
        }
        A::Logits => QFormat { frac_bits: 12, bits: 32 },
        A::Encoder(..) | A::Decoder(..) | A::Memory | A::DecoderFinal => wide(12),
    }
}

/// About the standard deviation of a tensor, as a real number.
fn spread(config: &ModelConfig, slot: ActivationSlot) -> f64 {
    use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
    match slot {
        A::EncoderEmbed | A::DecoderEmbed => 1.2,
        A::Encoder(_, E::Sum1 | E::Sum2) | A::Decoder(_, D::Sum1) => 1.7,
        A::Decoder(_, D::Sum2 | D::Sum3) => 3.0,
        A::Encoder(_, E::Context) | A::Decoder(_, D::Context | D::CrossContext) => 0.6,
        A::Encoder(_, E::Hidden) | A::Decoder(_, D::Hidden) => 0.7,
        A::Memory | A::DecoderFinal if let Some(stream) = slot.stream(config) => {
            spread(config, stream)
        }
        A::Logits => 3.0,
        A::Encoder(..) | A::Decoder(..) | A::Memory | A::DecoderFinal => 1.0,
    }
}

/// What a linear tensor adds to the stream where it ends a sublayer.
const SUBLAYER_SPREAD: f64 = 0.8;
/// Units of an `i8` key or value for a real 1.0.
const CACHED_SCALE: f64 = 40.0;
/// The same for cross-attention, so that the source outweighs the token before.
const CROSS_SPREAD: f64 = 2.5;
/// How much sharper than a standard deviation of 1 attention is.
const SHARPNESS: f64 = 4.0;
/// Biases over the spread of what they are added to.
const BIAS_SPREAD: f64 = 0.3;
/// The end id is this much more eager than another, so that some answers end.
const END_EAGERNESS: f64 = 2.0;
/// Biases of an end id that is never the best: in units of an accumulator, whose limit leaves this
/// much beside the longest sum of products, and as a real number that `f16` can say.
const NEVER_BEST: (i32, f64) = (-150_000_000, -60_000.0);
const TWO_32: f64 = 4_294_967_296.0;

/// Makes the bytes of all tensors of one model.
struct Maker {
    config: ModelConfig,
    storage: Storage,
    random: Random,
    /// Whether answers end by themselves.
    ends: bool,
}

impl Maker {
    fn file(mut self, precision: Precision) -> AlignedBytes {
        let Self { config, storage, .. } = self;
        let reads_target = config.shared_embedding || !config.has_encoder();
        let read = if reads_target { config.target_vocab } else { config.source_vocab };
        let (read_texts, read_as) = texts_read(read);
        let (written_texts, written_as) = match config.has_decoder() {
            _ if reads_target => (read_texts.clone(), read_as),
            true => (symbols(SPECIAL, config.target_vocab), Segmentation::Symbols),
            false => (symbols(0, config.target_vocab), Segmentation::Symbols),
        };
        let text = TextConfig {
            source: read_as,
            target: written_as,
            fold_case: read_as == Segmentation::Characters,
            unknown: UnknownPolicy::Refuse,
        };
        let header = Header { precision, layout: storage.layout, config, text };
        let source = if config.has_encoder() { read_texts } else { Vec::new() };
        let mut builder = FileBuilder::new(header, source, written_texts);
        builder.formats(|slot| format(&config, slot));
        builder.four_bit(|_| storage.four_bit);
        let done: Result<(), std::convert::Infallible> =
            builder.tensors(|slot, kind| Ok(self.blob(precision, slot, kind)));
        let Ok(()) = done;
        builder.finish().unwrap_or_else(|error| panic!("a random model is not sound: {error}"))
    }

    fn blob(&mut self, precision: Precision, slot: Slot, kind: Kind) -> Vec<u8> {
        let expected = slot.expected(precision, &self.config);
        let (rows, cols) = (usize::from(expected.rows), usize::from(expected.cols));
        match kind {
            Kind::LinearI8 => self.linear_i8(slot, rows, cols),
            Kind::LinearI4 => self.linear_i4(slot, rows, cols),
            Kind::LinearF16 => self.linear_f16(slot, rows, cols),
            Kind::NormI32 => self.norm_i32(slot, cols),
            Kind::NormF16 => self.norm_f16(cols),
            Kind::Heads => self.heads(slot, rows),
            Kind::Frequencies => frequencies(rows),
            Kind::Multipliers => self.look_up_multipliers(rows),
            Kind::Absent => Vec::new(),
        }
    }

    fn linear_i8(&mut self, slot: Slot, rows: usize, cols: usize) -> Vec<u8> {
        let top = top(cols);
        let weights: Vec<i8> = (0..rows * cols).map(|_| self.random.within(top) as i8).collect();
        let (bias, multipliers) = match slot.input(&self.config) {
            None => (vec![0; rows], self.look_up(rows, deviation(top))),
            Some(input) => self.constants(slot, input, [rows, cols], deviation(top)),
        };
        LinearInt::pack(self.storage.layout, &weights, &bias, &multipliers)
    }

    fn linear_i4(&mut self, slot: Slot, rows: usize, cols: usize) -> Vec<u8> {
        let weights: Vec<i8> = (0..rows * cols).map(|_| self.random.within(7) as i8).collect();
        let (groups, top) = (cols.div_ceil(GROUP_COLS), top_factor(cols));
        let factor = |random: &mut Random| 1 + (random.bits() % top) as u8;
        let factors: Vec<u8> = (0..rows * groups).map(|_| factor(&mut self.random)).collect();
        let input = slot.input(&self.config).expect("a matrix that multiplies");
        let (mut bias, mut multipliers) =
            self.constants(slot, input, [rows, cols], deviation_i4(cols));
        bias.chunks_mut(BLOCK_ROWS).for_each(round_biases);
        multipliers.chunks_mut(BLOCK_ROWS).for_each(round_multipliers);
        pack_nibbles(&weights, &factors, &bias, &multipliers)
    }

    /// Biases and multipliers of a matrix whose weights have this standard deviation.
    fn constants(
        &mut self,
        slot: Slot,
        input: ActivationSlot,
        [rows, cols]: [usize; 2],
        deviation: f64,
    ) -> (Vec<i32>, Vec<i32>) {
        let acc_spread = deviation * (cols as f64).sqrt() * self.units(input);
        let (out, has_bias) = (self.output_units(slot), self.has_bias(slot));
        let mut bias: Vec<i32> = (0..rows)
            .map(|_| self.random.real(if has_bias { BIAS_SPREAD * acc_spread } else { 0.0 }) as i32)
            .collect();
        if let Some(row) = self.row_held_down(slot) {
            bias[row] = NEVER_BEST.0;
        }
        let multipliers = (0..rows)
            .map(|row| {
                let eagerness = 1.0 + self.random.real(0.3);
                (out / acc_spread * eagerness * self.row_scale(slot, row) * TWO_32) as i32
            })
            .collect();
        (bias, multipliers)
    }

    fn linear_f16(&mut self, slot: Slot, rows: usize, cols: usize) -> Vec<u8> {
        let is_learned = matches!(slot, Slot::SourcePositions | Slot::TargetPositions);
        let d_model = f64::from(self.config.d_model);
        let (wanted, bias) = match slot.input(&self.config) {
            None if is_learned => (0.6, 0.0),
            None if !self.config.scale_embedding => (1.0, 0.0),
            // The look-up multiplies by sqrt(d_model).
            None => (1.0 / d_model.sqrt(), 0.0),
            // Tied weights serve the look-up too, which decides.
            Some(_) if slot == Slot::TargetEmbedding => (1.0 / d_model.sqrt(), BIAS_SPREAD),
            Some(input) => {
                let out = self.output_spread(slot);
                let spread = spread(&self.config, input) * (cols as f64).sqrt();
                (out / spread, BIAS_SPREAD * out)
            }
        };
        let bias = if self.has_bias(slot) { bias } else { 0.0 };
        let mut weights = Vec::new();
        for row in 0..rows {
            let scale = wanted * 3_f64.sqrt() * self.row_scale(slot, row);
            weights.extend((0..cols).map(|_| f16::from_f64(self.random.real(scale))));
        }
        let mut bias: Vec<f16> = (0..rows).map(|_| f16::from_f64(self.random.real(bias))).collect();
        if let Some(row) = self.row_held_down(slot) {
            bias[row] = f16::from_f64(NEVER_BEST.1);
        }
        LinearF16::pack(self.storage.layout, &weights, &bias)
    }

    /// The spread of an activation in its units.
    fn units(&self, slot: ActivationSlot) -> f64 {
        spread(&self.config, slot) * f64::from(format(&self.config, slot).frac_bits).exp2()
    }

    /// The spread that the output of a linear tensor is to have, as a real number.
    fn output_spread(&self, slot: Slot) -> f64 {
        use {DecoderSlot as D, EncoderSlot as E};
        match slot {
            Slot::TargetEmbedding | Slot::Output => spread(&self.config, ActivationSlot::Logits),
            Slot::Encoder(_, E::Output | E::Linear2) | Slot::Decoder(_, D::Output | D::Linear2) => {
                SUBLAYER_SPREAD
            }
            Slot::Decoder(_, D::CrossOutput) => CROSS_SPREAD,
            _ => 1.0,
        }
    }

    /// The same in units of the output.
    fn output_units(&self, slot: Slot) -> f64 {
        use {ActivationSlot as A, DecoderActivation as DA, EncoderActivation as EA};
        use {DecoderSlot as D, EncoderSlot as E};
        let output = match slot {
            Slot::Encoder(l, E::Query) => A::Encoder(l, EA::Query),
            Slot::Encoder(l, E::Output) => A::Encoder(l, EA::Sum1),
            Slot::Encoder(l, E::Linear1) => A::Encoder(l, EA::Hidden),
            Slot::Encoder(l, E::Linear2) => A::Encoder(l, EA::Sum2),
            Slot::Decoder(l, D::Query) => A::Decoder(l, DA::Query),
            Slot::Decoder(l, D::Output) => A::Decoder(l, DA::Sum1),
            Slot::Decoder(l, D::CrossQuery) => A::Decoder(l, DA::CrossQuery),
            Slot::Decoder(l, D::CrossOutput) => A::Decoder(l, DA::Sum2),
            Slot::Decoder(l, D::Linear1) => A::Decoder(l, DA::Hidden),
            Slot::Decoder(l, D::Linear2) => A::Decoder(l, DA::Sum3),
            Slot::TargetEmbedding | Slot::Output => A::Logits,
            // Keys and values.
            _ => return CACHED_SCALE,
        };
        self.output_spread(slot) * f64::from(format(&self.config, output).frac_bits).exp2()
    }

    fn has_bias(&self, slot: Slot) -> bool {
        match slot {
            Slot::TargetEmbedding | Slot::Output => self.config.output.has_bias(),
            _ => slot.input(&self.config).is_some(),
        }
    }

    fn row_scale(&self, slot: Slot, row: usize) -> f64 {
        if self.ends && self.end_row(slot) == Some(row) { END_EAGERNESS } else { 1.0 }
    }

    /// The row of the end id, where it is never to be the best.
    fn row_held_down(&self, slot: Slot) -> Option<usize> {
        if self.ends { None } else { self.end_row(slot) }
    }

    /// The row of the end id, where `slot` gives the logits.
    fn end_row(&self, slot: Slot) -> Option<usize> {
        let is_output = match slot {
            Slot::TargetEmbedding => self.config.output.is_tied(),
            _ => slot == Slot::Output,
        };
        (is_output && self.config.has_decoder()).then(|| self.config.special.end.into())
    }

    /// Multipliers of an embedding's look-up, whose operand is a weight shifted left by 24.
    fn look_up(&mut self, rows: usize, deviation: f64) -> Vec<i32> {
        let one = f64::from(format(&self.config, ActivationSlot::EncoderEmbed).frac_bits).exp2();
        let multiplier = one * 256.0 / deviation;
        (0..rows).map(|_| (multiplier * (1.0 + self.random.real(0.3))) as i32).collect()
    }

    fn look_up_multipliers(&mut self, rows: usize) -> Vec<u8> {
        let d_model = self.config.d_model.into();
        let deviation = match self.storage.four_bit {
            true => deviation_i4(d_model),
            false => deviation(top(d_model)),
        };
        self.look_up(rows, deviation).into_iter().flat_map(i32::to_le_bytes).collect()
    }

    fn norm_i32(&mut self, slot: Slot, cols: usize) -> Vec<u8> {
        let [input, output] = slot.norm_activations(&self.config).expect("a LayerNorm");
        let scale = |slot| f64::from(format(&self.config, slot).frac_bits).exp2();
        let (d, one_in, one_out) = (cols as f64, scale(input), scale(output));
        let eps = f64::from(self.config.layer_norm_eps) * (d * one_in).powi(2);
        // A normalised element has 20 fractional bits, and `rescale` takes 32 away.
        let gamma = |random: f64| (random * one_out * 4096.0) as i32;
        let mut blob = (eps.round() as i64).max(1).to_le_bytes().to_vec();
        blob.extend((0..cols).flat_map(|_| gamma(self.random.gamma()).to_le_bytes()));
        blob.extend((0..cols).flat_map(|_| (self.random.real(0.3 * one_out) as i32).to_le_bytes()));
        blob
    }

    fn norm_f16(&mut self, cols: usize) -> Vec<u8> {
        let gamma: Vec<f64> = (0..cols).map(|_| self.random.gamma()).collect();
        let beta: Vec<f64> = (0..cols).map(|_| self.random.real(0.3)).collect();
        let bytes = gamma.into_iter().chain(beta);
        bytes.flat_map(|v| f16::from_f64(v).to_bits().to_le_bytes()).collect()
    }

    fn heads(&self, slot: Slot, heads: usize) -> Vec<u8> {
        use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
        let context = match slot {
            Slot::Encoder(l, _) => A::Encoder(l, E::Context),
            Slot::Decoder(l, DecoderSlot::Heads) => A::Decoder(l, D::Context),
            Slot::Decoder(l, _) => A::Decoder(l, D::CrossContext),
            _ => unreachable!("only layers have heads"),
        };
        let query = slot.input(&self.config).expect("heads read the query");
        let d_k = f64::from(self.config.d_model) / heads as f64;
        // Exponents have 12 fractional bits.
        let score = SHARPNESS * 4096.0 / (CACHED_SCALE * d_k.sqrt() * self.units(query)) * TWO_32;
        let one = f64::from(format(&self.config, context).frac_bits).exp2();
        // `context * 2^15 / sum`, of which `rescale` takes 32 bits.
        let value = one / CACHED_SCALE * 131_072.0;
        let pair = [score as i32, value as i32];
        (0..heads).flat_map(|_| pair).flat_map(i32::to_le_bytes).collect()
    }
}

/// Cosine and sine of the angle of one step, `10000^(-2i / d_model)`, in Q30.
fn frequencies(pairs: usize) -> Vec<u8> {
    let q30 = |x: f64| (x * f64::from(1 << 30)).round() as i32;
    let angle = |i: usize| 10_000_f64.powf(-(i as f64) / pairs as f64);
    let pair = |i| [q30(angle(i).cos()), q30(angle(i).sin())];
    (0..pairs).flat_map(pair).flat_map(i32::to_le_bytes).collect()
}

/// The largest weight of 8 bits: no sum of absolute weights may reach 2^16.
fn top(cols: usize) -> i32 {
    (60_000 / cols).min(127) as i32
}

/// The largest factor of weights of 4 bits, for the same reason.
fn top_factor(cols: usize) -> u64 {
    (60_000 / (7 * cols)).clamp(1, 15) as u64
}

/// Standard deviation of weights of 4 bits times their factors.
fn deviation_i4(cols: usize) -> f64 {
    let top = top_factor(cols) as f64;
    deviation(7) * ((top + 1.0) * (2.0 * top + 1.0) / 6.0).sqrt()
}

/// Standard deviation of the integers in `[-top, top]`.
fn deviation(top: i32) -> f64 {
    (f64::from(top) * f64::from(top + 1) / 3.0).sqrt()
}

/// SplitMix64 (Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    /// Any bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// An integer in `[-top, top]`.
    pub fn within(&mut self, top: i32) -> i32 {
        let values = (2 * top + 1) as u64;
        (self.bits() % values) as i32 - top
    }

    /// A scale of LayerNorm. Of either sign: a tied output would repeat the token before for ever.
    fn gamma(&mut self) -> f64 {
        let sign = if self.bits() & 1 == 0 { 1.0 } else { -1.0 };
        sign * (1.0 + self.real(0.3))
    }

    /// A number in `[-top, top)`.
    pub fn real(&mut self, top: f64) -> f64 {
        (self.bits() >> 11) as f64 / 2_f64.powi(52) * top - top
    }
}
