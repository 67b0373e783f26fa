"""What is too large to commit: `python live.py FOLDER` compares PyTorch's own modules with our network,
and writes checkpoints with their answers, which `tests/pytorch/live.rs` then imports.

Each subfolder of FOLDER holds a checkpoint as its program would write it, `config.json`, `vocab.json`
and `expected.json`.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

import live_marian
import live_torch
from architectures import A, B, C_AS_B, PARAMETERS
from config import Config
from model import Transformer
from names import FULL, STACKED, StateDict, renamed
from search import Beam, Decoder, greedy
from weights import random_model

# C with tables of positions as short as the answers.
SHORT_C = dataclasses.replace(
    C_AS_B, max_source_len=A.max_source_len, max_target_len=A.max_target_len
)
# Sentences that are tried, and answers that are wanted of them: clear ones that are not there yet.
TRIES, MOST, LEAST = 30, 6, 3
# HalfFloat rounds these weights to 11 bits, which moves a logit by some 1e-3 of the largest. An answer
# is clear where its closest decision was taken by more than this share of it.
MARGIN = 4e-3


def parameters(model: Transformer) -> int:
    return sum(p.numel() for p in model.parameters())


def to_single(model: Transformer) -> Transformer:
    """The model with weights that `f32` holds exactly, as a checkpoint has them."""
    for parameter in model.parameters():
        parameter.data = parameter.data.float().double()
    return model


def sentence(config: Config, rng: random.Random) -> list[int]:
    special = dataclasses.astuple(config.special)
    usable = [id for id in range(config.source_vocab) if id not in special]
    length = rng.randint(1, min(config.max_source_len, 24) - 1)
    return config.frame([rng.choice(usable) for _ in range(length)])


def beam(decoder: Decoder, index: int, width: int, alpha: float, max_len: int) -> tuple[dict[str, Any], float]:
    search = Beam(decoder, width, width, alpha, max_len)
    best = [{"ids": h.ids, "score": search.score(h)} for h in search.run()]
    row = {"sentence": index, "beams": width, "n": width, "alpha": alpha, "best": best}
    return row, search.margin


def answers(model: Transformer, seed: int) -> dict[str, Any]:
    """Greedy answers, and beam answers of the same sentences where they are clear too."""
    config, rng = model.config, random.Random(seed)
    max_len = config.max_target_len
    greedy_rows: list[dict[str, Any]] = []
    beam_rows: list[dict[str, Any]] = []
    for _ in range(TRIES):
        source = sentence(config, rng)
        decoder = Decoder(model, source)
        answer = greedy(decoder, [], max_len)
        margin = MARGIN * max(row.abs().max().item() for row in answer.logits)
        is_new = all(answer.ids != row["ids"] for row in greedy_rows)
        if answer.margin < margin or not is_new:
            continue
        row, beam_margin = beam(decoder, len(greedy_rows), 4, 0.6, max_len)
        if beam_margin > margin:
            beam_rows.append(row)
        greedy_rows.append({"source": source, "prompt": [], "ids": answer.ids})
        if len(greedy_rows) == MOST:
            break
    assert len(greedy_rows) >= LEAST, f"{len(greedy_rows)} clear answers"
    return {"greedy": greedy_rows, "beam": beam_rows}


def symbols(config: Config, size: int) -> list[str]:
    """A vocabulary with the usual names of special ids."""
    special = config.special
    names = {special.start: "<s>", special.pad: "<pad>", special.end: "</s>", special.unknown: "<unk>"}
    return [names.get(id, f"s{id}") for id in range(size)]


def write(folder: Path, model: Transformer, names: str, state: StateDict | None) -> None:
    """A checkpoint and what belongs to it; without `state` the checkpoint is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    if state is not None:
        single = {name: tensor.float() for name, tensor in state.items()}
        torch.save(single, folder / "model.pt")
        (folder / "config.json").write_text(json.dumps(config.to_json()))
    sizes = {"source": config.source_vocab, "target": config.target_vocab}
    vocab = {side: symbols(config, size) for side, size in sizes.items()}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    expected = {"parameters": parameters(model), "names": names, **answers(model, 1)}
    (folder / "expected.json").write_text(json.dumps(expected))
    counts = f"{len(expected['greedy'])} greedy and {len(expected['beam'])} beam answers"
    print(f"{folder.name}: {expected['parameters']} parameters, {counts}", flush=True)


def write_torch(folder: Path, norm: str, activation: str) -> None:
    """`torch.nn.Transformer` with embeddings and an output around it."""
    config = dataclasses.replace(
        SHORT_C, positions="sinusoidal-interleaved", norm=norm, activation=activation
    )
    model = to_single(random_model(config, 5))
    for is_training in (True, False):
        theirs = live_torch.compare(model, is_training)
    write(folder, model, "torch", theirs.state_dict())


def write_marian(folder: Path) -> None:
    theirs = live_marian.random_marian(1)
    theirs.save_pretrained(folder)
    ours = live_marian.our_model(theirs)
    rng = random.Random(2)
    sources = [sentence(ours.config, rng) for _ in range(4)]
    live_marian.compare(theirs, ours, sources)
    write(folder, ours, "marian", None)


def main() -> None:
    folder = Path(sys.argv[1])
    for name, (config, expected) in PARAMETERS.items():
        found = parameters(Transformer(config))
        assert found == expected, f"{name} has {found} parameters, not {expected}"
    with torch.no_grad():
        large = dataclasses.replace(A, final_norm=True)
        live_torch.compare(random_model(large, 7), is_training=True)
        write_torch(folder / "torch-post", "post", "relu")
        write_torch(folder / "torch-pre", "pre", "gelu")
        write_marian(folder / "marian")
        for name, config, parts in (("a", A, FULL), ("b", B, FULL), ("c", SHORT_C, STACKED)):
            model = to_single(random_model(config, 5))
            write(folder / name, model, "tutorial", renamed(model, parts))


if __name__ == "__main__":
    main()
