"""Where scratch lies in a worker's memory: what is never live together shares bytes."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from aot.analysis.cost.attention_tiles import KEYS_AT_ONCE
from aot.backends.cpu.scratch import plan_scratch
from aot.backends.cpu.traits import Traits
from aot.frontends.text import import_text
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder, Scratch, Space, Stmt
from aot.kernels.lowering import lower
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.outline import OUTLINE
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.kernel_terms import F32, f32, grid, load, serial, store

TRAITS = Traits.of(targets.load("x86-64-v3"))


class Kernels:
    """Kernels of scratch that is written and read here and there."""

    def __init__(self) -> None:
        self.b = KernelBuilder("k")
        self.out = self.b.buffer("out", F32, BufferClass.OUTPUTS, (64,), (1,), is_written=True)

    def scratch(self, name: str, count: int) -> Scratch:
        return self.b.scratch(name, F32, (count,), Space.WORKGROUP)

    def use(self, *scratch: Scratch) -> Stmt:
        """A loop that writes all of them and reads all of them."""
        i = self.b.var("i")
        written = [store(s, 0, value=f32(1)) for s in scratch]
        return serial(i, 4, [*written, *(store(self.out, i, value=load(s, 0)) for s in scratch)])

    def build(self, *stmts: Stmt) -> Kernel:
        return self.b.build(grid([(self.b.var("g"), 3, 0)], stmts))


def overlap(kernel: Kernel, a: Scratch, b: Scratch) -> bool:
    slots = plan_scratch(kernel, TRAITS).slots
    (start, size), (other, more) = ((slots[s].offset, 4 * s.shape[0]) for s in (a, b))
    assert start is not None and other is not None
    return start < other + more and other < start + size


def test_stages_share_what_they_use_one_after_the_other() -> None:
    k = Kernels()
    small, large, both = k.scratch("small", 16), k.scratch("large", 64), k.scratch("both", 32)
    kernel = k.build(k.use(small), k.use(large, both), k.use(both))
    assert overlap(kernel, small, large)
    assert not overlap(kernel, large, both)
    assert plan_scratch(kernel, TRAITS).bytes == 4 * (64 + 32)


def test_what_is_used_before_and_after_is_kept_between() -> None:
    k = Kernels()
    kept, between = k.scratch("kept", 16), k.scratch("between", 16)
    kernel = k.build(k.use(kept), k.use(between), k.use(kept))
    assert not overlap(kernel, kept, between)


def test_a_loop_keeps_its_scratch_from_run_to_run() -> None:
    k = Kernels()
    first, second = k.scratch("first", 16), k.scratch("second", 16)
    kernel = k.build(serial(k.b.var("t"), 5, [k.use(first), k.use(second)]))
    assert not overlap(kernel, first, second)


def test_any_two_that_live_together_lie_apart() -> None:
    k = Kernels()
    all_scratch = [k.scratch(f"s{n}", 16 * (1 + n % 3)) for n in range(7)]
    # s0 lives through 0..2, s1 through 1..3, and so on
    kernel = k.build(*(k.use(*all_scratch[max(0, n - 2) : n + 1]) for n in range(7)))
    for (m, a), (n, b) in combinations(enumerate(all_scratch), 2):
        assert n - m > 2 or not overlap(kernel, a, b)
    assert plan_scratch(kernel, TRAITS).bytes < sum(4 * s.shape[0] for s in all_scratch)


@pytest.mark.parametrize("target", ["thumbv7em", "thumbv7em-m7", "riscv64", "wasm32", "x86-64-v2"])
@pytest.mark.parametrize("depth", [8, 64, 96, 128, 200, 256, 512, 1024])
def test_attentions_of_any_size_have_scratch(depth: int, target: str) -> None:
    """Within the target's bound, or of the fewest queries at a time; and registers within the bound
    of its stack, where the mix of a deep value once was not."""
    machine = targets.load(target)
    lanes = machine.vector_bytes // 4
    # some vectors of queries, or one query without vectors, and one that is alone
    block = (1 if lanes == 1 else 4 * lanes) + 1
    least = block * 4 * (2 * depth + KEYS_AT_ONCE + 16)
    for queries, keys in product((1, 3, 64, "Q"), (1, 77, "K")):
        bytes = attention_scratch(machine, depth, queries, keys)
        assert bytes <= max(machine.scratch_bytes, least), (queries, keys)


@pytest.mark.parametrize("target", ["thumbv7em", "thumbv7em-m7"])
@pytest.mark.parametrize("depth", [8, 64, 128, 256])
def test_keys_and_values_that_are_staged_have_scratch(depth: int, target: str) -> None:
    """Values that lie by columns and keys in f16: fewer of them at a time, as few as a tile of
    registers has."""
    machine = targets.load(target)
    least = 4 * (2 * 8 * depth + 2 * 3 * depth + 256)
    for queries, keys in product((1, 3, 64, "Q"), (1, 77, "K")):
        bytes = attention_scratch(machine, depth, queries, keys, is_staged=True)
        assert bytes <= max(1.25 * machine.scratch_bytes, least), (queries, keys)


def attention_scratch(
    machine: Target, depth: int, queries: int | str, keys: int | str, *, is_staged: bool = False
) -> int:
    """Bytes of scratch of an attention's kernel."""
    key, value = ("f16", f"{depth}, {keys}") if is_staged else ("f32", f"{keys}, {depth}")
    text = (
        f"func @main(%q: f32[1, 2, {queries}, {depth}], %k: {key}[1, 2, {keys}, {depth}], "
        f'%v: f32[1, 2, {value}]) -> ("y") {{\n'
    )
    if is_staged:
        text += (
            f"  %kw = cast(%k) {{to = f32}} : f32[1, 2, {keys}, {depth}]\n"
            f"  %vt = transpose(%v) {{perm = [0, 1, 3, 2]}} : f32[1, 2, {keys}, {depth}]\n"
        )
    names = "%q, %kw, %vt" if is_staged else "%q, %k, %v"
    text += f"  %y = attention({names}) {{scale = 0.5}} : f32[1, 2, {queries}, {depth}]\n"
    module = import_text(text + "  return(%y)\n}\n")
    run_passes(module, (FUSE, TIE_OPERANDS, OUTLINE), PassContext(target=machine))
    (function,) = module.executables
    return plan_scratch(lower(function, machine), Traits.of(machine)).bytes
