"""The documents' models: their sizes, as exact numbers of parameters."""

from __future__ import annotations

import dataclasses

from config import Config, Stack

_A_STACK, _B_STACK = Stack(3, 8, 512), Stack(2, 4, 256)

# A: the full implementation.
A = Config(
    d_model=256,
    encoder=_A_STACK,
    decoder=_A_STACK,
    source_vocab=10_000,
    target_vocab=10_000,
    max_source_len=40,
    max_target_len=12,
    norm="post",
    final_norm=False,
    output="untied-bias",
)
A_TIED = dataclasses.replace(A, output="tied")
# B: the teaching version.
B = dataclasses.replace(
    A, d_model=64, encoder=_B_STACK, decoder=_B_STACK, source_vocab=1_000, target_vocab=1_000
)
# C: the article with its attention repaired, at the sizes of B and of A.
C_AS_B, C_AS_A = (
    dataclasses.replace(
        base, final_norm=True, positions="learned", max_source_len=512, max_target_len=512
    )
    for base in (B, A)
)

PARAMETERS = {
    "A": (A, 11_643_664),
    "A, tied": (A_TIED, 9_073_664),
    "B": (B, 426_472),
    "C at the sizes of B": (C_AS_B, 492_264),
    "C at the sizes of A": (C_AS_A, 11_906_832),
}
