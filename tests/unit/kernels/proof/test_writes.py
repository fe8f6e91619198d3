"""The proofs of what is written and of races, on kernels that differ by one.

Each kernel that is refused is wrong, which the interpreter says too; those beside them are proved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot.errors import InternalError
from aot.ir import expr
from aot.ir.dims import evaluate, product, symbol
from aot.ir.types import DType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Barrier, If, Kernel, LoopKind, Space, Stmt
from aot.kernels.ir.verifier import verify
from aot.kernels.proof.definedness import check_definedness
from aot.kernels.proof.races import check_races
from tests.support.kernel_runs import filled
from tests.support.small_kernels import Kernels, load, loop, op, store

N, M = symbol("N"), symbol("M")
Made = tuple[Kernel, dict[str, int]]
F32 = DType.F32


def _open_rows(less: int) -> Made:
    """Rows of an open matrix, but for the last elements of each."""
    made = Kernels()
    out = made.buffer(F32, N * M, written=True)
    i, j = made.var(), made.var("j")
    place = op("add", op("mul", i, expr.index(M)), j)
    return made.kernel(loop(i, N, loop(j, M - less, store(out, place)))), {"N": 3, "M": 4}


def _moved_back(less: int) -> Made:
    """Blocks of 8, the last one moved back so that it ends with the buffer, or before."""
    made = Kernels()
    out = made.buffer(F32, 19, written=True)
    b, j = made.var("b"), made.var("j")
    place = op("add", op("min", op("mul", b, 8), 11 - less), j)
    return made.kernel(loop(b, 3, loop(j, 8, store(out, place)))), {}


def _parts(less: int) -> Made:
    """Two parts of an open buffer."""
    made = Kernels()
    out = made.buffer(F32, N + M, written=True)
    i, j = made.var(), made.var("j")
    first = loop(i, N, store(out, i))
    return made.kernel(first, loop(j, M, store(out, op("add", j, expr.index(N - less))))), {
        "N": 3,
        "M": 4,
    }


def _branches(less: int) -> Made:
    """An element is written whatever the data are, or only where they are large."""
    made = Kernels()
    x, out = made.buffer(F32, 6), made.buffer(F32, 6, written=True)
    i = made.var()
    condition = expr.binary("gt", load(x, i), expr.const(0, F32))
    otherwise = () if less else (store(out, i, 2),)
    return made.kernel(loop(i, 6, If(condition, (store(out, i),), otherwise))), {}


def _sum(less: int) -> Made:
    """A sum that begins with 0, or with whatever is there."""
    made = Kernels()
    x, out = made.buffer(F32, 4, 5), made.buffer(F32, 4, written=True)
    total, i, j = made.scratch(F32, 1), made.var(), made.var("j")
    begin: list[Stmt] = [] if less else [store(total, 0, 0)]
    add = store(total, 0, expr.add(load(total, 0), load(x, i, j)))
    return made.kernel(loop(i, 4, *begin, loop(j, 5, add), store(out, i, load(total, 0)))), {}


def _window(less: int) -> Made:
    """Rows in scratch, of which one was stored in the iteration before, but for the first."""
    made = Kernels()
    out = made.buffer(F32, 7, written=True)
    rows, i = made.scratch(F32, 8), made.var()
    begin: list[Stmt] = [] if less else [store(rows, 0)]
    step = store(rows, op("add", i, 1))
    return made.kernel(*begin, loop(i, 7, step, store(out, i, load(rows, i)))), {}


def _strided(less: int) -> Made:
    """What is read of scratch by another shape than what was stored."""
    made = Kernels()
    out = made.buffer(F32, 24, written=True)
    kept, i, j, k = made.scratch(F32, 24), made.var(), made.var("j"), made.var("k")
    put = store(kept, op("add", op("mul", i, 8), j))
    get = store(out, k, load(kept, k))
    return made.kernel(loop(i, 3, loop(j, 8 - less, put)), loop(k, 24, get)), {}


def _lanes(less: int) -> Made:
    """Elements by the number of a group and a lane, or by half of it."""
    made = Kernels()
    out = made.buffer(F32, 10, written=True)
    g, lane = made.var("g"), made.var("lane")
    n = op("add", op("mul", g, 4), lane)
    row = op("add", op("mul", op("floordiv", n, 5), 5), op("floormod", n, 5))
    place = op("floordiv", row, 2) if less else row
    inside = If(op("lt", n, 10), (store(out, place),))
    lanes = loop(lane, 4, inside, kind=LoopKind.LANE)
    return made.kernel(loop(g, 3, lanes, kind=LoopKind.WORKGROUP)), {}


def _barrier(less: int) -> Made:
    """What a lane's neighbour stored, behind a barrier or not; and stored again behind another."""
    made = Kernels()
    out = made.buffer(F32, 8 * 3, written=True)
    shared = made.scratch(F32, 8, space=Space.WORKGROUP)
    t, a, b = made.var("t"), made.var("a"), made.var("b")
    neighbour = load(shared, op("floormod", op("add", b, 1), 8))
    put = loop(a, 8, store(shared, a), kind=LoopKind.LANE)
    place = op("add", op("mul", t, 8), b)
    get = loop(b, 8, store(out, place, neighbour), kind=LoopKind.LANE)
    after: list[Stmt] = [] if less == 1 else [Barrier()]
    before: list[Stmt] = [] if less == 2 else [Barrier()]
    return made.kernel(loop(t, 3, put, *after, get, *before)), {}


def _barrier_after(less: int) -> Made:
    return _barrier(2 * less)


def _uniform(less: int) -> Made:
    """What all lanes read of what one stores, twice, the second time before it is stored again."""
    made = Kernels()
    out = made.buffer(F32, 4, written=True)
    shared = made.scratch(F32, 4, space=Space.WORKGROUP)
    sums = made.scratch(F32, 1, space=Space.REGISTER)
    a, b, c = made.var("a"), made.var("b"), made.var("c")
    put = loop(a, 4, store(shared, a), kind=LoopKind.LANE)
    again = loop(b, 4, store(shared, b, 2), kind=LoopKind.LANE)
    get = loop(c, 4, store(out, c, load(sums, 0)), kind=LoopKind.LANE)
    first = store(sums, 0, load(shared, 0))
    second = store(sums, 0, expr.add(load(sums, 0), load(shared, 0)))
    between: list[Stmt] = [] if less else [Barrier()]
    return made.kernel(put, Barrier(), first, Barrier(), second, *between, again, get), {}


def _vector(less: int) -> Made:
    """Elements of a vector by themselves, or with their neighbours."""
    made = Kernels()
    out = made.buffer(F32, 8, written=True)
    kept, i, j = made.scratch(F32, 9), made.var(), made.var("j")
    fill = loop(i, 9, store(kept, i))
    change = store(kept, j, load(kept, op("add", j, less)))
    return made.kernel(
        fill, loop(j, 8, change, store(out, j, load(kept, j)), kind=LoopKind.VECTOR)
    ), {}


def _runs(made: Made) -> None:
    kernel, params = made
    verify(kernel)
    results = []
    for pattern in (0, 0xFF):
        rng = np.random.default_rng(0)
        buffers = {
            b.name: filled(b, pattern if b.is_written else None, rng, params)
            for b in kernel.buffers
        }
        for b in kernel.buffers:
            if not b.is_written:
                buffers[b.name][: evaluate(product(b.shape), params) // 2] = -1
        interpreter.run(kernel, buffers, params, check_races=True)
        results.append({b.name: buffers[b.name] for b in kernel.buffers if b.is_written})
    for name, first in results[0].items():
        if not np.array_equal(first.view(np.uint8), results[1][name].view(np.uint8)):
            raise InternalError(f"{name} is not all written")


WRITES = (_open_rows, _moved_back, _parts, _branches, _sum, _window, _strided)
RACES = (_lanes, _barrier, _barrier_after, _uniform, _vector)


@pytest.mark.parametrize("make", (*WRITES, *RACES), ids=lambda make: make.__name__[1:])
def test_kernels_that_are_right(make: Callable[[int], Made]) -> None:
    made = make(0)
    _runs(made)
    assert not check_definedness(made[0]).unproved
    assert not check_races(made[0]).unproved


@pytest.mark.parametrize("make", WRITES, ids=lambda make: make.__name__[1:])
def test_kernels_that_read_what_nobody_wrote(make: Callable[[int], Made]) -> None:
    made = make(1)
    with pytest.raises(InternalError, match="nothing was stored|not all written"):
        _runs(made)
    assert check_definedness(made[0]).unproved


@pytest.mark.parametrize("make", RACES, ids=lambda make: make.__name__[1:])
def test_kernels_whose_iterations_meet(make: Callable[[int], Made]) -> None:
    made = make(1)
    with pytest.raises(InternalError, match="race|not independent"):
        _runs(made)
    assert check_races(made[0]).unproved
