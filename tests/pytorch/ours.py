"""What `trainer export --safetensors` wrote, loaded as docs/import.md says: `python ours.py FOLDER`.

Each subfolder of FOLDER holds `model.safetensors`, `config.json` and `answers.json`, which
`trainer/tests/to_pytorch.rs` wrote. PyTorch must give the same ids.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from config import Config, Special, Stack
from model import ACTIVATIONS, Record, sinusoids
from search import Decoder, greedy


class Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor) -> Tensor:
        heads = (self.W_q(x), self.W_k(memory), self.W_v(memory))
        query, key, value = (y.unflatten(2, (self.n_heads, -1)).transpose(1, 2) for y in heads)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        return self.W_o(context.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.fc1 = nn.Linear(d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class Layer(nn.Module):
    """A decoder's feed-forward has norm3, with or without cross-attention."""

    def __init__(self, config: Config, stack: Stack, is_decoder: bool) -> None:
        super().__init__()
        self.is_pre = config.norm == "pre"
        norm = lambda: nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.self_attn = Attention(config.d_model, stack.n_heads)
        self.feed_forward = FeedForward(config.d_model, stack.d_ff, config.activation)
        self.norm1 = norm()
        self.cross_attn = None
        if is_decoder and config.has_cross_attention:
            self.cross_attn = Attention(config.d_model, stack.n_heads)
            self.norm2 = norm()
        self.last_norm = "norm3" if is_decoder else "norm2"
        self.add_module(self.last_norm, norm())

    def forward(self, x: Tensor, visible: Tensor, memory: Tensor | None, seen: Tensor | None) -> Tensor:
        x = self._add(x, self.norm1, lambda y: self.self_attn(y, y, visible))
        if self.cross_attn is not None:
            x = self._add(x, self.norm2, lambda y: self.cross_attn(y, memory, seen))
        return self._add(x, self.get_submodule(self.last_norm), self.feed_forward)

    def _add(self, x: Tensor, norm: nn.Module, f: Any) -> Tensor:
        return x + f(norm(x)) if self.is_pre else norm(x + f(x))


class Ours(nn.Module):
    """A module with the names of docs/import.md."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        for name, side, stack, length, is_there in (
            ("encoder", "source", config.encoder, config.max_source_len, config.has_encoder),
            ("decoder", "target", config.decoder, config.max_target_len, config.has_decoder),
        ):
            if is_there:
                self._add_stack(name, getattr(config, f"{side}_vocab"), stack, length)
        if config.shared_embedding:
            self.encoder_embedding = self.decoder_embedding
        self.fc = nn.Linear(config.d_model, config.target_vocab, bias=config.output_has_bias)
        if config.output_is_tied:
            self.fc.weight = self.decoder_embedding.weight
        if config.positions != "learned":
            length = max(config.max_source_len, config.max_target_len)
            table = sinusoids(length, config.d_model, config.positions == "sinusoidal-halves")
            self.register_buffer("table", table.float(), persistent=False)

    def _add_stack(self, name: str, vocab: int, stack: Stack, length: int) -> None:
        config, is_decoder = self.config, name == "decoder"
        layers = (Layer(config, stack, is_decoder) for _ in range(stack.n_layers))
        self.add_module(f"{name}_embedding", nn.Embedding(vocab, config.d_model))
        self.add_module(f"{name}_layers", nn.ModuleList(layers))
        if config.positions == "learned":
            self.add_module(f"{name}_position_embedding", nn.Embedding(length, config.d_model))
        if config.final_norm:
            self.add_module(f"{name}_norm", nn.LayerNorm(config.d_model, config.layer_norm_eps))

    def _run(
        self, name: str, ids: Tensor, visible: Tensor, memory: Tensor | None, seen: Tensor | None
    ) -> Tensor:
        x = self.get_submodule(f"{name}_embedding")(ids)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        if self.config.positions == "learned":
            table = self.get_submodule(f"{name}_position_embedding").weight
        else:
            table = self.table
        x = x + table[: ids.shape[1]]
        for layer in self.get_submodule(f"{name}_layers"):
            x = layer(x, visible, memory, seen)
        return self.get_submodule(f"{name}_norm")(x) if self.config.final_norm else x

    def encode(self, source: Tensor, visible: Tensor, _: Record) -> Tensor:
        """As `Transformer.encode`, so that its search can be used."""
        return self._run("encoder", source, visible, None, None)

    def decode(
        self, target: Tensor, visible: Tensor, memory: Tensor | None, seen: Tensor | None, _: Record
    ) -> Tensor:
        """As `Transformer.decode`."""
        return self.fc(self._run("decoder", target, visible, memory, seen))

    def labels(self, symbols: list[int]) -> list[int]:
        """A label for every symbol, or one for their mean, the frame's ids included."""
        source = self.config.frame(symbols)
        memory = self.encode(torch.tensor([source]), torch.ones(1, 1, 1, len(source), dtype=torch.bool), Record())
        if self.config.family == "classifier":
            return self.fc(memory.mean(1)).argmax(-1).tolist()
        first = 1 if self.config.source_frame == "start-end" else 0
        return self.fc(memory)[0, first : first + len(symbols)].argmax(-1).tolist()

    def answer(self, given: list[int]) -> tuple[list[int], bool]:
        """Ids without the end id, and whether it came."""
        config = self.config
        if not config.has_decoder:
            return self.labels(given), True
        source, prompt = (config.frame(given), []) if config.has_encoder else (None, given)
        ids = greedy(Decoder(self, source), prompt, config.max_target_len).ids
        ended = ids[-1:] == [config.special.end]
        return ids[: len(ids) - ended], ended


def read_config(path: Path) -> Config:
    fields = json.loads(path.read_text())
    for name, kind in (("encoder", Stack), ("decoder", Stack), ("special", Special)):
        fields[name] = kind(**fields[name])
    return Config(**fields)


@torch.no_grad()
def main() -> None:
    folders = sorted(path for path in Path(sys.argv[1]).iterdir())
    assert len(folders) >= 6, f"only {len(folders)} models"
    for folder in folders:
        model = Ours(read_config(folder / "config.json")).eval()
        model.load_state_dict(load_file(folder / "model.safetensors"))
        answers = json.loads((folder / "answers.json").read_text())
        assert answers, f"{folder.name}: no answers"
        for row in answers:
            found = model.answer(row["given"])
            assert found == (row["ids"], row["ended"]), f"{folder.name}: {row}, PyTorch gives {found}"
        print(f"{folder.name}: {len(answers)} answers of the trainer's export are PyTorch's", flush=True)


if __name__ == "__main__":
    main()
