"""The architectures of the fixtures: every value of every option at least once."""

from __future__ import annotations

from config import Config, Special, Stack

# Found by `make_fixtures.py --search`: random models whose answers differ and whose decisions are not close.
SEEDS = {
    "pre": 6424,
    "post": 1257,
    "pre-no-final-norm": 7,
    "post-final-norm": 7601,
    "learned": 1258,
    "halves": 2122,
    "gelu": 4246,
    "gelu-tanh": 5966,
    "unscaled": 163,
    "odd-sizes": 1650,
    "d-k-of-2": 9325,
    "start-end": 7997,
    "bare": 7709,
    "coarse-eps": 2377,
    "shared-untied": 3374,
    "shared-tied": 8941,
    "marian": 7878,
    "decoder-only": 2196,
    "decoder-only-post": 2917,
    "tagger": 8628,
    "tagger-bare": 8109,
    "classifier": 8375,
    "classifier-start-end": 751,
}
MARIAN_IDS = Special(pad=12, start=12, end=0, unknown=1)
NONE = Stack(0, 0, 0)


def _encoder_decoder() -> dict[str, Config]:
    stacks = {"encoder": Stack(2, 3, 15), "decoder": Stack(2, 2, 14)}
    shared = {"source_vocab": 13, "shared_embedding": True}
    odd = {"encoder": Stack(1, 5, 7), "decoder": Stack(3, 3, 17)}
    return {
        "pre": Config(**stacks),
        "post": Config(**stacks, norm="post", final_norm=False, output="untied-bias"),
        "pre-no-final-norm": Config(**stacks, final_norm=False, output="untied"),
        "post-final-norm": Config(**stacks, norm="post", positions="learned", output="untied-bias"),
        "learned": Config(**stacks, positions="learned", output="tied-bias"),
        "halves": Config(**stacks, positions="sinusoidal-halves", activation="silu"),
        "gelu": Config(**stacks, activation="gelu", output="untied"),
        "gelu-tanh": Config(**stacks, norm="post", activation="gelu-tanh", output="tied-bias"),
        "unscaled": Config(**stacks, norm="post", positions="learned", scale_embedding=False),
        "odd-sizes": Config(**odd, d_model=15, positions="learned", activation="silu"),
        "d-k-of-2": Config(d_model=18, encoder=Stack(1, 9, 11), decoder=Stack(2, 3, 9), norm="post"),
        "start-end": Config(**stacks, source_frame="start-end", source_vocab=9),
        "bare": Config(**stacks, source_frame="bare", positions="learned", norm="post"),
        "coarse-eps": Config(**stacks, layer_norm_eps=1e-3, final_norm=False, norm="post"),
        "shared-untied": Config(**stacks, **shared, output="untied-bias"),
        "shared-tied": Config(**stacks, **shared, norm="post", output="tied"),
        "marian": Config(
            **stacks,
            **shared,
            norm="post",
            final_norm=False,
            positions="sinusoidal-halves",
            output="tied-bias",
            activation="silu",
            special=MARIAN_IDS,
        ),
    }


def _decoder_only() -> dict[str, Config]:
    base = {"family": "decoder-only", "encoder": NONE, "source_vocab": 0, "max_source_len": 0}
    return {
        "decoder-only": Config(**base, activation="gelu", positions="learned"),
        "decoder-only-post": Config(
            **base, decoder=Stack(2, 3, 14), norm="post", final_norm=False, output="untied-bias"
        ),
    }


def _encoder_only() -> dict[str, Config]:
    base = {"decoder": NONE, "max_target_len": 0, "target_vocab": 5}
    tagger = {**base, "family": "tagger", "output": "untied-bias"}
    classifier = {**base, "family": "classifier", "output": "untied"}
    return {
        "tagger": Config(**tagger, encoder=Stack(2, 3, 14)),
        "tagger-bare": Config(**tagger, norm="post", source_frame="bare", activation="gelu-tanh"),
        "classifier": Config(**classifier, norm="post", final_norm=False, positions="learned"),
        "classifier-start-end": Config(**classifier, source_frame="start-end", activation="silu"),
    }


def cases() -> dict[str, Config]:
    """All of them, by name."""
    return {**_encoder_decoder(), **_decoder_only(), **_encoder_only()}
