"""The proof that accesses stay inside their memory, on kernels that are wrong.

Correct kernels, which are proved, are changed in one place each. Whichever the interpreter then
finds outside a buffer or scratch, for some extents and some inputs, must not be proved; others may
be. So a proof that takes something for granted which does not hold is found out.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice

import numpy as np
import pytest

import aot.ops  # noqa: F401
from aot.errors import AotError, InternalError
from aot.ir.builder import Builder
from aot.ir.dims import Dim, evaluate, symbol
from aot.ir.graph import Function, Module
from aot.ir.record import REGISTRY, Sample
from aot.ir.types import Array, DType, TensorType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Buffer, Kernel
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.kernels.proof.bounds import check_bounds
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.kernel_mutants import mutants
from tests.support.kernel_steps import cost
from tests.support.lowering import sample_function
from tests.support.lowering_graphs import GRAPHS

OFTEN = (
    "x86-64-v3",
    "x86-64-v4",
    "aarch64-generic",
    "vulkan-1.1",
    "nvidia-matrix",
    "thumbv7em",
)
SMALL = range(1, 8)  # values of dim params
LARGE = (13, 16, 33, 67)
TRIES = 4  # of a kernel with other inputs and extents
ELEMENTS = 1 << 16  # of a kernel's buffers together
_OVERRUN = re.compile(r"is outside (\d|its )")  # an index, or a byte of a buffer's class


@dataclass
class Tally:
    """How many mutants there were of each sort, and those that should not have been proved."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_change: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, mutant: Kernel, target: Target, tries: Sequence[Try]) -> None:
        unproved = check_bounds(mutant, index_bits=target.word_bytes * 8).unproved
        verdict = "refused" if unproved else "proved"
        found, error = outcome(mutant, tries)
        self.counts[verdict, found] += 1
        self.by_change[name, verdict, found] += 1
        if verdict == "proved" and found == "overruns":
            self.wrong.append(f"{target.name}: {name}: {error}\n{to_text(mutant)}")

    def __str__(self) -> str:
        lines = [f"{v:8} {f:9} {n:6}" for (v, f), n in sorted(self.counts.items())]
        return "\n".join(lines)


@dataclass(frozen=True)
class Try:
    """What a kernel is run with: each buffer's elements and the values of its parameters."""

    buffers: Mapping[str, Array]
    params: Mapping[str, float | int]


def outcome(kernel: Kernel, tries: Sequence[Try]) -> tuple[str, str]:
    """What a kernel does, "overruns" if it does so in one of the tries; and what was said of it."""
    found = "fine", ""
    for run in tries:
        try:
            interpreter.run(kernel, {n: a.copy() for n, a in run.buffers.items()}, run.params)
        except InternalError as error:
            if _OVERRUN.search(str(error)):
                return "overruns", str(error)
            found = "fails", str(error)
        except (ArithmeticError, IndexError, KeyError, ValueError) as error:
            found = "fails", str(error)  # of what the verifier refuses
    return found


def tries_of(kernel: Kernel, names: Sequence[str], rng: np.random.Generator) -> list[Try]:
    """Inputs and extents of a kernel with which it stays inside its memory."""
    made: list[Try] = []
    for number in range(TRIES):
        among = LARGE if number == TRIES - 1 else SMALL
        dims = {name: int(rng.choice(among)) for name in names}
        try:
            buffers = {b.name: _contents(b, dims, number, rng) for b in kernel.buffers}
        except (ArithmeticError, ValueError):  # an extent that is negative, or too large
            continue
        if sum(a.size for a in buffers.values()) > ELEMENTS:
            continue
        params: dict[str, float | int] = {p.name: 0 for p in kernel.params}
        made.append(Try(buffers, {**params, **dims}))
    return [run for run in made if outcome(kernel, [run])[0] == "fine"]


def _contents(
    buffer: Buffer, dims: Mapping[str, int], number: int, rng: np.random.Generator
) -> Array:
    """Elements of a buffer. What the kernel stores integers to is 0 before: only what it has stored
    there is to be relied on."""
    last = sum((_value(n, dims) - 1) * _value(s, dims) for n, s in _axes(buffer))
    size = 0 if any(_value(n, dims) <= 0 for n in buffer.shape) else last + 1
    if size > ELEMENTS:
        raise ValueError("too many elements to try")
    if buffer.dtype is DType.BOOL:
        return rng.integers(0, 2, size).astype(np.uint8)
    dtype = buffer.dtype.numpy
    if not buffer.dtype.is_integer:
        return rng.uniform(-2, 2, size).astype(dtype)
    if buffer.is_written:
        return np.zeros(size, dtype)
    ends = np.iinfo(dtype)
    near = rng.integers(0 if ends.min == 0 else -2 * number, 3 + 4 * number, size)
    if number < TRIES // 2:
        return near.astype(dtype)
    far = rng.choice(np.array([ends.min, ends.max, ends.max // 2, ends.min + 1], dtype), size)
    return np.where(rng.integers(0, 3, size) > 0, far, near.astype(dtype))


def _axes(buffer: Buffer) -> Iterator[tuple[Dim, Dim]]:
    return zip(buffer.shape, buffer.strides, strict=True)


def _value(dim: Dim, dims: Mapping[str, int]) -> int:
    return evaluate(dim, dims)


def executables(function: Function) -> list[Function]:
    """What a function is dispatched as."""
    module = Module([function])
    fuse(function)
    tie_operands(function)
    outline(module)
    return [f for f in module.functions.values() if f not in module.entry_points]


def with_open_extents(sample: Sample, rng: random.Random) -> Sample:
    """A sample in which one or two extents of its operands, wherever they stand, are known to the
    device alone."""
    types = [t for t in sample.operands if t is not None and t.layout is None]
    extents = sorted({d for t in types for d in t.dims if isinstance(d, int) and d > 1})
    chosen = rng.sample(extents, min(len(extents), rng.randint(1, 2)))
    names = dict(zip(chosen, map(symbol, "NM")))

    def renamed(type: TensorType | None) -> TensorType | None:
        if type is None or type.layout is not None:
            return type
        return TensorType(type.dtype, tuple(names.get(d, d) for d in type.dims))  # type: ignore[call-overload]

    return replace(sample, operands=tuple(map(renamed, sample.operands)))


def functions(rng: random.Random) -> Iterator[Function]:
    """Samples of ops in random order, with constants or without, with open extents or without; and
    graphs that are fused."""
    makers: list[Callable[[], Function]] = []
    for name in sorted(REGISTRY):
        record = REGISTRY[name]
        for sample in record.samples:
            makers.append(partial(sample_function, record, sample))
            makers.append(partial(sample_function, record, sample, is_packed=True))
            opened = with_open_extents(sample, rng)
            makers.append(partial(sample_function, record, opened))
    for graph, _ in GRAPHS.values():
        makers.append(partial(_built, graph))
    rng.shuffle(makers)
    for make in makers:
        try:
            made = executables(make())
        except (AssertionError, AotError, AttributeError, TypeError, ValueError):
            continue  # not with these extents
        yield from made


def _built(graph: Callable[[Builder], int]) -> Function:
    b = Builder()
    graph(b)
    return b.function()


def tally(seed: int, names: Sequence[str], wanted: int, each: int, most_cost: int) -> Tally:
    """So many mutants, `each` of a kernel; targets take turns."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    found = Tally()
    machines = cycle([targets.load(name) for name in names])
    while True:
        for function in functions(rng):
            target = next(machines)
            try:
                kernel = lower(function, target)
            except (AssertionError, TypeError, AotError):
                continue  # a type that the target does not have, an open extent that no op has
            if cost(kernel.body) > most_cost:
                continue
            runs = tries_of(kernel, function.dim_names, numbers)
            if not runs or check_bounds(kernel, index_bits=target.word_bytes * 8).unproved:
                continue
            for name, mutant in islice(mutants(kernel, rng), each):
                found.add(name, mutant, target, runs)
            if found.counts.total() >= wanted:
                return found


@pytest.mark.slow
def test_no_mutant_that_overruns_is_proved() -> None:
    found = tally(seed=1, names=OFTEN, wanted=600, each=5, most_cost=60_000)
    print(f"\n{found}")
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.counts["refused", "overruns"] > 150
    assert found.counts["proved", "fine"] > 150


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10, 20))
def test_no_mutant_that_overruns_is_proved_anywhere(seed: int) -> None:
    names = targets.names()
    found = tally(seed, names, wanted=2000, each=10, most_cost=3_000_000)
    print(f"\n{found}")
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.counts["refused", "overruns"] > 500
