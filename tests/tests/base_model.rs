//! The base model of Vaswani et al. 2017 (table 3) on the host: 44 million weights around vocabularies
//! of 1000, in both number types.

use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, Precision, SourceFrame,
    SpecialIds, StackConfig, UnknownPolicy,
};
use trainer::data::corpus::Pair;
use trainer::data::tokenizer::{Splitting, Tokenizer, Unit};
use trainer::engine::Network;
use trainer::model::TrainedModel;
use trainer::{device, export};

const BASE: ModelConfig = ModelConfig {
    family: Family::EncoderDecoder,
    d_model: 512,
    encoder: StackConfig { n_layers: 6, n_heads: 8, d_ff: 2048 },
    decoder: StackConfig { n_layers: 6, n_heads: 8, d_ff: 2048 },
    source_vocab: 1000,
    target_vocab: 1000,
    max_source_len: 16,
    max_target_len: 6,
    norm: NormPlace::Post,
    final_norm: false,
    positions: Positions::SinusoidalInterleaved,
    output: Output::Tied,
    shared_embedding: true,
    scale_embedding: true,
    source_frame: SourceFrame::End,
    activation: Activation::Relu,
    layer_norm_eps: 1e-5,
    special: SpecialIds { pad: 0, start: 1, end: 2, unknown: 3 },
};

/// Its starting weights, with a vocabulary of numbers.
fn base_model() -> TrainedModel {
    let network = Network::new(&BASE).expect("a sound architecture");
    let params = network.layout.init(1);
    let splitting = Splitting { unit: Unit::Word, lowercase: false };
    let symbols = (0..BASE.target_vocab).map(|id| format!("w{id}")).collect();
    let vocabulary = Tokenizer::from_symbols(splitting, symbols);
    TrainedModel {
        network,
        source: vocabulary.clone(),
        target: vocabulary,
        params,
        unknown: UnknownPolicy::Refuse,
    }
}

#[test]
fn the_base_model_of_the_paper_runs_in_both_number_types() {
    let model = base_model();
    // 6 layers of 3,152,384 and 6 of 4,204,032 parameters, and the embedding.
    assert_eq!(model.params.len(), 44_138_496 + 512_000);
    let text = "w4 w50 w600 w7 w999".to_owned();
    let expected = model.transcribe(std::slice::from_ref(&text), 1).remove(0).join(" ");
    let pairs = [Pair { source: text.clone(), target: expected.clone(), line: 1 }];
    for precision in [Precision::HalfFloat, Precision::FixedPoint] {
        let file = export::export(&model, precision, &pairs).expect("a file");
        let checked = device::check(&file).expect("a sound file");
        let answer = device::run_all(checked, std::slice::from_ref(&text), 1).expect("it runs");
        assert_eq!(answer[0].as_ref().expect("an answer").text, expected, "{precision:?}");
        println!("{precision:?}: {} bytes, {text} -> {expected}", file.len());
    }
}
