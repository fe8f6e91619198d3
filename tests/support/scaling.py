"""Graphs of any size, and how much work a step does on them, for tests that its work is linear.

Work is counted in lines that Python runs, not in time: each turn of a loop counts, comprehensions
included, and the same code on the same graph always gives the same number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np

from aot.builder import Builder
from aot.driver.missed_merges import Settings, missed_merges
from aot.ir.clone import clone_module
from aot.ir.graph import Module, Value
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from aot.kernels.lowering import lower
from aot.link.emit_program import Entry, emit_program
from aot.link.rodata import RodataPool
from aot.passes.base import PassContext
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets

Measure = Callable[[Callable[[], Any]], float]
CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def lines_run(work: Callable[[], Any]) -> float:
    """Lines that `work` runs, in all functions written in Python."""
    count = 0

    def inside(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += 1
        return inside

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: inside)
    try:
        work()
    finally:
        sys.settrace(before)
    return float(count)


def steps(
    module: Module, measure: Measure, target: str = "x86-64-v3"
) -> Iterator[tuple[str, float]]:
    """(step, its cost) of all that is done with a graph, passes in place, code apart."""
    yield "verify", measure(lambda: verify(module))
    texts: list[str] = []
    yield "print", measure(lambda: texts.append(print_module(module)))
    yield "parse", measure(lambda: parse_module(texts[0]))
    yield "clone", measure(lambda: clone_module(module))
    context = PassContext(target=targets.load(target))
    for number, step in enumerate((*MODEL_PASSES, *TARGET_PASSES)):
        yield f"{number} {step.name}", measure(lambda step=step: step.run(module, context))  # type: ignore[misc]
    assert context.target is not None
    entries: dict[str, Entry] = {}
    for number, function in enumerate(module.executables):
        kernel = lower(function, context.target)
        entries[function.name] = Entry(number, kernel.grid, function.dim_names)
    pool = RodataPool()
    yield "emit", measure(lambda: emit_program(module.main, entries, pool))
    yield "place", measure(pool.place)
    sizes = dict.fromkeys(entries, 100)
    arguments = (module, sizes, context.target, Settings())
    yield "missed merges", measure(lambda: missed_merges(*arguments))


# the graphs, of about `size` ops


def chain(size: int) -> Module:
    """What elementwise regions are cut from."""
    b = Builder()
    x: Value = b.input("x", "f32[N, 8]")
    scale = b.constant(np.linspace(0.5, 1.5, 8, dtype=np.float32))
    for number in range(size // 2):
        x = b.op("relu", b.op("mul", x, scale), origin=f"n{number}")
    b.output("y", x)
    return b.module()


def residual(size: int) -> Module:
    """Convolutions with constants to fold and pack, each skipped by its input."""
    b = Builder()
    x: Value = b.input("x", "f32[N, 4, H, W]")
    rng = np.random.default_rng(0)
    for number in range(size // 8):
        weight = rng.standard_normal((4, 4, 1, 1)).astype(np.float32)
        shift = rng.standard_normal((1, 4, 1, 1)).astype(np.float32)
        y = b.op("conv", x, weight, origin=f"c{number}", **CONV)
        y = b.op("mul", b.op("add", y, shift), np.float32(2))
        x = b.op("add", b.op("sigmoid", y), x)
    b.output("y", x)
    return b.module()


def blocks_of_attention(size: int) -> Module:
    """Reshapes, transposes and products with dims that stay open."""
    b = Builder()
    x: Value = b.input("x", "f32[B, T, 32]")
    rng = np.random.default_rng(0)
    for _ in range(size // 8):
        y = b.op("matmul", x, rng.standard_normal((32, 32)).astype(np.float32))
        y = b.op("transpose", b.op("reshape", y, shape=("B", "T", 4, 8)), perm=(0, 2, 1, 3))
        y = b.op("transpose", b.op("softmax", y, axis=3), perm=(0, 2, 1, 3))
        x = b.op("add", x, b.op("reshape", y, shape=("B", "T", 32)))
    b.output("y", x)
    return b.module()


def fan_out(size: int) -> Module:
    """One computed value that as many regions read, joined pairwise."""
    b = Builder()
    x = b.op("softmax", b.input("x", "f32[N, 8]"), axis=1)
    parts = [
        b.op("reduce_sum", b.op("mul", x, np.float32([n])), axes=(1,), keepdims=True)
        for n in range(size // 4)
    ]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [*(b.op("add", *pair) for pair in pairs), *parts[len(parts) // 2 * 2 :]]
    b.output("y", parts[0])
    return b.module()


def fan_in(size: int) -> Module:
    """One op of as many operands."""
    b = Builder()
    x = b.input("x", "f32[N, 8]")
    parts = [b.op("exp", b.op("add", x, np.float32([n]))) for n in range(size // 3)]
    b.output("y", b.op("concat", *parts, axis=0))
    return b.module()


def interface(size: int) -> Module:
    """As many inputs and outputs."""
    b = Builder()
    for number in range(size // 2):
        x = b.input(f"x{number}", f"f32[N{number}, 8]")
        b.output(f"y{number}", b.op("exp", b.op("neg", x)))
    return b.module()


def assumptions(size: int) -> Module:
    """As many dims that must be equal."""
    b = Builder()
    total: Value = b.input("x0", "f32[N0, 8]")
    for number in range(1, size):
        total = b.op("add", total, b.input(f"x{number}", f"f32[N{number}, 8]"))
    b.output("y", total)
    return b.module()


def constants(size: int) -> Module:
    """As many constants that fold into one."""
    b = Builder()
    x = b.input("x", "f32[N, 8]")
    total = b.constant(np.zeros(8, np.float32))
    for number in range(size // 2):
        total = b.op("add", total, np.full(8, number, np.float32))
    b.output("y", b.op("add", x, total))
    return b.module()


def long_lives(size: int) -> Module:
    """As many values that all live until the end begins."""
    b = Builder()
    x = b.input("x", "f32[4, 8]")
    parts = [b.op("softmax", b.op("mul", x, np.float32([n])), axis=1) for n in range(size // 4)]
    total = parts[0]
    for part in parts[1:]:
        total = b.op("softmax", b.op("add", total, part), axis=0)
    b.output("y", total)
    return b.module()


def growing_dims(size: int) -> Module:
    """As many different dims of one symbol."""
    b = Builder()
    x: Value = b.input("x", "f32[N, 8]")
    for number in range(1, size // 3):
        x = b.op("exp", b.op("pad", x, pads=(0, 0, 1, 0), mode="constant", value=0.0))
        x = b.op("reshape", x, shape=(8, f"N+{number}")) if number % 2 else x
        x = b.op("reshape", x, shape=(f"N+{number}", 8)) if number % 2 else x
    b.output("y", x)
    return b.module()


GRAPHS: Mapping[str, Callable[[int], Module]] = {
    f.__name__: f
    for f in (
        chain,
        residual,
        blocks_of_attention,
        fan_out,
        fan_in,
        interface,
        assumptions,
        constants,
        long_lives,
        growing_dims,
    )
}


# Work on twice the ops, less that on half of them, is twice that on the first ones: a step's start
# and end, however dear, don't count. 1 is linear, 2 quadratic.
MOST = 1.3
FEW = 6000  # lines; what is so little that growth says nothing


def growth(costs: Sequence[float]) -> float:
    """How much dearer an op is between two and four times a size than between once and twice.

    Args:
        costs: of once, twice and four times the size.
    """
    once, twice, four_times = costs
    if four_times < FEW:
        return 1.0
    # what hardly grows at all may come out a little cheaper on more ops
    return (four_times - twice) / 2 / max(twice - once, once / 10, FEW / 4)
