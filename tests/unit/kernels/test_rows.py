"""Reductions of rows, of columns and of groups of channels: where extrema are, rows of sums, and
norms of what lies innermost in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from aot.ir import expr
from aot.kernels.ir.nodes import Buffer, For, If, Let, LoopKind, Stmt, Store
from aot.kernels.ir.text import to_text
from tests.support.executables import NATIVE, Array, Extents, Pool, Rows
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import Engine, on_interpreter

WAYS = [(op, last) for op in ("arg_max", "arg_min") for last in (False, True)]


# ---- where extrema are: of equal ones the first or the last ----


def position(
    shape: Extents, axis: int, op: str = "arg_max", last: bool = False, to: str = "i64", **more: str
) -> Rows:
    how = f"axis = {axis}, keepdims = false, select_last = {str(last).lower()}, dtype = {to}"
    return Rows(op, how, shape, (axis,), to=to, **more)  # type: ignore[arg-type]


def few_numbers(shape: Extents) -> Array:
    """So few that many are equal."""
    return np.random.default_rng(1).integers(-5, 6, shape).astype(np.float32)


@pytest.mark.parametrize(("op", "last"), WAYS)
@pytest.mark.parametrize("to", ["i32", "i64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_positions(axis: int, to: str, op: str, last: bool) -> None:
    for terms, results in ((5, 21), (33, 67), (150, 20), (64, 1)):
        shape = (results, terms) if axis else (terms, results)
        position(shape, axis, op, last, to).natively([few_numbers(shape)])


@pytest.mark.parametrize(("op", "last"), WAYS)
@pytest.mark.parametrize("axis", [0, 1])
def test_positions_of_nan_and_infinities(axis: int, op: str, last: bool) -> None:
    """The first NaN, or the last; rows of one infinity alone; infinities that add up to NaN."""
    random = np.random.default_rng(2)
    shape = (37, 70) if axis else (70, 37)
    for special in (np.nan, np.inf, -np.inf):
        for chance in (1e-3, 0.05, 1.0):
            data = few_numbers(shape)
            data[random.random(shape) < chance] = special
            data[3, 5], data[3, 6] = -np.inf, np.inf
            position(shape, axis, op, last).natively([data])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["f64", "f16", "i32", "i64", "u8", "i8"])
def test_positions_of_other_elements(dtype: str, axis: int) -> None:
    for op, last in WAYS:
        position((5, 19, 33), axis, op, last, dtype=dtype).natively()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v2", "aarch64-generic", "riscv64-v"])
def test_positions_interpreted(target: str, axis: int) -> None:
    for op, last in WAYS:
        for shape in ((19, 21), (70, 5)):
            data = few_numbers(shape)
            data[4, 2] = np.nan
            position(shape, axis, op, last).check(target, on_interpreter, [data])


@pytest.mark.parametrize("axis", [0, 1])
def test_positions_of_open_extents(axis: int) -> None:
    for op, last in WAYS:
        for shape in ((1, 1), (3, 7), (40, 100), (100, 3), (17, 600)):
            case = replace(position(shape, axis, op, last), is_open=True)
            worst = np.full(shape, -np.inf if op == "arg_max" else np.inf, np.float32)
            case.natively([worst]).natively([few_numbers(shape)])


def test_positions_take_one_pass() -> None:
    """Each element is read by one loop, and by another where one is NaN."""
    for axis, extents in ((0, (64, 64)), (1, (4, 9999))):
        scratch = position(extents, axis).lowered("x86-64-v4").scratch
        assert {"best", "place", "seen"} <= {s.name for s in scratch}


# ---- columns, whose terms lie a row apart ----


def columns(op: str, shape: Extents, axes: Extents, **more: str) -> Rows:
    return Rows(op, f"axes = {list(axes)}, keepdims = false", shape, axes, **more)  # type: ignore[arg-type]


# one piece of columns, several, a last one that is shorter, few terms
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_prod"])
def test_columns(op: str) -> None:
    for shape, axes in (
        *(((9, 40), (0,)), ((67, 512), (0,)), ((13, 1025), (0,)), ((3, 11, 650), (1,))),
        *(((2, 5, 7, 70), (1, 2)), ((4, 6, 9, 77), (0, 2)), ((8, 1, 33), (0,))),
    ):
        case = columns(op, shape, axes, before="abs", end="neg")
        data = [np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32)]
        for engine in (on_cpu(NATIVE[-1]), on_interpreter)[: 2 if np.prod(shape) < 500 else 1]:
            case.check(NATIVE[-1], engine, data, tolerance=2e-5)


@pytest.mark.parametrize(
    ("case", "is_added"),
    [
        (columns("reduce_sum", (512, 1024), (0,)), True),
        (replace(columns("reduce_sum", (512, 1024), (0,)), is_open=True), True),
        (columns("reduce_sum", (512, 16), (0,)), False),  # one piece of a row
        (columns("reduce_sum", (512, 1024), (1,)), False),
        (Pool("max_pool", (1, 64, 40, 40), 5), False),  # windows share elements
    ],
)
def test_rows_are_read_as_they_lie(case: Rows | Pool, is_added: bool) -> None:
    """A vector of sums once took its terms alone, each from a page of its own."""
    text = to_text(case.lowered("x86-64-v3"))
    assert ("scratch sums: f32[512]" in text) == ("scratch sums" in text) == is_added


# ---- norms of groups of an image's channels that lie innermost in memory ----

LAST = "{order=0:3:4:1:2}"
# groups, channels of a group, height, width
GROUPS = [
    *((1, 8, 4, 4), (8, 8, 4, 6), (2, 24, 5, 3), (3, 3, 7, 1), (4, 40, 2, 8), (5, 1, 3, 4)),
    *((32, 2, 4, 6), (48, 4, 3, 3), (32, 10, 2, 4), (2, 16, 4, 4)),
]


def norm(shape: Extents, result: str = LAST) -> Rows:
    """Stored as it lies, or in planes."""
    how = "axis = 2, epsilon = 1e-5"
    return Rows("layer_norm", how, (2, *shape), layout=LAST, result=result)


def check_norms(shape: Extents, target: str, engine: Engine) -> None:
    for result in (LAST, ""):
        norm(shape, result).check(target, engine, "normal", tolerance=2e-5)


@pytest.mark.parametrize("shape", GROUPS, ids=str)
def test_group_norms(shape: Extents) -> None:
    for target in NATIVE:
        check_norms(shape, target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64-generic", "vulkan-1.1"])
def test_group_norms_interpreted(target: str) -> None:
    for shape in (*GROUPS[1:4], GROUPS[-3]):
        check_norms(shape, target, on_interpreter)


def loads_of_vectors(body: tuple[Stmt, ...], lanes: tuple[expr.Var, ...] = ()) -> Iterator[bool]:
    """Whether lanes read one element after the other, of each load from a buffer."""
    for stmt in body:
        if isinstance(stmt, For):
            inner = (*lanes, stmt.var) if stmt.kind is LoopKind.VECTOR else lanes
            yield from loads_of_vectors(stmt.body, inner)
        elif isinstance(stmt, If):
            yield from loads_of_vectors((*stmt.then, *stmt.otherwise), lanes)
        elif isinstance(stmt, (Store, Let)):
            for load in expr.loads(stmt.value):
                if isinstance(load.source, Buffer) and lanes:
                    yield expr.coefficient(load.indices[0], lanes[-1]) == 1


class OpenNorm(Rows):
    """Of images that are higher and wider by a parameter."""

    @property
    def dims(self) -> dict[str, int]:
        return {"d0": 1}

    def _extents(self) -> list[str]:
        return [str(n) if axis < 3 else f"{n}*d0" for axis, n in enumerate(self.shape)]


@pytest.mark.parametrize("channels", [2, 8, 10, 16, 24])
@pytest.mark.parametrize("of", [Rows, OpenNorm])
def test_lanes_of_group_norms_go_along_memory(of: type[Rows], channels: int) -> None:
    kernel = of(**vars(norm((8, channels, 16, 16)))).lowered("x86-64-v4")
    # groups that fill no vectors share them
    assert ("reductions/group_norms" in kernel.rules) == (channels % 16 != 0)
    found = list(loads_of_vectors(kernel.body))
    assert found and all(found)


def test_rows_are_no_groups() -> None:
    """A softmax's rows have nothing around them."""
    assert Rows("softmax", "axis = 2", (4, 49, 49)).rule("x86-64-v4") == "reductions/row_blocks"
