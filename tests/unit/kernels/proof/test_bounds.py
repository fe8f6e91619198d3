"""The proof that accesses stay inside their memory: what it shows, and what it must refuse.

Each kernel that is refused overruns, which the interpreter says too. Those beside them differ by
one and are proved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import aot.ops  # noqa: F401
from aot.errors import InternalError
from aot.ir import expr
from aot.ir.builder import Builder
from aot.ir.dims import evaluate, maximum, minimum, product, symbol
from aot.ir.expr import Expr, Load, Var
from aot.ir.graph import Module
from aot.ir.record import REGISTRY
from aot.ir.types import DType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import (
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    Scratch,
    Space,
    Stmt,
)
from aot.kernels.ir.verifier import verify
from aot.kernels.lowering import lower
from aot.kernels.proof import inequalities
from aot.kernels.proof.bounds import check_bounds
from aot.kernels.rules.reductions.rows import Rows
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.target import selection as targets
from tests.support.lowering_checks import sample_runs
from tests.support.small_kernels import Kernels, as_index, both, load, loop, op, store

N, M = symbol("N"), symbol("M")
Made = tuple[Kernel, dict[str, object], dict[str, int]]


def _buffers(kernel: Kernel, given: dict[str, object], params: dict[str, int]) -> dict[str, object]:
    made = {}
    for buffer in kernel.buffers:
        size = evaluate(product(buffer.shape), params) if buffer.shape else 1
        made[buffer.name] = np.zeros(max(size, 0), buffer.dtype.numpy)
    return {**made, **given}


def check_refused(made: Made) -> None:
    """The kernel is well-formed, overruns, and is not proved."""
    kernel, given, params = made
    verify(kernel)
    with pytest.raises(InternalError, match="is outside"):
        interpreter.run(kernel, _buffers(kernel, given, params), params)  # type: ignore[arg-type]
    assert check_bounds(kernel).unproved


def check_proved(made: Made) -> None:
    kernel, given, params = made
    verify(kernel)
    interpreter.run(kernel, _buffers(kernel, given, params), params)  # type: ignore[arg-type]
    assert not check_bounds(kernel).unproved


def _rows(more: int) -> Made:
    """Rows of an open matrix, `more` beyond the last one."""
    made = Kernels()
    out = made.buffer(DType.F32, N * M, written=True)
    i, j = made.var(), made.var()
    place = op("add", op("mul", i, expr.index(M)), j)
    return made.kernel(loop(i, N + more, loop(j, M, store(out, place)))), {}, {"N": 3, "M": 4}


def _divided(more: int) -> Made:
    """An index that is taken apart and put together again."""
    made = Kernels()
    out = made.buffer(DType.F32, 30, written=True)
    n = made.var()
    q = op("floordiv", n, 5)
    rows = op("mul", op("floordiv", q, 3), 15)
    columns = op("add", op("mul", op("floormod", q, 3), 5), op("floormod", n, 5))
    return made.kernel(loop(n, 30 + more, store(out, op("add", rows, columns)))), {}, {}


def _quotients(more: int) -> Made:
    """Quotients of quotients, whose remainders are forgotten one by one."""
    made = Kernels()
    out = made.buffer(DType.F32, 4 - more, written=True)
    n = made.var()
    q = op("add", op("floordiv", n, 4), 1)
    for by in (2, 4, 2):
        q = op("floordiv", q, by)
    return made.kernel(loop(n, 192, store(out, q))), {}, {}


def _rounded(more: int) -> Made:
    """A number out of memory, twice which is at most 4 or 2."""
    made = Kernels()
    x, out = made.buffer(DType.I32, 1), made.buffer(DType.F32, 1, written=True)
    value, w = as_index(load(x, 0)), made.var("w")
    guard = both(op("ge", value, 0), op("le", op("mul", value, 2), w))
    body = loop(w, 2 + 3 * more, store(out, op("floordiv", value, 2), guard=guard))
    return made.kernel(body), {"in": np.array([2 * more], np.int32)}, {}


def _counter(more: int) -> Made:
    """A count of what passes, which is a place in the result, before or after it is counted up."""
    made = Kernels()
    x, out = made.buffer(DType.I32, 10), made.buffer(DType.F32, 10, written=True)
    count, i = made.scratch(DType.INDEX, 1), made.var()
    up = store(count, 0, op("add", load(count, 0), 1), op("gt", as_index(load(x, i)), 0))
    use = store(out, load(count, 0))
    body = (up, use) if more else (use, up)
    kernel = made.kernel(store(count, 0, expr.index(0)), loop(i, 10, *body))
    return kernel, {"in": np.ones(10, np.int32)}, {}


def _bits_of(x: Expr) -> Expr:
    """1 of what passes, else 0."""
    passes = expr.binary("gt", x, expr.const(0, DType.I32))
    return expr.select(passes, expr.const(1, DType.I32), expr.const(0, DType.I32))


def _halves(counts: Scratch, *halves: int) -> list[Stmt]:
    """Adds up what lanes have counted, in halves."""
    found: list[Stmt] = []
    for half in halves:
        n = Var("n", DType.INDEX)
        pair = expr.add(load(counts, n), load(counts, op("add", n, half)))
        found.append(loop(n, half, store(counts, n, pair), kind=LoopKind.VECTOR))
    return found


def _counted_in_lanes(more: int, first: int = 0, size: int = 25) -> Made:
    """How many pass, counted by lanes of their own, is a place in the result."""
    made = Kernels()
    x, out = made.buffer(DType.I32, 24), made.buffer(DType.F32, size - more, written=True)
    counts, i, j, k = made.scratch(DType.I32, 8), made.var(), made.var("j"), made.var("k")
    one = _bits_of(load(x, op("add", op("mul", i, 8), j)))
    counted = store(counts, j, expr.add(load(counts, j), one))
    kernel = made.kernel(
        loop(k, 8, store(counts, k, first), kind=LoopKind.VECTOR),
        loop(i, 3, loop(j, 8, counted, kind=LoopKind.VECTOR)),
        *_halves(counts, 4, 2, 1),
        store(out, as_index(load(counts, 0))),
    )
    return kernel, {"in": np.ones(24, np.int32)}, {}


def _counted_from(more: int) -> Made:
    """The same where lanes begin to count above what the result has room for."""
    return _counted_in_lanes(0, first=more)


def _counted_once_more(more: int) -> Made:
    """One element counted in two loops, of which one may be left out."""
    made = Kernels()
    x, out = made.buffer(DType.I32, 4), made.buffer(DType.F32, 6, written=True)
    counts, i, j = made.scratch(DType.I32, 1), made.var(), made.var("j")

    def counted(n: Var) -> Stmt:
        return store(counts, 0, expr.add(load(counts, 0), _bits_of(load(x, n))))

    kernel = made.kernel(
        store(counts, 0, 0),
        loop(i, 4, counted(i)),
        If(op("gt", as_index(load(x, 0)), 0), (loop(j, 1 + more, counted(j)),)),
        store(out, as_index(load(counts, 0))),
    )
    return kernel, {"in": np.ones(4, np.int32)}, {}


def _added_to_another(more: int) -> Made:
    """Halves that are added, or neighbours, of which each is what was added up before it."""
    made = Kernels()
    out = made.buffer(DType.F32, 3, written=True)
    counts, i, j = made.scratch(DType.I32, 4), made.var(), made.var("j")
    sums = expr.add(load(counts, op("add", j, 1)), load(counts, j))
    neighbours = loop(j, 3, store(counts, op("add", j, 1), sums))
    kernel = made.kernel(
        loop(i, 4, store(counts, i, 1)),
        *([neighbours] if more else _halves(counts, 2)),
        store(out, as_index(load(counts, 3 if more else 0))),
    )
    return kernel, {}, {}


def _counted_while_few(more: int) -> Made:
    """Groups that are looked at while fewer are counted than wanted, and that go beyond it."""
    made = Kernels()
    x, out = made.buffer(DType.I32, 24), made.buffer(DType.F32, 17 - more, written=True)
    count, i, j = made.scratch(DType.I32, 1), made.var(), made.var("j")
    to = made.var("to", DType.I32)
    passes = _bits_of(load(x, op("add", op("mul", i, 8), j)))
    one = (
        Let(to, load(count, 0)),
        store(out, as_index(to)),
        store(count, 0, expr.add(to, passes)),
    )
    is_few = expr.binary("lt", load(count, 0), expr.const(10, DType.I32))
    kernel = made.kernel(store(count, 0, 0), loop(i, 3, If(is_few, (loop(j, 8, *one),))))
    return kernel, {"in": np.array([1] * 9 + [0] * 7 + [1] * 8, np.int32)}, {}


def _other_element(more: int) -> Made:
    """Two counts side by side, of which one is not counted up but large."""
    made = Kernels()
    out = made.buffer(DType.F32, 10, written=True)
    count, i = made.scratch(DType.INDEX, 2), made.var()
    kernel = made.kernel(
        store(count, 1, expr.index(9 + more)),
        store(count, 0, expr.index(0)),
        loop(i, 10, store(out, load(count, 1)), store(count, 0, op("min", 9, i))),
    )
    return kernel, {}, {}


def _named_elements(more: int) -> Made:
    """Elements that a loop names before it stores them: each is its own."""
    made = Kernels()
    x, out = made.buffer(DType.I32, 2), made.buffer(DType.F32, 1, written=True)
    first, second = made.scratch(DType.I32, 2), made.scratch(DType.I32, 2)
    i, j, v = made.var(), made.var(), made.var("v", DType.I32)
    apart = op("sub", as_index(load(second, 1)), as_index(load(second, 1 - more)))
    kernel = made.kernel(
        loop(j, 2, store(first, j, load(x, j)), store(first, j, load(x, j))),
        loop(i, 2, Let(v, load(first, i)), store(second, i, v)),
        store(out, apart),
    )
    return kernel, {"in": np.array([0, 50], np.int32)}, {}


def _named_twice(more: int) -> Made:
    """One statement that stands in the kernel twice, after different numbers were stored."""
    made = Kernels()
    out = made.buffer(DType.F32, 10, written=True)
    kept, v = made.scratch(DType.INDEX, 1), made.var("v")
    body = Let(v, load(kept, 0)), store(out, v)
    i, j = made.var(), made.var()
    kernel = made.kernel(
        store(kept, 0, expr.index(5)),
        loop(i, 1, *body),
        store(kept, 0, expr.index(9 + more)),
        loop(j, 1, *body),
    )
    return kernel, {}, {}


def _matrix_sums(more: int) -> Made:
    """Sums that a matrix instruction changes after they were zeroed, as an index."""
    made = Kernels()
    a, b = made.buffer(DType.I8, 16), made.buffer(DType.I8, 32)
    out = made.buffer(DType.F32, 1, written=True)
    sums, j = made.scratch(DType.I32, 8, space=Space.REGISTER), made.var()
    word = DType.I8X4
    columns = Load(b, (expr.index(0),), word), Load(b, (expr.index(16),), word)
    dot = MatrixDot(sums, (), Load(a, (expr.index(0),), word), columns)
    zeros = loop(j, 8, store(sums, j, expr.const(0, DType.I32)), kind=LoopKind.UNROLLED)
    index = as_index(load(sums, 0))
    last = store(out, index if more else op("min", op("max", index, 0), 0))
    given = {"in": np.ones(16, np.int8), "in_1": np.ones(32, np.int8)}
    return made.kernel(zeros, dot, last), given, {}


def _no_iterations(more: int) -> Made:
    """A count after a loop that may have fewer than no iterations."""
    made = Kernels()
    size = minimum(N, 20) + (-8 if more else 0)
    out = made.buffer(DType.F32, (N if more else maximum(size, 0) + 6), written=True)
    count, i = made.scratch(DType.INDEX, 1), made.var()
    kernel = made.kernel(
        store(count, 0, expr.index(5)),
        loop(i, size, store(count, 0, op("add", load(count, 0), 1))),
        store(out, load(count, 0)),
    )
    return kernel, {}, {"N": 2}


def _wrapping(more: int) -> Made:
    """A number out of memory whose multiple is small because it wraps."""
    made = Kernels()
    x, out = made.buffer(DType.I64, 1), made.buffer(DType.F32, 4, written=True)
    value = as_index(load(x, 0))
    small = op("lt", op("mul", value, 4) if more else value, 4)
    guard = both(op("ge", value, 0), small)
    kernel = made.kernel(store(out, value, guard=guard))
    return kernel, {"in": np.array([(1 << 62) if more else 3], np.int64)}, {}


def _window(more: int) -> Made:
    """A padded window, whose guards decide what is read."""
    made = Kernels()
    x, out = made.buffer(DType.F32, N), made.buffer(DType.F32, N, written=True)
    i, k = made.var(), made.var()
    at = op("add", op("mul", i, 1), op("sub", k, 1))
    guard = both(op("ge", at, 0), op("lt", at, expr.index(N + more)))
    return (
        made.kernel(loop(i, N, loop(k, 3, store(out, i, load(x, at, guard=guard))))),
        {},
        {"N": 4},
    )


def _clamped(more: int) -> Made:
    """A gather whose index is clamped, of at least one element."""
    made = Kernels()
    x, at = made.buffer(DType.F32, N + 1), made.buffer(DType.I32, 2)
    out = made.buffer(DType.F32, 2, written=True)
    i = made.var()
    index = op("min", op("max", as_index(load(at, i)), 0), expr.index(N + more))
    kernel = made.kernel(loop(i, 2, store(out, i, load(x, index))))
    return kernel, {"in_1": np.array([-3, 99], np.int32)}, {"N": 3}


def _tail(more: int) -> Made:
    """Whole blocks and a tail, begun late."""
    made = Kernels()
    out = made.buffer(DType.F32, N, written=True)
    block, i, t = made.var(), made.var(), made.var()
    whole = loop(block, N // 8, loop(i, 8, store(out, op("add", op("mul", block, 8), i))))
    rest = loop(t, N - 8 * (N // 8), store(out, op("add", expr.index(8 * (N // 8) + more), t)))
    return made.kernel(whole, rest), {}, {"N": 21}


def _reflected(more: int) -> Made:
    """A reflected index of what is longer than its padding."""
    made = Kernels()
    x, out = made.buffer(DType.F32, 9), made.buffer(DType.F32, 15, written=True)
    i = made.var()
    low = expr.unary("abs", op("sub", i, 3))
    at = op("sub", 8 + more, expr.unary("abs", op("sub", 8, low)))
    return made.kernel(loop(i, 15, store(out, i, load(x, at)))), {}, {}


def _conditions_kept(more: int) -> Made:
    """A kernel that keeps conditions in a table and reads only where they hold."""
    made = Kernels()
    x, out = made.buffer(DType.F32, 14), made.buffer(DType.F32, 14, written=True)
    held = made.scratch(DType.BOOL, 4, space=Space.REGISTER)
    tile, r, k = made.var(), made.var(), made.var()
    first = op("mul", tile, 2)
    ends = (
        store(held, 0, op("ge", op("sub", first, 1 - more), 0)),
        store(held, 1, expr.const(True, DType.BOOL)),
        store(held, 2, expr.const(True, DType.BOOL)),
        store(held, 3, op("lt", op("add", first, 2), 14)),
    )
    at = op("sub", op("add", op("add", first, r), k), 1)
    guard = load(held, op("add", r, k))
    read = store(out, op("add", first, r), load(x, at, guard=guard))
    inner = loop(r, 2, loop(k, 3, read, kind=LoopKind.UNROLLED), kind=LoopKind.UNROLLED)
    return made.kernel(loop(tile, 7, *ends, inner)), {}, {}


def _switched(more: int) -> Made:
    """A grid of rows, of blocks of 8 from 2 rows on, or of 64 from 64 rows on."""
    made = Kernels()
    rows = N * M
    out = made.buffer(DType.F32, rows, written=True)
    some, many = minimum(rows // 2, 1), minimum(rows // 64, 1)
    grid = (1 - some) * rows + some * (1 - many) * ((rows + 7) // 8)
    grid += some * many * ((rows + 63) // 64)
    g, i, k = made.var(), made.var(), made.var()

    def blocks(var: Var, count: int) -> For:
        row = op("add", op("mul", g, count), var)
        return loop(var, count, If(op("lt", row, rows + more), (store(out, row),)))

    few = If(op("eq", many, 0), (blocks(i, 8),), (blocks(k, 64),))
    kernel = made.kernel(loop(g, grid, If(op("eq", some, 0), (store(out, g),), (few,))))
    return kernel, {}, {"N": 3, "M": 5}


def _packed(more: int) -> Made:
    """Columns by eights, of panels of sixteen, in a grid of eights of eights."""
    made = Kernels()
    panels = (N + 15) // 16
    x, out = made.buffer(DType.F32, 16 * panels), made.buffer(DType.F32, 8, written=True)
    step = minimum((N + 63) // 64, 16)
    block, part, eight, i = made.var(), made.var(), made.var(), made.var()
    place = op("add", op("mul", block, step), part)
    first = op("mul", op("add", op("mul", place, 4), op("floordiv", eight, 2)), 16)
    at = op("add", op("add", first, op("mul", op("floormod", eight, 2), 8)), i)
    inside = op("lt", op("add", op("mul", place, 8), eight), (N + 7) // 8 + more)
    body = loop(eight, 8, If(inside, (loop(i, 8, store(out, i, load(x, at))),)))
    return made.kernel(loop(block, N, loop(part, step, body))), {}, {"N": 16}


KERNELS: list[Callable[[int], Made]] = [
    _rows,
    _divided,
    _quotients,
    _rounded,
    _counter,
    _counted_in_lanes,
    _counted_from,
    _counted_once_more,
    _added_to_another,
    _counted_while_few,
    _other_element,
    _named_elements,
    _named_twice,
    _matrix_sums,
    _no_iterations,
    _wrapping,
    _window,
    _clamped,
    _tail,
    _reflected,
    _conditions_kept,
    _switched,
    _packed,
]


@pytest.mark.parametrize("made", KERNELS, ids=lambda f: f.__name__.strip("_"))
def test_what_fits_is_proved(made: Callable[[int], Made]) -> None:
    check_proved(made(0))


@pytest.mark.parametrize("made", KERNELS, ids=lambda f: f.__name__.strip("_"))
def test_what_overruns_is_refused(made: Callable[[int], Made]) -> None:
    check_refused(made(1))


def test_an_access_that_is_not_proved_says_which_and_what() -> None:
    kernel, _, _ = _tail(1)
    (unproved,) = check_bounds(kernel).unproved
    wanted = "store of out may be past its end along dim 0: not known to be >= 0: N - 8"
    assert str(unproved).startswith(wanted)


def test_a_proof_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inequalities, "MOST_STEPS", 0)
    monkeypatch.setattr("aot.kernels.proof.walk.MOST_STEPS", 0)
    kernel, _, _ = _rows(0)
    (unproved, *_) = check_bounds(kernel).unproved
    assert "the proofs of this kernel take more than 0 steps" in str(unproved)


def _is_proved(name: str, number: int, target: str) -> bool:
    record = REGISTRY[name]
    machine = targets.load(target)
    runs = sample_runs(record, record.samples[number])
    bits = machine.word_bytes * 8
    functions = [f for f in runs.module.functions.values() if f not in runs.module.entry_points]
    return not any(check_bounds(lower(f, machine), index_bits=bits).unproved for f in functions)


SAMPLES = [
    pytest.param(record.name, number, id=f"{record.name}-{number}")
    for record in REGISTRY.values()
    for number in range(len(record.samples))
]


def _check_samples(target: str) -> None:
    wrong = []
    for param in SAMPLES:
        name, number = param.values
        try:
            is_proved = _is_proved(name, number, target)  # type: ignore[arg-type]
        except AssertionError:
            continue  # no sample of a dispatch
        if not is_proved:
            wrong.append((name, number))
    assert not wrong


@pytest.mark.parametrize("target", ["x86-64-v3", "vulkan-1.1", "wasm32-relaxed"])
def test_kernels_of_all_op_samples_are_proved(target: str) -> None:
    _check_samples(target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", targets.names())
def test_kernels_of_all_op_samples_are_proved_on_every_target(target: str) -> None:
    _check_samples(target)


def test_a_block_that_outgrows_its_scratch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerNorm(x + position) of f32[3, 15, 400], which corrupted the heap: scratch of a block for
    fewer rows than its loops have."""

    def kernel() -> Kernel:
        builder = Builder()
        x, p = builder.input("x", "f32[3,15,400]"), builder.input("p", "f32[15,400]")
        builder.output("y", builder.op("layer_norm", builder.op("add", x, p), None, None, axis=2))
        function = builder.function()
        module = Module([function])
        fuse(function)
        outline(module)
        return lower(module.executables[0], targets.load("x86-64-v3"))

    assert not check_bounds(kernel()).unproved
    whole = Rows.__dict__["capacity"].fget
    fewer = property(lambda self: whole(self) - 1)
    monkeypatch.setattr(Rows, "capacity", fewer)
    assert check_bounds(kernel()).unproved
