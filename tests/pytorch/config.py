"""What a model is: `ModelConfig` of the crate `model-format`, with the names and values of its JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stack:
    """The sizes of one stack of layers; all 0 where a family does not have it."""

    n_layers: int = 2
    n_heads: int = 2
    d_ff: int = 16


@dataclass(frozen=True)
class Special:
    """The ids with a meaning of their own."""

    pad: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3


@dataclass(frozen=True)
class Config:
    """The architecture of a model."""

    family: str = "encoder-decoder"
    d_model: int = 12
    encoder: Stack = field(default_factory=Stack)
    decoder: Stack = field(default_factory=Stack)
    source_vocab: int = 11
    target_vocab: int = 13
    max_source_len: int = 9
    max_target_len: int = 8
    norm: str = "pre"
    final_norm: bool = True
    positions: str = "sinusoidal-interleaved"
    output: str = "tied"
    shared_embedding: bool = False
    scale_embedding: bool = True
    source_frame: str = "end"
    activation: str = "relu"
    layer_norm_eps: float = 1e-5
    special: Special = field(default_factory=Special)

    @property
    def has_encoder(self) -> bool:
        return self.family != "decoder-only"

    @property
    def has_decoder(self) -> bool:
        return self.family in ("encoder-decoder", "decoder-only")

    @property
    def has_cross_attention(self) -> bool:
        return self.family == "encoder-decoder"

    @property
    def output_is_tied(self) -> bool:
        return self.output in ("tied", "tied-bias")

    @property
    def output_has_bias(self) -> bool:
        return self.output in ("tied-bias", "untied-bias")

    def frame(self, symbols: list[int]) -> list[int]:
        """A source as the encoder reads it."""
        start = [self.special.start] if self.source_frame == "start-end" else []
        end = [self.special.end] if self.source_frame != "bare" else []
        return start + symbols + end

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
