"""Movement on CPUs: segments in which conditions on an index are known, and blocks of two axes."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest

import aot
from aot.backends.cpu.compile import emit_assembly
from aot.builder import Builder
from aot.errors import RuntimeFailure
from aot.ir import expr
from aot.ir.text.parser import parse_module
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel, walk
from aot.kernels.lowering import lower
from aot.kernels.nest import segments
from aot.target import selection as targets
from tests.support.executables import NATIVE, graph_of, outlined, type_of
from tests.support.kernel_backends import on_cpu, on_qemu
from tests.support.laid_out import relay
from tests.support.lowering_checks import check, on_interpreter

Array = np.ndarray[Any, Any]
OPERATORS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


@pytest.mark.parametrize("name", OPERATORS)
def test_conditions_in_segments(name: str) -> None:
    """Against their values, for both signs of both sides' slopes."""
    var = expr.Var("i")

    def linear(slope: int, start: int) -> expr.Expr:
        return expr.add(expr.mul(var, expr.index(slope)), expr.index(start))

    for a, c, b, d in itertools.product((-3, -1, 0, 1, 2), range(-7, 12, 3), (0, 1, 2), (-4, 0, 5)):
        condition = expr.binary(name, linear(a, c), linear(b, d))
        first = 0
        for end in segments.ends([condition], var, 12):
            known = segments.within(condition, var, first, end)
            for i in range(first, end):
                wanted = OPERATORS[name](a * i + c, b * i + d)
                assert a == b or (isinstance(known, expr.Const) and known.value == wanted)
            first = end


def test_segments_beyond_a_bound_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A concatenation of a thousand parts has as many: each would be a walk over all of them."""
    var = expr.Var("i")
    value: expr.Expr = expr.index(0)
    for part in range(200):
        here = expr.binary("lt", var, expr.index(4 * part))
        value = expr.select(here, value, expr.index(part))
    walks = []
    within = segments.within
    monkeypatch.setattr(segments, "within", lambda *a: walks.append(a) or within(*a))
    assert len(segments.ends([value], var, 800)) == 200 < len(walks)
    walks.clear()
    assert len(segments.ends([value], var, 800, 200)) == 200
    walks.clear()
    assert len(segments.ends([value], var, 800, 199)) == 200 and len(walks) == 1


@pytest.mark.parametrize(("begin", "kernel", "step"), [(0, 3, 1), (1, 3, 1), (2, 5, 2), (3, 4, 3)])
def test_how_many_are_inside(begin: int, kernel: int, step: int) -> None:
    """How many taps of a window are no padding, as averages have it, is a number in the middle."""
    var, extent = expr.Var("i"), 10

    def clamped(end: int) -> expr.Expr:
        first = expr.sub(expr.mul(var, expr.index(step)), expr.index(begin))
        least = expr.binary("max", expr.sub(expr.index(end), first), expr.index(0))
        return expr.binary("min", least, expr.index(kernel))

    count = expr.sub(clamped(17), clamped(0))
    first = 0
    for end in segments.ends([count], var, extent):
        known = segments.within(count, var, first, end)
        for i in range(first, end):
            taps = range(step * i - begin, step * i - begin + kernel)
            value = expr.dim_of(expr.substitute(known, {var: expr.index(i)}))
            assert value == sum(0 <= tap < 17 for tap in taps)
        assert not any(isinstance(n, expr.Binary) and n.op == "max" for n in expr.nodes(known))
        first = end


def test_clamped_indices() -> None:
    """The lesser and the greater of two that are equal where a segment begins."""
    var = expr.Var("i")
    for start, low, high in itertools.product((-3, -1, 0, 2), (-2, 0, 1), (1, 3, 9)):
        at = expr.add(var, expr.index(start))
        index = expr.binary("max", expr.binary("min", at, expr.index(high)), expr.index(low))
        first = 0
        for end in segments.ends([index], var, 10):
            known = segments.within(index, var, first, end)
            for i in range(first, end):
                value = expr.dim_of(expr.substitute(known, {var: expr.index(i)}))
                assert value == max(min(i + start, high), low)
            first = end


@pytest.mark.parametrize("slope", [-2, -1, 1, 3])
def test_mirrored_indices(slope: int) -> None:
    """As a padding that reflects has them."""
    var = expr.Var("i")
    for start, last in itertools.product(range(-5, 14, 3), (3, 7)):
        at = expr.add(expr.mul(var, expr.index(slope)), expr.index(start))
        rest = expr.sub(expr.index(last), expr.unary("abs", at))
        index = expr.sub(expr.index(last), expr.unary("abs", rest))
        first = 0
        for end in segments.ends([index], var, 12):
            known = segments.within(index, var, first, end)
            assert not any(isinstance(e, expr.Unary) for e in expr.nodes(known))
            for i in range(first, end):
                value = expr.dim_of(expr.substitute(known, {var: expr.index(i)}))
                assert value == last - abs(last - abs(slope * i + start))
            first = end


def test_remainders() -> None:
    """As a padding that begins again has them; one that does so often is none of segments."""
    var = expr.Var("i")
    for start, size in itertools.product((-7, -2, 0, 3), (4, 5, 9, 30)):
        index = expr.binary("floormod", expr.add(var, expr.index(start)), expr.index(size))
        first = 0
        for end in segments.ends([index], var, 13):
            known = segments.within(index, var, first, end)
            assert not any(
                isinstance(e, expr.Binary) and e.op == "floormod" for e in expr.nodes(known)
            )
            for i in range(first, end):
                assert (
                    expr.dim_of(expr.substitute(known, {var: expr.index(i)})) == (i + start) % size
                )
            first = end
    often = expr.binary("floormod", var, expr.index(3))
    assert segments.ends([often], var, 100) == [100]
    assert segments.within(often, var, 0, 100) is often


Step = tuple[str, dict[str, Any]]
PARTS = (3, 1, 8, 12, 2, 17)
EITHER = list(itertools.product((False, True), repeat=2))


def moved(arrays: list[Array], *steps: Step, layout: str = "") -> None:
    """Runs ops on this machine, as every target that it is."""
    for target in NATIVE:
        function = graph_of([*map(type_of, arrays)], *steps)
        if layout:
            relay(function, layout)
        check(function, arrays, target, 1, 0.0, on_cpu(target))


def counted(dtype: str, *shape: int) -> Array:
    """Elements that differ from their neighbours."""
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(DType(dtype).numpy)


def drawn(dtype: str, most: int, *shape: int) -> Array:
    return np.random.default_rng(1).integers(0, most, shape).astype(DType(dtype).numpy)


@pytest.mark.parametrize("dtype", ["f32", "u8", "i64"])
@pytest.mark.parametrize("mode", ["reflect", "wrap", "edge"])
def test_pads_of_either_end(mode: str, dtype: str) -> None:
    for columns in (5, 33, 70):
        attrs = {"pads": [0, 2, 3, 0, 5, 4], "mode": mode, "value": 0.0}
        moved([counted(dtype, 2, 6, columns)], ("pad", attrs))


@pytest.mark.parametrize("layout", ["", "channels_last", "reversed"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_concat_of_many(axis: int, layout: str) -> None:
    shapes = [[n if d == axis else s for d, s in enumerate((2, 4, 3, 5))] for n in PARTS]
    arrays = [counted("f32", *shape) + n for n, shape in enumerate(shapes)]
    moved(arrays, ("concat", {"axis": axis}), layout=layout)


@pytest.mark.parametrize("layout", ["", "channels_last"])
def test_pads_of_several_axes(layout: str) -> None:
    attrs = {"pads": [0, 1, 2, 3, 1, 0, 4, 2], "mode": "constant", "value": 7.0}
    moved([counted("f32", 2, 3, 5, 19)], ("pad", attrs), layout=layout)


def test_too_many_parts_are_asked() -> None:
    """A kernel does not grow with the number of parts beyond bounds."""

    def size(parts: int) -> int:
        inputs_text = ", ".join(f"%{n}: f32[4, 3]" for n in range(parts))
        names = ", ".join(f"%{n}" for n in range(parts))
        result = f"f32[4, {3 * parts}]"
        text = f"""
        executable @e0({inputs_text}) -> ("r0") bindings {[2] * parts + [3]} {{
          %{parts} = concat({names}) {{axis = 1}} : {result}
          return(%{parts})
        }}
        """
        (function,) = parse_module(text).executables
        kernel: Kernel = lower(function, targets.load("x86-64-v3"))
        return sum(1 for _ in walk(kernel.body))

    assert size(20) > size(60)


# odd extents, those of whole blocks and lines, and sides shorter than a vector
@pytest.mark.parametrize(
    "shape",
    [
        *((24, 128, 40), (2, 33, 17), (2, 16, 16), (2, 64, 40), (3, 7, 50), (2, 9, 8)),
        *((4, 24, 31), (5, 3, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["f32", "u8", "i64", "f16", "bool"])
def test_transposes(shape: tuple[int, ...], dtype: str) -> None:
    for perm in list(itertools.permutations(range(3)))[1:]:
        moved([drawn(dtype, 2, *shape)], ("transpose", {"perm": perm}))


def test_transposes_race_nowhere() -> None:
    for target in ("x86-64-v3", "x86-64-v4", "aarch64-generic"):
        b = Builder()
        x, y = b.input("x", "f32[2, 19, 21]"), b.input("y", "f32[2, 21, 19]")
        b.output("z", b.op("add", b.op("transpose", x, perm=[0, 2, 1]), y))
        arrays = [counted("f32", 2, 19, 21), counted("f32", 2, 21, 19)]
        check(b.function(), arrays, target, 1, 0.0, on_interpreter)


def repeated(columns: int, times: int) -> list[Step]:
    """An image whose pixels become several."""
    shape = [2, 3, columns]
    return [("reshape", {"shape": [*shape, 1]}), ("broadcast_to", {"shape": [*shape, times]})]


@pytest.mark.parametrize("columns", [4, 7, 16, 77])
@pytest.mark.parametrize("dtype", ["f32", "u8", "bool"])
@pytest.mark.parametrize("times", [2, 3, 4, 6, 7])
def test_what_an_innermost_axis_repeats(columns: int, dtype: str, times: int) -> None:
    """Pixels, and planes whose elements become neighbours."""
    moved([drawn(dtype, 2, 2, 3, columns)], *repeated(columns, times))
    moved([drawn(dtype, 2, 2, times, columns)], ("transpose", {"perm": [0, 2, 1]}))


@pytest.mark.parametrize("columns", [4, 7, 13, 16, 37])
@pytest.mark.parametrize("dtype", ["f32", "u8"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0, 1, 0), (0, 0, 1, 0, 0, 2), (1, 0, 3, 2, 1, 3)])
def test_planes_become_pixels_between_padding(
    columns: int, dtype: str, pads: tuple[int, ...]
) -> None:
    """Planes and rows of padding, and padding of pixels: the results have four planes or more."""
    data = drawn(dtype, 99, 3, 4 - pads[1] - pads[4], columns)
    moved([data], ("pad", {"pads": pads, "value": 7.0}), ("transpose", {"perm": [0, 2, 1]}))


def test_pixels_of_planes_are_stored_at_once() -> None:
    padded = "pad", {"pads": (0, 2, 1, 2), "value": 7.0}
    function = graph_of(["u8[3, 48]"], padded, ("transpose", {"perm": [1, 0]}))
    target = targets.load("x86-64-v4")
    code = emit_assembly(lower(outlined(function, target), target), target)
    assert "pextr" not in code and "pinsr" not in code


@pytest.mark.qemu
@pytest.mark.parametrize("dtype", ["f32", "u8", "f16"])
@pytest.mark.parametrize("target", ["aarch64-generic", "armv7-neon", "riscv64-v"])
def test_blocks_and_repeats_elsewhere(target: str, dtype: str) -> None:
    engine = on_qemu(target)
    turns = (((24, 64, 33), [2, 1, 0]), ((40, 37), [1, 0]), ((2, 3, 21), [0, 2, 1]))
    for shape, steps in (
        *((shape, [("transpose", {"perm": perm})]) for shape, perm in turns),
        *(((2, 3, 21), repeated(21, times)) for times in (3, 6)),
    ):
        data = drawn(dtype, 99, *shape)
        check(graph_of([type_of(data)], *steps), [data], target, 1, 0.0, engine)


@pytest.mark.parametrize("dtype", ["f32", "u8", "f16", "i64"])
@pytest.mark.parametrize("step", [-17, -9, -3, -2, -1, 2, 3, 5, 8, 13, 16, 17])
def test_every_few_elements(step: int, dtype: str) -> None:
    """Rows of slices with a step, of any number of lanes, in either direction."""
    for extent, first in ((9, 0), (24, 1), (33, 0), (128, 3), (131, 2), (300, 1)):
        start, stop = (first, extent) if step > 0 else (extent - 1 - first, -1)
        attrs = {"starts": [0, start], "stops": [3, stop], "steps": [1, step]}
        moved([counted(dtype, 3, extent)], ("slice", attrs))


@pytest.mark.parametrize("dtype", ["f32", "i32", "i64", "u8", "f16"])
def test_scans_in_either_direction(dtype: str) -> None:
    """Blocks that registers transpose, whose neighbours in memory follow each other backwards;
    lines of several dims."""
    for shape in ((3, 40), (16, 16), (37, 21), (64, 67), (37, 29), (3, 5, 40), (2, 33)):
        for is_back, is_exclusive in EITHER:
            how = {"combine": "sum", "exclusive": is_exclusive, "reverse": is_back}
            moved([counted(dtype, *shape) % 7], ("scan", {"axis": len(shape) - 1, **how}))


@pytest.mark.parametrize("dtype", ["f32", "u8"])
def test_flips_that_transpose(dtype: str) -> None:
    flipped = {"starts": [0, 36, 49], "stops": [2, -1, -1], "steps": [1, -1, -1]}
    data = counted(dtype, 2, 37, 50)
    moved([data], ("slice", flipped), ("transpose", {"perm": [0, 2, 1]}))


@pytest.mark.parametrize(("mode", "least"), [("reflect", 4), ("edge", 1), ("wrap", 1)])
def test_pads_of_open_extents_have_the_elements_they_repeat(mode: str, least: int) -> None:
    """With fewer, positions would lie before the operand: such a run is refused."""
    b = Builder()
    b.output("y", b.op("pad", b.input("x", "f32[N, 5]"), pads=(2, 0, 3, 0), mode=mode))
    with aot.load(aot.compile(b.module(), targets=["host"])) as program:
        for count in range(6):
            x = np.arange(5 * count, dtype=np.float32).reshape(count, 5)
            if count >= least:
                wanted = np.pad(x, ((2, 3), (0, 0)), mode=mode)  # type: ignore[call-overload]
                np.testing.assert_array_equal(program({"x": x})["y"], wanted)
                continue
            with pytest.raises(RuntimeFailure) as refused:
                program({"x": x})
            assert str(refused.value) == (
                f'input "x": expected shape [N, 5], found [{count}, 5]: axis 0, N, must be at '
                f"least {least}"
            )
