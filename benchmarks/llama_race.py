"""How fast language models read a prompt and reply, beside llama.cpp on the same GGUF files.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    python benchmarks/llama_race.py --libraries package/bins/linux-x64 --headers llama.cpp M.gguf

The package is llama.cpp without a build, with a library for each level of CPU;
benchmarks/llama_programs.py says where the headers are. Both take turns, a fresh process each, with
a loop that reads as much memory as a model has bytes, on as many threads: a token behind a prompt
reads all weights, so no engine decodes faster than that where no cache holds them. One thread is
timed by CPU time, which neighbours disturb less; the best turns count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import aot
from aot.text.language_program import check_language_program
from benchmarks.llama_programs import built

PROGRAM = Path(__file__).with_suffix(".c")
TURNS = 3  # of a process


def said(*command: str | Path | int) -> dict[str, float]:
    """What a program prints as JSON."""
    text = [str(part) for part in command]
    found: dict[str, float] = json.loads(
        subprocess.run(text, check=True, capture_output=True, text=True).stdout
    )
    return found


def measure(module: Path, threads: int, prompt: int, tokens: int) -> dict[str, float]:
    """Tokens a second of a compiled model, by the best turn."""
    clock = time.process_time if threads == 1 else time.perf_counter
    program = aot.load(module, device="cpu", threads=threads)
    _, most = check_language_program(program)
    vocabulary = program.outputs[0].dims[1]
    assert isinstance(vocabulary, int)
    ids = (np.arange(prompt + tokens, dtype=np.int64) * 7919 % vocabulary).astype(np.int32)
    best = {"prompt": 0.0, "decode": 0.0}
    for turn in range(TURNS + 1):  # the first one is not timed
        program.reset()
        begin = clock()
        for at in range(0, prompt, most):
            program.run([ids[at : min(at + most, prompt)]])
        middle = clock()
        for at in range(prompt, prompt + tokens):
            program.run([ids[at : at + 1]])
        rates = {"prompt": prompt / (middle - begin), "decode": tokens / (clock() - middle)}
        if turn:
            best = {key: max(rate, best[key]) for key, rate in rates.items()}
    return best


def race(program: Path, model: Path, module: Path, options: argparse.Namespace) -> None:
    """Prints the rates of a model as a row of the table."""
    shape = options.threads, options.prompt, options.tokens
    size = model.stat().st_size
    theirs, ours, reads = [], [], []
    for _ in range(options.rounds):
        theirs.append(said(program, options.libraries.resolve(), model, *shape, TURNS))
        read = said(program, "read", max(64, size >> 20), TURNS, options.threads)
        reads.append(read["bytes_per_s"])
        ours.append(said(sys.executable, __file__, "--measure", module, *flags(options)))

    def cell(key: str) -> str:
        mine, other = (max(turn[key] for turn in turns) for turns in (ours, theirs))
        return f"{mine:.1f} / {other:.1f} = {mine / other:.2f}"

    share = max(turn["decode"] for turn in ours) * size / max(reads)
    print(f"| {model.stem} | {cell('prompt')} | {cell('decode')} | {share:.0%} |", flush=True)


def flags(options: argparse.Namespace) -> list[Any]:
    """The options that a process of ours is told."""
    names = "threads", "prompt", "tokens"
    return [part for name in names for part in (f"--{name}", getattr(options, name))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--headers", type=Path)
    parser.add_argument("--target", default="host")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        found = measure(options.measure, options.threads, options.prompt, options.tokens)
        print(json.dumps(found))
        return
    if options.libraries is None or options.headers is None or not options.models:
        parser.error("needs --libraries, --headers and models")
    print("| model | prompt, tok/s: aotc / llama.cpp | decode, tok/s | decode, of a read loop |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        program = built(PROGRAM, options.libraries.resolve(), options.headers, Path(folder))
        for model in options.models:
            module = Path(folder) / "model.aotm"
            context = options.prompt + options.tokens
            made = aot.compile(model, targets=[options.target], context=context)
            made.save(module)
            race(program, model, module, options)


if __name__ == "__main__":
    main()
