"""`torch.nn.Transformer` itself with our weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from config import Config
from model import Record, Transformer, combined_mask, padding_mask
from names import torch_layers

# Both compute in f64; what differs is the order of sums.
TOLERANCE = 1e-12


class Seq2Seq(nn.Module):
    """Embeddings, `torch.nn.Transformer` and an output, as its users put them together."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        config = model.config
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.src_embedding = model.source_embedding
        self.tgt_embedding = model.target_embedding
        self.generator = nn.Linear(config.d_model, config.target_vocab).double()
        self.generator.load_state_dict(model.output.state_dict())
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pe", model.sinusoids)
        self.transformer = _transformer(config).double()
        self.transformer.load_state_dict(
            torch_layers(model, "encoder") | torch_layers(model, "decoder")
        )

    def forward(self, source: Tensor, target: Tensor, source_padding: Tensor, target_padding: Tensor) -> Tensor:
        """Logits; paddings are true where there is none to see, as `torch` wants it."""
        hidden = self.transformer(
            self._embed(self.src_embedding, source),
            self._embed(self.tgt_embedding, target),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.generator(hidden)

    def _embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return table(ids) * self.scale + self.positional_encoding.pe[: ids.shape[1]]


def _transformer(config: Config) -> nn.Transformer:
    assert config.encoder.n_heads == config.decoder.n_heads
    return nn.Transformer(
        d_model=config.d_model,
        nhead=config.encoder.n_heads,
        num_encoder_layers=config.encoder.n_layers,
        num_decoder_layers=config.decoder.n_layers,
        dim_feedforward=config.encoder.d_ff,
        activation=config.activation,
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=config.norm == "pre",
    )


def compare(model: Transformer, is_training: bool) -> Seq2Seq:
    """The same logits on a padded batch. `torch` has another path in evaluation, whose result is the
    same where there is an id."""
    theirs = Seq2Seq(model).train(is_training)
    for module in theirs.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    sources, targets = [9, 4, 1, 7], [3, 8, 2, 1]
    source = torch.randint(3, model.config.source_vocab, (4, max(sources)))
    target = torch.randint(3, model.config.target_vocab, (4, max(targets)))
    seen, visible = padding_mask(sources), combined_mask(targets)
    counts = padding_mask(targets)[:, 0, 0]
    with torch.no_grad():
        memory = model.encode(source, seen, Record())
        ours = model.decode(target, visible, memory, seen, Record())[counts]
        found = theirs(source, target, ~seen[:, 0, 0], ~counts)[counts]
    distance = ((found - ours).abs().max() / ours.abs().max()).item()
    assert distance < TOLERANCE, f"{model.config}: {distance}"
    return theirs.eval()
