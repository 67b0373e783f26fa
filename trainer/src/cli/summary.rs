//! What a run would train, without training: `trainer train --dry-run`.

use std::fmt::Write;

use anyhow::Result;

use crate::config::RunConfig;
use crate::data::split;
use crate::engine::Network;
use crate::engine::sanity::family_name;
use crate::session;

/// Describes the model of a config. Vocabulary sizes that it does not give are read from its data.
pub fn dry_run(mut config: RunConfig) -> Result<String> {
    let model = &config.model;
    if model.target_vocab == 0 || (model.has_encoder() && model.source_vocab == 0) {
        let split = split::load(&config.data, config.model.family)?;
        session::vocabularies(&split, &mut config)?;
    }
    describe(&Network::new(&config.model)?)
}

/// Sizes, then all tensors.
fn describe(network: &Network) -> Result<String> {
    let config = &network.config;
    let mut text = String::new();
    writeln!(text, "family          {}", family_name(config.family))?;
    writeln!(
        text,
        "vocabularies    {} source, {} target",
        config.source_vocab, config.target_vocab
    )?;
    writeln!(text, "parameters      {}", network.layout.len())?;
    writeln!(text, "\n{:<48}{:>14}{:>12}", "tensor", "shape", "parameters")?;
    for spec in &network.layout.specs {
        let shape: Vec<String> = spec.shape.iter().map(usize::to_string).collect();
        writeln!(text, "{:<48}{:>14}{:>12}", spec.name, shape.join("x"), spec.len())?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use model_format::config::{
        Family, ModelConfig, NormPlace, Output, Positions, SourceFrame, StackConfig,
    };

    use super::*;
    use crate::config::with_family;
    use crate::data::tasks::Task;

    /// A post-LN model of one depth and head count without final norms.
    fn sized(vocab: u16, d_model: u16, n_heads: u16, d_ff: u16, n_layers: u16) -> ModelConfig {
        let stack = StackConfig { n_layers, n_heads, d_ff };
        ModelConfig {
            d_model,
            encoder: stack,
            decoder: stack,
            source_vocab: vocab,
            target_vocab: vocab,
            max_source_len: 512,
            max_target_len: 512,
            norm: NormPlace::Post,
            final_norm: false,
            output: Output::UntiedBias,
            ..RunConfig::default().model
        }
    }

    fn parameters(model: ModelConfig) -> String {
        let text = dry_run(RunConfig { model, ..RunConfig::default() }).unwrap();
        let line = text.lines().find(|line| line.starts_with("parameters ")).unwrap();
        line.trim_start_matches("parameters").trim().to_owned()
    }

    #[test]
    fn models_of_the_tutorials_have_their_published_sizes() {
        let (full, small) = (sized(10_000, 256, 8, 512, 3), sized(1000, 64, 4, 256, 2));
        assert_eq!(parameters(full), "11643664");
        assert_eq!(parameters(ModelConfig { output: Output::Tied, ..full }), "9073664");
        assert_eq!(parameters(small), "426472");
        let with_norm_and_positions =
            |c| ModelConfig { final_norm: true, positions: Positions::Learned, ..c };
        assert_eq!(parameters(with_norm_and_positions(small)), "492264");
        assert_eq!(parameters(with_norm_and_positions(full)), "11906832");
    }

    #[test]
    fn a_shared_embedding_counts_once_and_an_absent_stack_not_at_all() {
        let small = sized(1000, 64, 4, 256, 2);
        let shared = ModelConfig { shared_embedding: true, ..small };
        assert_eq!(parameters(shared), (426_472 - 64_000).to_string());
        let decoder = with_family(ModelConfig { source_vocab: 0, ..small }, Family::DecoderOnly);
        // Per layer 33_280 for cross-attention and 128 for its norm less, and no encoder.
        let without = 64_000 + 2 * 49_984 + 2 * (16_640 + 128);
        let model = RunConfig { model: decoder, ..RunConfig::of_task(Task::Words) };
        assert!(dry_run(model).unwrap().contains(&format!(" {}\n", 426_472 - without)));
    }

    #[test]
    fn vocabulary_sizes_come_from_the_data_where_none_are_given() {
        let text = dry_run(RunConfig::of_task(Task::Stress)).unwrap();
        assert!(text.contains("\nvocabularies    43 source, 4 target\n"), "{text}");
        let bare = ModelConfig {
            source_frame: SourceFrame::Bare,
            ..RunConfig::of_task(Task::Words).model
        };
        let config = RunConfig { model: bare, ..RunConfig::of_task(Task::Words) };
        assert!(dry_run(config).unwrap().contains("\nvocabularies    0 source, 31 target\n"));
    }
}
