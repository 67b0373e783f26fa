"""Random weights."""

from __future__ import annotations

import math

import torch

from config import Config
from model import Transformer


def random_model(config: Config, seed: int) -> Transformer:
    """Weights of a size that gives attention and outputs a shape of their own, in f64."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config).double().eval()
    for name, parameter in model.named_parameters():
        uniform = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.3 * uniform
        elif parameter.dim() == 1:
            values = 0.3 * uniform
        elif "embedding" in name or "positions" in name:
            # Positions are as large as what they are added to.
            is_large = config.scale_embedding and "positions" in name
            values = uniform * math.sqrt(3 if is_large else 3 / config.d_model)
        else:
            # A stream that nothing normalises has entries near 10.
            is_wild = name == "output.weight" and config.norm == "pre" and not config.final_norm
            gain = 0.15 if is_wild else 1.5
            values = uniform * gain * math.sqrt(6 / sum(parameter.shape))
        parameter.data = values
    return model


def round_to_half(model: Transformer) -> Transformer:
    """The model with weights that f16 holds exactly."""
    for parameter in model.parameters():
        parameter.data = parameter.data.half().double()
    return model
