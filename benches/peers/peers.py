"""Measures all engines in turns and prints what came out as Markdown.

Every engine has a process of its own and rests while another one works. A round asks each of them once,
so that what disturbs the machine disturbs all; ratios are taken within a round, and their median counts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import model

HERE = Path(__file__).parent
# Our numbers, and the peers whose load, memory and files each is compared with.
OURS = {"W8A16": "int8", "W4A16": None, "HalfFloat": "float32"}
PEERS = [
    ("ctranslate2", "int8"),
    ("ctranslate2", "float32"),
    ("onnxruntime", "int8"),
    ("onnxruntime", "float32"),
    ("pytorch", "float32"),
]
# One thread each, which does not spin while another engine works.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
TURN_SECONDS = 0.15
LOADS = 5
# Most CPU seconds per second of one thread: the two clocks are not read at the same moment.
ONE_CPU = 1.1
# A turn that had less of a CPU than this was disturbed.
UNDISTURBED = 0.95


class Process:
    """An engine that answers line by line."""

    def __init__(self, command):
        env = os.environ | ONE_THREAD
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.answer()
        self.idle_bytes = self.memory("VmRSS")
        self.load = self.ask("load")

    def ask(self, line):
        print(line, file=self.child.stdin, flush=True)
        return self.answer()

    def answer(self):
        line = self.child.stdout.readline()
        if not line:
            sys.exit(f"{self.child.args} ended: exit code {self.child.wait()}")
        return json.loads(line)

    def memory(self, key):
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(f"{key}:")]
        return int(line.split()[1]) * 1024

    def cpu_seconds(self):
        tasks = Path(f"/proc/{self.child.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def close(self):
        self.child.stdin.close()
        self.child.wait()


@dataclass
class Engine:
    """What runs one model, and what was measured of it."""

    name: str
    numbers: str
    serve: list
    path: Path
    count: int = 1
    loads: list = field(default_factory=list)
    rates: list = field(default_factory=list)
    shares: list = field(default_factory=list)
    ids: list = None
    process: Process = None

    @property
    def load_ms(self):
        keys = ["read_ms", "structure_ms", "session_ms", "load_ms"]
        return median(sum(load.get(key, 0) for key in keys) for load in self.loads)

    @property
    def file_bytes(self):
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files)

    def start(self):
        if self.process:
            self.process.close()
        self.process = Process(self.serve)
        self.loads.append(self.process.load)

    def turn(self):
        """Seconds of `count` generations on the wall's clock and on the CPU's; they must be what they
        were before."""
        cpu = self.process.cpu_seconds()
        answer = self.process.ask(f"run {self.count}")
        cpu = self.process.cpu_seconds() - cpu
        ids = answer["ids"]
        assert len(ids) == model.LEN and model.END not in ids, f"{self.name} {self.numbers}: {ids}"
        assert self.ids in (None, ids), f"{self.name} {self.numbers} changes its mind"
        self.ids = ids
        return {"wall": answer["seconds"], "cpu": cpu}

    def warm_up(self):
        # The first turn is slower than those that follow.
        for seconds in TURN_SECONDS / 4, TURN_SECONDS:
            self.count = max(1, round(self.count * seconds / self.turn()["wall"]))

    def measure(self, clock):
        seconds = self.turn()
        share = seconds["cpu"] / seconds["wall"]
        assert share < ONE_CPU, f"{self.name} {self.numbers} uses {share:.2f} CPUs"
        self.rates.append(self.count * model.LEN / seconds[clock])
        self.shares.append(share)


def engines(size, folder, binary):
    """Writes all models of one size."""
    folder.mkdir(parents=True, exist_ok=True)
    for numbers in OURS:
        path = folder / f"{numbers}.kfm"
        subprocess.run([binary, "write", size, numbers, path], check=True)
        yield Engine("kiloformer", numbers, [binary, "serve", path], path)
    for name, precision in PEERS:
        path = folder / f"{name}-{precision}"
        path.mkdir(exist_ok=True)
        worker = [sys.executable, HERE / "worker.py"]
        arguments = [name, size, precision, path]
        subprocess.run([*worker, "write", *arguments], check=True)
        yield Engine(name, precision, [*worker, "serve", *arguments], path)


def measure(size, rounds, clock, folder, binary):
    all_engines = list(engines(size, folder, binary))
    for _ in range(LOADS):
        for engine in all_engines:
            engine.start()
    for engine in all_engines:
        engine.warm_up()
    check_float32(all_engines)
    for _ in range(rounds):
        for engine in all_engines:
            engine.measure(clock)
    return all_engines


def check_float32(all_engines):
    """That the peers run one model: in float32 they say the same. Ours has weights of its own."""
    said = {engine.name: engine.ids for engine in all_engines if engine.numbers == "float32"}
    assert len(set(map(tuple, said.values()))) == 1, f"the peers are not equivalent: {said}"


def report(size, all_engines):
    ours = {engine.numbers: engine for engine in all_engines if engine.numbers in OURS}
    by_class = {theirs: ours[numbers] for numbers, theirs in OURS.items() if theirs}
    print(f"\n### {size}: {model.SIZES[size]}\n")
    ratios = " | ".join(f"{numbers} / it" for numbers in ours)
    print(f"| engine | numbers | tokens/s | best | {ratios} | load, ms | peak, MiB | over idle, MiB | file, MiB |")
    print("| --- | --- |" + " ---: |" * (len(ours) + 6))
    for engine in all_engines:
        against = by_class.get(engine.numbers)
        figures = [
            f"{median(engine.rates):,.0f}",
            f"{max(engine.rates):,.0f}",
            *(speed_ratio(our, engine) for our in ours.values()),
            figure(engine, against, lambda e: e.load_ms, 1),
            figure(engine, against, lambda e: e.process.memory("VmHWM"), 2**20),
            figure(engine, against, lambda e: e.process.memory("VmHWM") - e.process.idle_bytes, 2**20),
            figure(engine, against, lambda e: e.file_bytes, 2**20),
        ]
        print(f"| {engine.name} | {engine.numbers} | {' | '.join(figures)} |")
    print()
    for numbers, engine in ours.items():
        part = {key: median(load[key] for load in engine.loads) for key in engine.loads[0]}
        print(
            f"{numbers}: reading {part['read_ms']:.2f} ms, structural checks {part['structure_ms']:.3f} ms, "
            f"session {part['session_ms']:.3f} ms; scan of weights and CRC besides {part['full_checks_ms']:.1f} ms; "
            f"arena {part['arena_bytes']:,} bytes."
        )
    shares = [share for engine in all_engines for share in engine.shares]
    disturbed = sum(share < UNDISTURBED for share in shares)
    print(f"{disturbed} of {len(shares)} turns had less than {UNDISTURBED:.0%} of a CPU.", flush=True)


def speed_ratio(ours, theirs):
    """Median and quartiles of the rounds."""
    if ours is theirs:
        return "1"
    ratios = [a / b for a, b in zip(ours.rates, theirs.rates)]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def figure(engine, against, get, unit):
    """In its unit, and ours over theirs where there is something of ours to stand against."""
    value = get(engine)
    text = f"{value / unit:.1f}" if value >= 10 * unit else f"{value / unit:.2f}"
    return text if against is None or value <= 0 else f"{text} ({get(against) / value:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="kiloformer-peer, built in release")
    parser.add_argument("--models", type=Path, required=True, help="a folder for the models")
    parser.add_argument("--configs", default="S,M,B", help="sizes to measure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=31, help="turns of every engine (default: %(default)s)")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="seconds that pass, or of a CPU, on a machine that does other things too (default: %(default)s)",
    )
    arguments = parser.parse_args()
    for size in arguments.configs.split(","):
        begin = time.monotonic()
        all_engines = measure(size, arguments.rounds, arguments.clock, arguments.models / size, arguments.binary)
        report(size, all_engines)
        print(f"{arguments.rounds} rounds; {time.monotonic() - begin:.0f} s in all.", flush=True)
        for engine in all_engines:
            engine.process.close()


if __name__ == "__main__":
    main()
