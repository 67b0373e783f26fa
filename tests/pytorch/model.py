"""The Transformer of Vaswani et al. 2017 with every choice of `ModelConfig`, in PyTorch.

Written from the formulas; parameters have the names of our trainer, activations those of its
`engine/observe.rs`. Matrix products, LayerNorm, softmax and the non-linearities are PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config import Config, Stack

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class Record(dict[str, Tensor]):
    """Activations by name."""

    def note(self, name: str, x: Tensor) -> Tensor:
        self[name] = x
        return x


def sinusoids(length: int, d_model: int, halves: bool) -> Tensor:
    """`[length, d_model]` of section 3.5: sine and cosine in turn, or all sines and then all cosines."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = 10_000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    sin, cos = torch.sin(position * frequency), torch.cos(position * frequency)
    if halves:
        return torch.cat([sin, cos], dim=1)
    return torch.stack([sin, cos], dim=2).reshape(length, d_model)


class Attention(nn.Module):
    """`softmax(Q K^T / sqrt(d_k)) V` by heads (section 3.2)."""

    def __init__(self, name: str, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.name, self.n_heads = name, n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor, record: Record) -> Tensor:
        """`x` `[b, q, d_model]` asks, `memory` `[b, k, d_model]` answers where `visible`
        `[b, 1, 1 or q, k]` is true."""
        query = self._split(record.note(f"{self.name}.query", self.query(x)))
        key = self._split(record.note(f"{self.name}.key", self.key(memory)))
        value = self._split(record.note(f"{self.name}.value", self.value(memory)))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        probabilities = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1)
        context = (probabilities @ value).transpose(1, 2).reshape(x.shape)
        record.note(f"{self.name}.context", context)
        return record.note(f"{self.name}.output", self.output(context))

    def _split(self, x: Tensor) -> Tensor:
        """`[b, len, d_model]` to `[b, n_heads, len, d_k]`."""
        return x.unflatten(2, (self.n_heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """`activation(x W1 + b1) W2 + b2` (section 3.3)."""

    def __init__(self, name: str, d_model: int, d_ff: int, activation: str) -> None:
        super().__init__()
        self.name, self.activation = name, ACTIVATIONS[activation]
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor, record: Record) -> Tensor:
        before = record.note(f"{self.name}.linear1", self.linear1(x))
        hidden = record.note(f"{self.name}.hidden", self.activation(before))
        return record.note(f"{self.name}.output", self.linear2(hidden))


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a memory to attend to, feed-forward.

    A decoder's feed-forward has norm3 with or without cross-attention, an encoder's norm2."""

    def __init__(self, name: str, config: Config, stack: Stack, is_decoder: bool) -> None:
        super().__init__()
        self.name, self.pre = name, config.norm == "pre"
        d_model, eps = config.d_model, config.layer_norm_eps
        self.self_attention = Attention(f"{name}.self_attention", d_model, stack.n_heads)
        self.norm1 = nn.LayerNorm(d_model, eps)
        self.has_cross = is_decoder and config.has_cross_attention
        if self.has_cross:
            self.cross_attention = Attention(f"{name}.cross_attention", d_model, stack.n_heads)
            self.norm2 = nn.LayerNorm(d_model, eps)
        feed_forward = f"{name}.feed_forward"
        self.feed_forward = FeedForward(feed_forward, d_model, stack.d_ff, config.activation)
        self.last = 3 if is_decoder else 2
        self.add_module(f"norm{self.last}", nn.LayerNorm(d_model, eps))

    def forward(
        self, x: Tensor, visible: Tensor, memory: Tensor | None, seen: Tensor | None, record: Record
    ) -> Tensor:
        """`visible` is what self-attention sees, `seen` what cross-attention sees of `memory`."""
        x = self._block(1, x, lambda y: self.self_attention(y, y, visible, record), record)
        if self.has_cross:
            cross = self.cross_attention
            x = self._block(2, x, lambda y: cross(y, memory, seen, record), record)
        return self._block(self.last, x, lambda y: self.feed_forward(y, record), record)

    def _block(
        self, n: int, x: Tensor, f: Callable[[Tensor], Tensor], record: Record
    ) -> Tensor:
        """Pre-LN `x + f(norm(x))` (Xiong et al. 2020) or post-LN `norm(x + f(x))` (section 3.1)."""
        norm = self.get_submodule(f"norm{n}")
        if self.pre:
            y = record.note(f"{self.name}.norm{n}", norm(x))
            return record.note(f"{self.name}.sum{n}", x + f(y))
        total = record.note(f"{self.name}.sum{n}", x + f(x))
        return record.note(f"{self.name}.norm{n}", norm(total))


class LayerStack(nn.Module):
    """The encoder or the decoder, above its embedding."""

    def __init__(self, name: str, config: Config, stack: Stack, is_decoder: bool) -> None:
        super().__init__()
        self.name = name
        self.layers = nn.ModuleList(
            Layer(f"{name}.layers.{i}", config, stack, is_decoder) for i in range(stack.n_layers)
        )
        self.norm = nn.LayerNorm(config.d_model, config.layer_norm_eps) if config.final_norm else None

    def forward(
        self, x: Tensor, visible: Tensor, memory: Tensor | None, seen: Tensor | None, record: Record
    ) -> Tensor:
        record.note(f"{self.name}.embed", x)
        for layer in self.layers:
            x = layer(x, visible, memory, seen, record)
        return x if self.norm is None else record.note(f"{self.name}.norm", self.norm(x))


class Output(nn.Module):
    """The output projection's own parameters: none of them, a bias, a matrix, or both."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        shape = (config.target_vocab, config.d_model)
        self.weight = None if config.output_is_tied else nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(shape[0])) if config.output_has_bias else None


class Transformer(nn.Module):
    """The whole network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        if config.has_encoder:
            if not config.shared_embedding:
                self.source_embedding = nn.Embedding(config.source_vocab, d_model)
            self.encoder = LayerStack("encoder", config, config.encoder, False)
        if config.has_decoder:
            self.target_embedding = nn.Embedding(config.target_vocab, d_model)
            self.decoder = LayerStack("decoder", config, config.decoder, True)
        self.output = Output(config)
        self._make_positions()

    def _make_positions(self) -> None:
        config = self.config
        lengths = {"source": config.max_source_len, "target": config.max_target_len}
        for side, length in lengths.items():
            if length and config.positions == "learned":
                self.add_module(f"{side}_positions", nn.Embedding(length, config.d_model))
        if config.positions != "learned":
            halves = config.positions == "sinusoidal-halves"
            table = sinusoids(max(lengths.values()), config.d_model, halves)
            self.register_buffer("sinusoids", table, persistent=False)

    def _embed(self, side: str, ids: Tensor) -> Tensor:
        """`E[id] * sqrt(d_model) + position` (sections 3.4 and 3.5): `[b, len]` to `[b, len, d_model]`."""
        table = "target" if self.config.shared_embedding else side
        x = self.get_submodule(f"{table}_embedding")(ids)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        length = ids.shape[1]
        if self.config.positions == "learned":
            return x + self.get_submodule(f"{side}_positions").weight[:length]
        return x + self.sinusoids[:length].to(x.dtype)

    def _project(self, hidden: Tensor) -> Tensor:
        weight = self.output.weight
        return F.linear(hidden, self.target_embedding.weight if weight is None else weight, self.output.bias)

    def encode(self, source: Tensor, source_visible: Tensor, record: Record) -> Tensor:
        """`memory` `[b, s, d_model]` of the source ids `[b, s]`; `source_visible` is `[b, 1, 1, s]`."""
        return self.encoder(self._embed("source", source), source_visible, None, None, record)

    def decode(
        self,
        target: Tensor,
        target_visible: Tensor,
        memory: Tensor | None,
        source_visible: Tensor | None,
        record: Record,
    ) -> Tensor:
        """Logits `[b, t, target_vocab]` of the ids `[b, t]` that the decoder reads."""
        x = self._embed("target", target)
        hidden = self.decoder(x, target_visible, memory, source_visible, record)
        return self._project(hidden)

    def label(self, memory: Tensor, source_visible: Tensor) -> Tensor:
        """Logits of a tagger `[b, s, labels]`, or of a classifier `[b, 1, labels]`, whose output reads
        the mean over all positions but padding."""
        if self.config.family == "tagger":
            return self._project(memory)
        weights = source_visible[:, 0, 0, :, None].to(memory.dtype)
        return self._project((memory * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True))


def padding_mask(lengths: list[int]) -> Tensor:
    """`[b, 1, 1, len]`: true where there is an id. From lengths, because pad may be the start id too."""
    places = torch.arange(max(lengths))
    return (places < torch.tensor(lengths)[:, None])[:, None, None, :]


def combined_mask(lengths: list[int]) -> Tensor:
    """`[b, 1, len, len]`: true where query i may see key j, which takes j <= i and no padding at j."""
    n = max(lengths)
    return padding_mask(lengths) & torch.ones(n, n, dtype=torch.bool).tril()


def loss(logits: Tensor, labels: Tensor, counts: Tensor, smoothing: float, skipped: int | None) -> Tensor:
    """Mean over the labels that count of the cross-entropy with label smoothing (Szegedy et al. 2016).

    `smoothing` of the target distribution is spread over all ids but `skipped`. `labels` and `counts`
    are `[b, t]`."""
    log_probabilities = torch.log_softmax(logits, dim=-1)
    likelihood = log_probabilities.gather(2, labels[..., None])[..., 0]
    ids = [id for id in range(logits.shape[-1]) if id != skipped]
    spread = log_probabilities[..., ids].mean(-1)
    each = -(1.0 - smoothing) * likelihood - smoothing * spread
    return (each * counts).sum() / counts.sum()
