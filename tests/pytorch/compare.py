"""Compares two folders of fixtures: `python compare.py COMMITTED REGENERATED`.

The committed ones must be what the scripts make now: the same files, tensors, ids and facts, numbers
within `TOLERANCE` of the largest of their tensor. The version of Python may differ.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

TOLERANCE = 1e-6


def compare_tensors(name: str, a: Path, b: Path) -> int:
    committed, regenerated = load_file(a), load_file(b)
    assert committed.keys() == regenerated.keys(), name
    for key, x in committed.items():
        y = regenerated[key]
        assert (x.shape, x.dtype) == (y.shape, y.dtype), f"{name}: {key}"
        x, y = x.double(), y.double()
        distance, largest = (x - y).abs().max().item(), x.abs().max().item()
        # The gradient of a key's bias is zero but for rounding.
        assert distance <= TOLERANCE * largest + 1e-9, f"{name}: {key} differs by {distance}"
    return len(committed)


def compare_facts(where: str, a: Any, b: Any) -> None:
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a.keys() - {"python"}:
            compare_facts(f"{where}.{key}", a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            compare_facts(f"{where}[{i}]", x, y)
    elif isinstance(a, float):
        assert math.isclose(a, b, rel_tol=TOLERANCE), f"{where}: {a} is now {b}"
    else:
        assert a == b, f"{where}: {a} is now {b}"


def main() -> None:
    committed, regenerated = map(Path, sys.argv[1:])
    names = sorted(path.name for path in committed.iterdir())
    assert names == sorted(path.name for path in regenerated.iterdir()), "other files"
    tensors = 0
    for json_name in (name for name in names if name.endswith(".json")):
        a, b = committed / json_name, regenerated / json_name
        compare_facts(a.stem, json.loads(a.read_text()), json.loads(b.read_text()))
        pair = (path.with_suffix(".safetensors") for path in (a, b))
        tensors += compare_tensors(a.stem, *pair)
    print(f"{len(names) // 2} fixtures with {tensors} tensors are what PyTorch makes now")


if __name__ == "__main__":
    main()
