"""How far 8-bit weights, keys and values alone move the logits: what FixedPoint cannot be better than.

Weights have one scale a row, keys and values one a head, as FixedPoint has them; all else stays f64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from model import Attention, Transformer


class EightBits:
    """A forward hook that rounds keys or values to steps of their head's largest magnitude / 127, which
    it has seen before."""

    def __init__(self, n_heads: int) -> None:
        self.n_heads, self.is_measuring = n_heads, True
        self.largest = torch.zeros(())

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        heads = output.unflatten(-1, (self.n_heads, -1))
        if self.is_measuring:
            self.largest = torch.maximum(self.largest, heads.abs().amax((0, 1, 3))[:, None])
            return output
        step = self.largest / 127
        return ((heads / step).round().clamp(-127, 127) * step).flatten(-2)


def distance(model: Transformer, logits: Callable[[Transformer], Tensor]) -> float:
    """Distance between the logits of `model` and those of its quantized copy, over their norm."""
    exact = logits(model)
    quantized = copy.deepcopy(model)
    hooks = []
    for attention in (m for m in quantized.modules() if isinstance(m, Attention)):
        for linear in (attention.key, attention.value):
            hooks.append(EightBits(attention.n_heads))
            linear.register_forward_hook(hooks[-1])
    logits(quantized)
    for hook in hooks:
        hook.is_measuring = False
    for parameter in quantized.parameters():
        if parameter.dim() == 2:
            step = parameter.data.abs().amax(1, keepdim=True) / 127
            parameter.data = (parameter.data / step).round() * step
    return ((logits(quantized) - exact).norm() / exact.norm()).item()
