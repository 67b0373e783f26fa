"""The model that all peers run: three sizes, random float32 weights, one sentence.

Pre-LayerNorm, ReLU, embeddings times sqrt(d_model), sinusoidal positions, an output tied to the target
embedding with a bias: what `benches/host` says of ours. Queries, keys and values are one matrix where
they read the same, as the fastest form of every engine has it.
"""

from dataclasses import dataclass

import numpy as np

LEN = 32
"""Ids of the source, its end id among them, and ids that are generated."""
PAD, START, END, UNKNOWN = range(4)
EPS = 1e-5
SEED = 1
NEVER_BEST = -1e4
"""The bias of the end id: no answer ends before `LEN`."""


@dataclass(frozen=True)
class Size:
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    vocab: int

    @property
    def d_k(self):
        return self.d_model // self.n_heads

    def __str__(self):
        n = self.n_layers
        return f"d{self.d_model} h{self.n_heads} ff{self.d_ff} {n}+{n}, vocabulary {self.vocab}"


SIZES = {
    "S": Size(64, 4, 256, 2, 1000),
    "M": Size(256, 8, 512, 3, 10000),
    "B": Size(512, 8, 2048, 6, 10000),
}


def source(size):
    """`LEN` ids, the last of them the end id."""
    ids = np.random.default_rng(SEED).integers(UNKNOWN + 1, size.vocab, LEN - 1)
    return [*ids.tolist(), END]


def positions(size):
    """`[2 LEN, d_model]`: sine at even and cosine at odd columns (Vaswani et al. 2017, section 3.5)."""
    pairs = np.arange(size.d_model // 2)
    angles = np.arange(2 * LEN)[:, None] / 10000 ** (2 * pairs / size.d_model)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(2 * LEN, -1).astype(np.float32)


def weights(size):
    """Arrays by name; a matrix is `[outputs, inputs]`."""
    random = np.random.default_rng(SEED)
    d = size.d_model
    arrays = {}

    def normal(name, shape, spread):
        arrays[name] = (random.standard_normal(shape) * spread).astype(np.float32)

    def linear(name, outputs, inputs, spread=1.0):
        normal(f"{name}.weight", (outputs, inputs), spread / inputs**0.5)
        normal(f"{name}.bias", outputs, 0.1)

    def norm(name, signs=False):
        # A tied output would repeat the token before for ever if the last LayerNorm kept all signs.
        sign = random.choice([-1.0, 1.0], d) if signs else 1.0
        arrays[f"{name}.weight"] = (sign * random.uniform(0.7, 1.3, d)).astype(np.float32)
        normal(f"{name}.bias", d, 0.1)

    def attention(name):
        linear(f"{name}.qkv", 3 * d, d, 2.0)
        linear(f"{name}.output", d, d)

    for stack in "encoder", "decoder":
        normal(f"{stack}.embedding", (size.vocab, d), d**-0.5)
        for layer in range(size.n_layers):
            name = f"{stack}.{layer}"
            norm(f"{name}.norm1")
            attention(f"{name}.self")
            if stack == "decoder":
                norm(f"{name}.norm2")
                linear(f"{name}.cross.query", d, d, 2.0)
                linear(f"{name}.cross.kv", 2 * d, d, 2.0)
                linear(f"{name}.cross.output", d, d, 2.0)
            norm(f"{name}.norm3")
            linear(f"{name}.linear1", size.d_ff, d)
            linear(f"{name}.linear2", d, size.d_ff)
        norm(f"{stack}.norm", signs=stack == "decoder")
    normal("output.bias", size.vocab, 0.1)
    arrays["output.bias"][[PAD, START, END]] = NEVER_BEST
    return arrays
