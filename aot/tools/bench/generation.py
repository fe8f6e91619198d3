"""Benchmarks of a language model's speed at reading prompts and generating tokens, by number of
threads.

Owns what is run and how it is timed: a prompt of tokens that mean nothing, then tokens one by one
behind it. The times of turns are medians; threads take turns, so that what else the machine does
meets all of them alike.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import RuntimeFailure
from aot.runtime.loader import Program, load
from aot.text.language_program import language_program


@dataclass(frozen=True)
class GenerationTimes:
    """Times of text generation with one number of threads.

    Attributes:
        sequences: that a call continues.
        prompt_tokens_per_s, decode_tokens_per_s: of all sequences, medians of the turns.
        first_token_ms: the prompt of a program that has run before, a median.
        load_ms: opening the module and making a program.
    """

    threads: int
    sequences: int
    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    first_token_ms: float
    load_ms: float
    prompt_tokens: int
    tokens: int
    arena_bytes: int
    context: int


def measure_generation(
    source: str | os.PathLike[str],
    threads: Sequence[int],
    *,
    device: str = "cpu",
    entry: str | None = None,
    target: str | None = None,
    prompt_tokens: int = 128,
    tokens: int = 24,
    turns: int = 5,
) -> list[GenerationTimes]:
    """Measures a language model's module for each number of threads.

    Raises:
        RuntimeFailure: it is no language module, or its context holds fewer tokens.
    """
    programs: list[tuple[Program, float]] = []
    try:
        for count in threads:
            begin = time.perf_counter()
            program = load(source, device, entry=entry, target=target, threads=count)
            programs.append((program, (time.perf_counter() - begin) * 1e3))
        return _measure(programs, prompt_tokens, tokens, turns)
    finally:
        for program, _ in programs:
            program.close()


def _measure(
    programs: Sequence[tuple[Program, float]], prompt_tokens: int, tokens: int, turns: int
) -> list[GenerationTimes]:
    prompts: list[list[float]] = [[] for _ in programs]
    decodes: list[list[float]] = [[] for _ in programs]
    for turn in range(turns + 1):  # the first one is not timed
        for number, (program, _) in enumerate(programs):
            prompt_s, decode_s = _turn(program, prompt_tokens, tokens)
            if turn:
                prompts[number].append(prompt_s)
                decodes[number].append(decode_s)
    found = []
    for (program, load_ms), prompt, decode in zip(programs, prompts, decodes, strict=True):
        prompt_s, decode_s = statistics.median(prompt), statistics.median(decode)
        sequences = language_program(program).sequences
        found.append(
            GenerationTimes(
                *(program.threads, sequences),
                sequences * prompt_tokens / prompt_s,
                sequences * tokens / decode_s,
                prompt_s * 1e3,
                load_ms,
                prompt_tokens,
                tokens,
                program.arena_bytes,
                program.state_capacity,
            )
        )
    return found


def _turn(program: Program, prompt_tokens: int, tokens: int) -> tuple[float, float]:
    """Seconds of a prompt, and of the tokens generated one by one after it."""
    shapes = language_program(program)
    most = shapes.most
    capacity = program.state_capacity
    if prompt_tokens + tokens > capacity:
        raise RuntimeFailure(
            f"{prompt_tokens} tokens and {tokens} more: the context holds {capacity}", "capacity"
        )
    vocabulary = program.outputs[0].dims[1]
    size = vocabulary if isinstance(vocabulary, int) else 1
    ids = (np.arange(prompt_tokens + tokens, dtype=np.int64) * 7919 % size).astype(np.int32)
    starts: list[NDArray[np.int32]] = []
    if shapes.sequences > 1:
        ids = np.stack([ids] * shapes.sequences)
        starts.append(np.zeros(shapes.sequences, np.int32))

    def run(first: int, last: int) -> None:
        program.run([np.ascontiguousarray(ids[..., first:last]), *starts])

    program.reset()
    begin = time.perf_counter()
    for at in range(0, prompt_tokens, most):
        run(at, min(at + most, prompt_tokens))
    middle = time.perf_counter()
    for at in range(prompt_tokens, prompt_tokens + tokens):
        run(at, at + 1)
    return middle - begin, time.perf_counter() - middle
