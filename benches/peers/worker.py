"""One engine in a process of its own.

`worker.py write ENGINE SIZE PRECISION FOLDER` writes its model. `worker.py serve ENGINE SIZE PRECISION
FOLDER` says that it is there and then answers one line of JSON to each line it reads: `load` and
`run N`, as `benches/host` does.
"""

import importlib
import json
import sys
import time
from pathlib import Path

import model


def serve(module, size, precision, folder):
    answer({"engine": module.__name__})
    engine = None
    for line in sys.stdin:
        command, *count = line.split()
        begin = time.perf_counter()
        if command == "load":
            engine = module.Engine(size, precision, folder)
            answer({"load_ms": (time.perf_counter() - begin) * 1e3})
        else:
            for _ in range(int(count[0])):
                ids = engine.generate()
                assert len(ids) == model.LEN, f"{len(ids)} ids instead of {model.LEN}"
            answer({"seconds": time.perf_counter() - begin, "ids": ids})


def answer(fields):
    print(json.dumps(fields), flush=True)


def main():
    action, engine, size, precision, folder = sys.argv[1:]
    module = importlib.import_module(f"engine_{engine}")
    arguments = model.SIZES[size], precision, Path(folder)
    {"write": module.write, "serve": lambda *arguments: serve(module, *arguments)}[action](*arguments)


if __name__ == "__main__":
    main()
