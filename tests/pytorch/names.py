"""State dicts as other programs name them, made of our model's."""

from __future__ import annotations

import torch
from torch import Tensor

from model import Transformer

StateDict = dict[str, Tensor]

# Parts of our names and what they are called in a tutorial that writes the network out layer by layer.
FULL = (
    ("source_embedding", "encoder_embedding"),
    ("target_embedding", "decoder_embedding"),
    ("encoder.layers", "encoder_layers"),
    ("decoder.layers", "decoder_layers"),
    ("self_attention", "self_attn"),
    ("cross_attention", "cross_attn"),
    (".query.", ".W_q."),
    (".key.", ".W_k."),
    (".value.", ".W_v."),
    ("attn.output.", "attn.W_o."),
    (".linear1.", ".fc1."),
    (".linear2.", ".fc2."),
    ("output.weight", "fc.weight"),
    ("output.bias", "fc.bias"),
)
# In one that keeps each stack in a module of its own.
STACKED = (
    ("source_embedding", "encoder.embedding"),
    ("target_embedding", "decoder.embedding"),
    ("source_positions", "encoder.position_embedding"),
    ("target_positions", "decoder.position_embedding"),
    (".query.", ".q_linear."),
    (".key.", ".k_linear."),
    (".value.", ".v_linear."),
    ("attention.output.", "attention.out."),
    (".feed_forward.linear", ".ff.linear"),
    ("output.weight", "fc_out.weight"),
    ("output.bias", "fc_out.bias"),
)


def renamed(model: Transformer, parts: tuple[tuple[str, str], ...]) -> StateDict:
    """The model's tensors under other names; its table of sinusoids too, which such programs store."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in parts:
            name = name.replace(ours, theirs) if name != theirs else name
        tensors[name] = tensor
    if model.config.positions != "learned":
        tensors["positional_encoding.pe"] = model.sinusoids[None]
    return tensors


def _fused(state: StateDict, ours: str, theirs: str) -> StateDict:
    """`torch.nn.MultiheadAttention` has query, key and value in one matrix."""
    parts = ("query", "key", "value")
    tensors = {}
    for kind in ("weight", "bias"):
        fused = torch.cat([state[f"{ours}.{part}.{kind}"] for part in parts])
        tensors[f"{theirs}.in_proj_{kind}"] = fused
        tensors[f"{theirs}.out_proj.{kind}"] = state[f"{ours}.output.{kind}"]
    return tensors


def torch_layers(model: Transformer, stack: str) -> StateDict:
    """One stack as `torch.nn.Transformer` names it."""
    state, tensors = model.state_dict(), {}
    for i in range(len(model.get_submodule(stack).layers)):
        ours = theirs = f"{stack}.layers.{i}"
        tensors |= _fused(state, f"{ours}.self_attention", f"{theirs}.self_attn")
        if stack == "decoder":
            tensors |= _fused(state, f"{ours}.cross_attention", f"{theirs}.multihead_attn")
        for kind in ("weight", "bias"):
            for part in ("linear1", "linear2"):
                tensors[f"{theirs}.{part}.{kind}"] = state[f"{ours}.feed_forward.{part}.{kind}"]
            for part in ("norm1", "norm2", "norm3")[: 3 if stack == "decoder" else 2]:
                tensors[f"{theirs}.{part}.{kind}"] = state[f"{ours}.{part}.{kind}"]
    for kind in ("weight", "bias"):
        tensors[f"{stack}.norm.{kind}"] = state[f"{stack}.norm.{kind}"]
    return tensors
