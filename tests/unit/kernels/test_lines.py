"""Kernels that go along lines: what order, ties and positions outside mean, on CPU and GPU.

Kernels run on the interpreter with race checks; the expected results are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from aot.ir.builder import Builder
from aot.ir.dims import symbol
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.kernels.ir import interpreter
from aot.kernels.rules.lines import scatter
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.target import selection as targets
from tests.support.lowering import run_executable

Array = np.ndarray[Any, Any]
TARGETS = ("x86-64-v3", "vulkan-1.1")
pytestmark = pytest.mark.parametrize("target", TARGETS)


def run_op(
    target: str,
    name: str,
    arrays: list[Array],
    wanted: list[int] | None = None,
    extents: Mapping[str, int] = MappingProxyType({}),
    **attrs: Any,
) -> list[Array]:
    """Results of one op compiled for a target; only those numbered `wanted` are read. `extents` are
    of the symbols that attributes have."""
    b = Builder()
    for extent in extents:
        b.input(f"of {extent}", f"f32[{extent}]")
    operands = [
        b.input(f"x{n}", f"{_DTYPES[a.dtype.name]}[{', '.join(map(str, a.shape))}]")
        for n, a in enumerate(arrays)
    ]
    made = b.op(name, *operands, **attrs)
    results = made if isinstance(made, tuple) else (made,)
    for number in wanted if wanted is not None else range(len(results)):
        b.output(f"y{number}", results[number])
    function = b.function()
    module = Module([function])
    fuse(function)
    tie_operands(function)
    outline(module)
    (dispatch,) = [op for op in function.block if op.name == "dispatch"]
    executable = module.functions[dispatch.attrs["executable"].name]  # type: ignore[union-attr]
    by_value = dict(zip(function.inputs[len(extents) :], arrays, strict=True))
    return run_executable(
        executable,
        targets.load(target),
        [by_value[v] for v in dispatch.operands],
        [extents[str(n)] for n in dispatch.attrs["dims"]],  # type: ignore[union-attr]
        lambda kernel, buffers, params: interpreter.run(kernel, buffers, params, check_races=True),
    )


_DTYPES = {"float32": "f32", "int32": "i32"}


def _f(*values: float) -> Array:
    return np.array(values, np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int32)


def test_the_last_of_several_updates_wins(target: str) -> None:
    (y,) = run_op(target, "scatter_elements", [_f(0, 0, 0), _i(1, 1, 1), _f(5, 6, 7)], axis=0)
    assert y.tolist() == [0, 7, 0]
    (y,) = run_op(
        target, "scatter_nd", [_f(0, 0, 0), _i(2, 0, 2).reshape(3, 1), _f(5, 6, 7)], depth=1
    )
    assert y.tolist() == [6, 0, 7]


def test_updates_outside_are_left_out(target: str) -> None:
    (y,) = run_op(target, "scatter_elements", [_f(1, 2, 3), _i(3, -4, -1), _f(5, 6, 7)], axis=0)
    assert y.tolist() == [1, 2, 7]
    (y,) = run_op(
        target, "scatter_nd", [_f(1, 2, 3), _i(3, -4, -3).reshape(3, 1), _f(5, 6, 7)], depth=1
    )
    assert y.tolist() == [7, 2, 3]


def test_repeated_sums_all_count(target: str) -> None:
    (y,) = run_op(
        target, "scatter_elements", [_f(1, 1), _i(0, 0, 0), _f(2, 4, 8)], axis=0, reduction="add"
    )
    assert y.tolist() == [15, 1]


@pytest.mark.parametrize("seed", range(10))
def test_pieces_of_lines(target: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's lanes have pieces of a long line, and apply all updates to them in order."""
    monkeypatch.setattr(scatter, "PIECE", 3)
    r = np.random.default_rng(seed)
    reduction = ("none", "add", "mul", "max", "min")[seed % 5]
    x, rows = r.integers(-3, 4, (4, 5, 2)), r.integers(-6, 6, (9, 2))
    check_op(target, "scatter_nd", x, rows, (9, 2), r, depth=2, reduction=reduction)
    x, chosen = r.integers(-3, 4, (2, 11, 3)), r.integers(-12, 12, (2, 7, 2))
    check_op(target, "scatter_elements", x, chosen, chosen.shape, r, axis=1, reduction=reduction)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatters_of_columns(target: str, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's workgroup has some columns of lines, or one line; positions are of a part of both."""
    monkeypatch.setattr(scatter, "COLUMNS", 5)
    r = np.random.default_rng(axis)
    for shape, part in (((2, 3, 21), (2, 3, 18)), ((1, 40, 5), (1, 7, 5)), ((3, 1, 4), (2, 1, 4))):
        extent = shape[axis]
        x, chosen = r.integers(-3, 4, shape), r.integers(-extent - 1, extent + 1, part)
        for reduction in ("none", "add"):
            check_op(
                *(target, "scatter_elements", x, chosen, part, r), axis=axis, reduction=reduction
            )


def test_scans_of_lines_in_blocks(target: str) -> None:
    """Of as many lines as lanes and of others, of whole blocks of elements and of what is left."""
    r = np.random.default_rng(1)
    for shape in ((8, 16), (37, 13), (3, 5, 30), (3, 40), (19, 4)):
        x = r.integers(-3, 4, shape).astype(np.float32)
        for exclusive in (False, True):
            for is_back in (False, True):
                (y,) = run_op(
                    *(target, "scan", [x]),
                    axis=len(shape) - 1,
                    combine="sum",
                    exclusive=exclusive,
                    reverse=is_back,
                )
                line = x[..., ::-1] if is_back else x
                total = np.cumsum(line, axis=-1) - (line if exclusive else 0)
                np.testing.assert_array_equal(
                    y.reshape(shape), total[..., ::-1] if is_back else total
                )


def check_op(
    target: str,
    name: str,
    x: Array,
    positions: Array,
    updates: tuple[int, ...],
    r: np.random.Generator,
    **attrs: Any,
) -> None:
    """A scatter of small numbers against the op's reference."""
    arrays = [x.astype(np.float32), positions.astype(np.int32)]
    arrays.append(r.integers(-3, 4, updates).astype(np.float32))
    b = Builder()
    operands = [
        b.input(f"x{n}", f"{_DTYPES[a.dtype.name]}{list(a.shape)}") for n, a in enumerate(arrays)
    ]
    b.output("y", b.op(name, *operands, **attrs))
    (wanted,) = run(b.function(), arrays)
    (y,) = run_op(target, name, arrays, **attrs)
    np.testing.assert_array_equal(y.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("wanted", [[0], [1], [0, 1]])
def test_equal_elements_keep_their_order(target: str, wanted: list[int]) -> None:
    x = _f(3, 1, 3, 2, 3, 1)
    both = {0: [3, 3, 3, 2], 1: [0, 2, 4, 3]}
    results = run_op(target, "top_k", [x], wanted, axis=0, k=4)
    assert [r.tolist() for r in results] == [both[n] for n in wanted]
    (places,) = run_op(target, "top_k", [x], [1], axis=0, k=6, largest=False)
    assert places.tolist() == [1, 5, 3, 0, 2, 4]


@pytest.mark.parametrize("wanted", [[0, 1], [0], [1]], ids=["both", "values", "places"])
def test_few_and_more_of_a_line(target: str, wanted: list[int]) -> None:
    """Ties, infinities and both orders, of few, which are in registers, and of more."""
    x = np.random.default_rng(4).integers(-2, 3, (3, 11)).astype(np.float32)
    x[0, 3:9], x[1, ::2], x[2] = -np.inf, np.inf, -np.inf
    for k, sign in ((1, 1), (2, -1), (5, 1), (8, -1), (9, 1), (11, 1)):
        found = run_op(target, "top_k", [x], wanted, axis=1, k=k, largest=sign > 0)
        places = np.argsort(-sign * x, axis=1, kind="stable")[:, :k]
        expected = [np.take_along_axis(x, places, 1), places]
        for number, result in zip(wanted, found, strict=True):
            assert np.array_equal(result, expected[number]), (k, sign)


@pytest.mark.parametrize("wanted", [[0, 1], [0], [1]], ids=["both", "values", "places"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_few_of_many_lines(target: str, axis: int, wanted: list[int]) -> None:
    """As many at once as a vector has lanes, and those that are left; ties and infinities."""
    random = np.random.default_rng(6)
    for k, sign, terms, dtype in ((1, 1, 40, "f4"), (3, -1, 3, "i4"), (8, 1, 21, "f4")):
        shape = [2, 1, 35]
        shape[axis] = terms
        x = random.integers(-3, 4, shape).astype(dtype)
        if dtype == "f4":
            x[random.random(shape) < 0.2] = -np.inf
        found = run_op(target, "top_k", [x], wanted, axis=axis, k=k, largest=sign > 0)
        places = np.take(np.argsort(-sign * x, axis, kind="stable"), np.arange(k), axis)
        expected = [np.take_along_axis(x, places, axis), places]
        for number, result in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(result, expected[number])


@pytest.mark.parametrize("dtype", ["f4", "i4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_many_of_a_line(target: str, axis: int, dtype: str) -> None:
    """Ties, zeros of both signs, the greatest and the least; lines of few elements and of more."""
    random = np.random.default_rng(7)
    for terms, k, sign in ((20, 9, 1), (97, 9, -1), (130, 129, 1), (333, 60, 1), (333, 61, -1)):
        x = random.integers(-90, 91, (terms, 3)).astype(dtype)
        x[::7] = 0
        if dtype == "f4":
            x[random.random(x.shape) < 0.1] = -0.0
            x[5:9], x[11] = -np.inf, np.inf
        else:
            x[5:9], x[11] = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        key = x if sign < 0 else -x if dtype == "f4" else ~x
        x, key = (x, key) if axis == 0 else (x.T.copy(), key.T)
        found = run_op(target, "top_k", [x], axis=axis, k=k, largest=sign > 0)
        places = np.take(np.argsort(key, axis, kind="stable"), np.arange(k), axis)
        for result, expected in zip(
            found, (np.take_along_axis(x, places, axis), places), strict=True
        ):
            np.testing.assert_array_equal(result, expected)


def test_nan_among_many(target: str) -> None:
    """The order is open, but each element has one place."""
    x = np.random.default_rng(8).uniform(-9, 9, (2, 140)).astype(np.float32)
    x[:, ::5] = np.nan
    values, places = run_op(target, "top_k", [x], axis=1, k=140)
    np.testing.assert_array_equal(np.sort(places, 1), np.tile(np.arange(140), (2, 1)))
    np.testing.assert_array_equal(values, np.take_along_axis(x, places.astype(np.int64), 1))


@pytest.mark.parametrize("wanted", [[0, 1], [0], [1]], ids=["both", "values", "places"])
def test_of_a_number_that_the_model_computes(target: str, wanted: list[int]) -> None:
    """None too: no element is read then, nor written."""
    x = np.random.default_rng(5).integers(-2, 3, (2, 5)).astype(np.float32)
    places = np.argsort(-x, axis=1, kind="stable")
    for k in (0, 1, 3, 5):
        found = run_op(target, "top_k", [x], wanted, {"K": k}, axis=1, k=symbol("K"))
        expected = [np.take_along_axis(x, places[:, :k], 1), places[:, :k]]
        for number, result in zip(wanted, found, strict=True):
            assert result.tolist() == expected[number].tolist(), k


def test_many_lines_of_a_long_sort(target: str) -> None:
    x = np.random.RandomState(0).randint(-50, 50, (70, 33)).astype(np.int32)
    values, places = run_op(target, "top_k", [x], axis=1, k=33)
    order = np.argsort(-x, axis=1, kind="stable")
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_an_infinite_element_is_found(target: str) -> None:
    x = np.array([[-np.inf, -np.inf], [1, np.nan]], np.float32)
    (places,) = run_op(target, "arg_max", [x], axis=1)
    assert places.reshape(-1).tolist() == [0, 1]


def test_exclusive_sums_begin_with_nothing(target: str) -> None:
    (y,) = run_op(target, "scan", [_i(1, 2, 3)], axis=0, exclusive=True, reverse=True)
    assert y.tolist() == [5, 3, 0]


@pytest.mark.parametrize("shape", [(3, 4, 5, 37), (1, 3, 130), (2, 3, 1, 1), (2, 2, 64, 3)])
def test_lines_that_lie_side_by_side_are_summed_together(
    target: str, shape: tuple[int, ...]
) -> None:
    """Several vectors of them and what is left, over dims that are walked as one."""
    x = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(np.float32)
    for axis in range(len(shape)):
        (y,) = run_op(target, "scan", [x], axis=axis)
        np.testing.assert_array_equal(y, np.cumsum(x, axis))
