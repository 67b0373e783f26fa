"""Writes the fixtures: `python make_fixtures.py FOLDER`. With `--search NAME...`,
prints seeds for `cases.py`.

Everything is computed in f64 on one thread and stored as f32, so that a fixture is the exact answer
to f32's last bit. PyTorch's own f32 must agree with it, or the script stops.
"""

from __future__ import annotations

import json
import math
import platform
import random
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cases import SEEDS, cases
from config import Config
from model import Record, Transformer, combined_mask, loss, padding_mask
from quantize import distance
from search import Beam, Decoder, greedy
from weights import random_model, round_to_half

SMOOTHING = 0.1
SENTENCES = 4
# Below these a decision could fall differently in f32, whose logits are good to about 1e-5.
GREEDY_MARGIN, BEAM_MARGIN = 1e-3, 1e-4
# PyTorch's f32 against its f64: rounding of some hundred operations on numbers near 1.
SINGLE_TOLERANCE = 2e-5
# Fixtures with every activation; the others have what enters and leaves each layer.
DETAILED = ("pre", "gelu-tanh")


class Batch:
    """Padded sentences of unequal lengths with their masks; what a family does not have is None."""

    def __init__(self, config: Config, rng: random.Random) -> None:
        self.config = config
        lengths = [config.max_source_len - len(config.frame([])), 1, 4, 2]
        self.symbols = [_ids(rng, config.source_vocab, config, n) for n in lengths]
        self.sources = [config.frame(s) for s in self.symbols] if config.has_encoder else None
        targets, self.labels = self._targets(rng)
        self.target = self.target_visible = self.source = self.source_visible = None
        if self.sources:
            self.source = _padded(self.sources, config.special.pad)
            self.source_visible = padding_mask([len(s) for s in self.sources])
        if config.has_decoder:
            self.target = _padded(targets, config.special.pad)
            self.target_visible = combined_mask([len(t) for t in targets])

    def _targets(self, rng: random.Random) -> tuple[list[list[int]], list[list[int | None]]]:
        """What the decoder reads, and what the output must say: None where nothing is asked."""
        config, special = self.config, self.config.special
        if config.has_decoder:
            lengths = [3, config.max_target_len - 1, 1, 0 if config.has_encoder else 2]
            symbols = [_ids(rng, config.target_vocab, config, n) for n in lengths]
            return [[special.start, *s] for s in symbols], [[*s, special.end] for s in symbols]
        label = lambda: rng.randrange(config.target_vocab)
        if config.family == "classifier":
            return [], [[label()] for _ in self.symbols]
        first = 1 if config.source_frame == "start-end" else 0
        tags = [[label() for _ in symbols] for symbols in self.symbols]
        ends = [len(source) - len(tag) - first for source, tag in zip(self.sources, tags)]
        return [], [[None] * first + tag + [None] * end for tag, end in zip(tags, ends)]

    def forward(self, model: Transformer, record: Record) -> Tensor:
        """Logits `[b, t, target_vocab]`."""
        memory = None
        if self.source is not None:
            memory = model.encode(self.source, self.source_visible, record)
        if self.target is None:
            return record.note("logits", model.label(memory, self.source_visible))
        read = (self.target, self.target_visible, memory, self.source_visible)
        return record.note("logits", model.decode(*read, record))

    def loss(self, logits: Tensor) -> Tensor:
        skipped = self.config.special.pad if self.config.has_decoder else None
        labels, counts = self.label_tensors()
        return loss(logits, labels, counts, SMOOTHING, skipped)

    def label_tensors(self) -> tuple[Tensor, Tensor]:
        """Labels and whether each counts, both `[b, t]`."""
        asked = [[label is not None for label in row] for row in self.labels]
        fill = self.config.special.pad if self.config.has_decoder else 0
        labels = [[fill if label is None else label for label in row] for row in self.labels]
        return _padded(labels, fill), _padded(asked, False)

    def tensors(self) -> dict[str, Tensor]:
        labels, counts = self.label_tensors()
        found = {
            "source": self.source,
            "source_visible": self.source_visible,
            "target": self.target,
            "target_visible": self.target_visible,
            "labels": labels,
            "counts": counts,
        }
        narrow = lambda x: x.to(torch.uint8 if x.dtype == torch.bool else torch.int32)
        return {name: narrow(x).contiguous() for name, x in found.items() if x is not None}


def _ids(rng: random.Random, vocab: int, config: Config, n: int) -> list[int]:
    special = config.special
    reserved = (special.pad, special.start, special.end)
    usable = [id for id in range(vocab) if id not in reserved]
    return [rng.choice(usable) for _ in range(n)] if usable else []


def _padded(rows: list[list[Any]], fill: Any) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def activations(config: Config, record: Record, detailed: bool) -> dict[str, Tensor]:
    """Everything, or what enters and leaves each layer, and the logits."""
    if detailed:
        # The trainer does not look at what a ReLU reads: its scale is that of what it gives.
        hidden = "linear1" if config.activation == "relu" else "-"
        return {name: x for name, x in record.items() if not name.endswith(hidden)}
    place = "sum" if config.norm == "pre" else "norm"
    ends = (f".{place}3", "encoder.norm", "decoder.norm", "embed", "logits")
    is_wanted = lambda name: name.endswith(ends) or (
        name.startswith("encoder") and name.endswith(f".{place}2")
    )
    return {name: x for name, x in record.items() if is_wanted(name)}


def answers(model: Transformer, batch: Batch) -> tuple[list[dict[str, Any]], Tensor, float]:
    """Greedy ids by sentence, the logits of all their steps one below the other, the margin."""
    config = model.config
    prompts = [symbols[:2] for symbols in _prompts(batch)]
    sources = batch.sources or [None] * len(prompts)
    rows, logits, margin = [], [], math.inf
    for source, prompt in zip(sources, prompts):
        answer = greedy(Decoder(model, source), prompt, config.max_target_len)
        rows.append({"source": source, "prompt": prompt, "ids": answer.ids})
        logits += answer.logits
        margin = min(margin, answer.margin)
    return rows, torch.stack(logits), margin


def _prompts(batch: Batch) -> list[list[int]]:
    """A language model goes on with the start of its targets; the others have no prompt."""
    if batch.config.has_encoder:
        return [[] for _ in batch.sources]
    pad = batch.config.special.pad
    return [[id for id in row[1:] if id != pad] for row in batch.target.tolist()[:3]]


def beams(model: Transformer, greedy_rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
    """Beam outputs for one beam, four, and more than there are ids."""
    config = model.config
    rows, margin = [], math.inf
    for width, n in ((1, 1), (4, 4), (config.target_vocab + 3, 3)):
        for alpha in (0.0, 0.6, 1.0):
            for index in range(2):
                decoder = Decoder(model, greedy_rows[index]["source"])
                search = Beam(decoder, width, n, alpha, config.max_target_len)
                best = [{"ids": h.ids, "score": search.score(h)} for h in search.run()]
                what = {"sentence": index, "beams": width, "n": n, "alpha": alpha}
                rows.append({**what, "best": best})
                margin = min(margin, search.margin)
    return rows, margin


def decode(model: Transformer, batch: Batch) -> tuple[dict[str, Any], dict[str, Tensor], float]:
    """Everything that is searched for, and by how much the closest decision is off its bound."""
    if not model.config.has_decoder:
        counts = batch.label_tensors()[1]
        logits = lambda model: batch.forward(model, Record())[counts]
        best, second = logits(model).topk(2, dim=-1).values.unbind(-1)
        margin = (best - second).min().item() / GREEDY_MARGIN
        return {"quantization": distance(model, logits)}, {}, margin
    rows, logits, margin = answers(model, batch)
    beam_rows, beam_margin = beams(model, rows)
    margin = min(margin / GREEDY_MARGIN, beam_margin / BEAM_MARGIN)
    found = {"greedy": rows, "beam": beam_rows}
    found["quantization"] = distance(model, lambda model: steps(model, rows))
    return found, {"greedy_logits": logits}, margin


def steps(model: Transformer, rows: list[dict[str, Any]]) -> Tensor:
    """Logits of all steps of greedy answers."""
    logits = []
    for row in rows:
        decoder = Decoder(model, row["source"])
        for length in range(len(row["ids"])):
            logits.append(decoder.logits([row["prompt"] + row["ids"][:length]])[0])
    return torch.stack(logits)


def gradients(model: Transformer, batch: Batch, record: Record) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    value = batch.loss(batch.forward(model, record))
    value.backward()
    return value, {name: p.grad for name, p in model.named_parameters()}


def check_single(config: Config, model: Transformer, batch: Batch, exact: Tensor) -> None:
    """PyTorch in f32 says the same."""
    single = Transformer(config).eval()
    single.load_state_dict(model.state_dict())
    logits = batch.forward(single, Record()).double()
    distance = (logits - exact).abs().max().item()
    assert distance < SINGLE_TOLERANCE * exact.abs().max().item(), distance


def is_varied(found: dict[str, Any]) -> bool:
    """Whether greedy search ends both by itself and at the limit, and says different things."""
    if "greedy" not in found:
        return True
    answers = [row["ids"] for row in found["greedy"]]
    lengths, symbols = {len(ids) for ids in answers}, max(len(set(ids)) for ids in answers)
    return len({str(ids) for ids in answers}) > 2 and len(lengths) > 1 and symbols > 2


def fixture(name: str, config: Config, seed: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of one case; None where a decision is too close, or nothing is decided."""
    # So that a HalfFloat file holds the very same weights.
    model = round_to_half(random_model(config, seed))
    batch = Batch(config, random.Random(seed))
    with torch.no_grad():
        found, tensors, margin = decode(model, batch)
        if margin < 1 or not is_varied(found):
            return None
    record = Record()
    value, grads = gradients(model, batch, record)
    with torch.no_grad():
        check_single(config, model, batch, record["logits"])
    tensors |= {f"activations.{k}": x for k, x in activations(config, record, name in DETAILED).items()}
    tensors |= {f"gradients.{k}": x for k, x in grads.items()}
    tensors = {k: x.detach().float().contiguous() for k, x in tensors.items()}
    tensors |= {f"weights.{k}": p.detach().half() for k, p in model.named_parameters()}
    facts = {
        "config": config.to_json(),
        "smoothing": SMOOTHING,
        "loss": value.item(),
        "seed": seed,
        **found,
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
    }
    return tensors | batch.tensors(), facts


def search(name: str, config: Config) -> None:
    """Prints the first seed that gives a fixture."""
    for seed in range(10_000):
        if fixture(name, config, seed) is not None:
            print(f'    "{name}": {seed},', flush=True)
            return
    raise SystemExit(f"{name}: no seed gives decisions that are not close")


def write(folder: Path, name: str, config: Config) -> None:
    made = fixture(name, config, SEEDS[name])
    if made is None:
        raise SystemExit(f"{name}: seed {SEEDS[name]} does not do; see --search")
    tensors, facts = made
    save_file(tensors, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if sys.argv[1] == "--search":
        for name in sys.argv[2:]:
            search(name, cases()[name])
        return
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in cases().items():
        write(folder, name, config)


if __name__ == "__main__":
    main()
