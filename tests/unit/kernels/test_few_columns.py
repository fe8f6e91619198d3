"""Contractions of fewer columns than lanes: lanes go along the sum, or vectors are narrower."""

from __future__ import annotations

import numpy as np
import pytest

from aot.analysis.cost.plan import weight_layouts
from aot.analysis.stages import schedule_of
from aot.builder import Builder
from aot.ir import expr
from aot.ir.record import call_of
from aot.ir.schedule import Schedule
from aot.ir.text.parser import parse_module
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, LoopKind, Store, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support import dot_products
from tests.support.cpu_running import native_targets
from tests.support.executables import LAST, PACKED, PLANES, Conv
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import check, on_interpreter

NATIVE = native_targets()
CASES = [
    Conv((32, 1, 9, 11), kernel=3, pad=1),
    Conv((37, 3, 6, 7), kernel=3, pad=1, end="residual"),
    Conv((16, 2, 5, 17), kernel=3, stride=2),
    Conv((64, 4, 4, 6), end="sigmoid"),
    Conv((19, 1, 3, 2), kernel=5, pad=2),
    Conv((40, 3, 8, 8), end="residual"),
    Conv((130, 6, 5, 6), end="residual"),
    Conv((770, 8, 3, 5), kernel=1),
]


def of(case: Conv, result: str, opened: str = "") -> Conv:
    fields = {**vars(case), "left": LAST, "weights": LAST, "result": result, "opened": opened}
    return Conv(**fields)


@pytest.mark.parametrize("result", [PLANES, LAST], ids=["planes", "last"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case: Conv, result: str) -> None:
    for target in NATIVE:
        of(case, result).check(target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic"])
def test_interpreted(target: str) -> None:
    of(Conv((9, 2, 2, 5), kernel=3, pad=1), PLANES).check(target, on_interpreter)


@pytest.mark.parametrize("opened", ["W", "HW", "C", "OCHW"])
def test_dynamic_extents(opened: str) -> None:
    for case in CASES[:3]:
        of(case, LAST, opened).check("x86-64-v3", on_cpu("x86-64-v3"))


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_products(columns: int) -> None:
    for rows, terms in ((50, 24), (7, 100), (16, 9)):
        b = Builder()
        x = b.input("x", f"f32[{rows}, {terms}]")
        weight = np.random.default_rng(1).integers(-3, 4, (terms, columns)).astype(np.float32)
        b.output("y", b.op("relu", b.op("matmul", x, weight)))
        data = np.random.default_rng(2).integers(-3, 4, (rows, terms)).astype(np.float32)
        check(b.function(), [data], "x86-64-v3", 1, 0.0, on_cpu("x86-64-v3"))


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
def test_products_whose_terms_fill_no_vector(rows: int) -> None:
    """What is left of the sum is in some lanes, under a mask where there are masks."""
    for columns in (2, 3, 4):
        for terms in (36, 132, 140, 143):
            for target in (*NATIVE, "aarch64-generic"):
                if target not in NATIVE and (rows > 3 or terms > 40):
                    continue  # the interpreter is slow
                b = Builder()
                x = b.input("x", f"f32[{rows}, {terms}]")
                random = np.random.default_rng(columns)
                weight = random.integers(-3, 4, (terms, columns)).astype(np.float32)
                b.output("y", b.op("matmul", x, weight))
                data = random.integers(-3, 4, (rows, terms)).astype(np.float32)
                engine = on_cpu(target) if target in NATIVE else on_interpreter
                check(b.function(), [data], target, 1, 0.0, engine)


@pytest.mark.parametrize(("rows", "terms"), [(50, 24), (7, 130), (1, 256), (16, 9)])
def test_one_column_of_integers(rows: int, terms: int) -> None:
    """The weights stay a line, as panels have words of columns that are not there between them."""
    text = f"""
    executable @e0(%0: u8[{rows}, {terms}], %1: i8[{terms}, 1]) -> ("r0") bindings [2, 2, 3] {{
      %2 = matmul_integer(%0, %1) : i32[{rows}, 1]
      return(%2)
    }}
    """
    (function,) = parse_module(text).executables
    call = call_of(next(iter(function.block)))
    random = np.random.default_rng(3)
    left = random.integers(0, 256, (rows, terms)).astype(np.uint8)
    right = random.integers(-128, 128, (terms, 1)).astype(np.int8)
    wanted = left.astype(np.int32) @ right.astype(np.int32)
    for name in (*NATIVE, "aarch64-linux-i8mm"):
        target = targets.load(name)
        assert weight_layouts(call, target) == {}
        engine = on_cpu(name) if name in NATIVE else on_interpreter
        memory = [to_memory(left, function.inputs[0].type, {}), right.reshape(-1)]
        (got,) = run_executable(function, target, memory, [], engine)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("columns", "terms"), [(5, 131), (6, 300), (7, 800), (8, 771)])
def test_products_of_long_sums(columns: int, terms: int) -> None:
    """More columns are worth it where a vector's lanes are seldom added up."""
    for target in NATIVE:
        for rows in (50, 5):
            b = Builder()
            x = b.input("x", f"f32[{rows}, {terms}]")
            weight = np.random.default_rng(1).integers(-3, 4, (terms, columns)).astype(np.float32)
            b.output("y", b.op("matmul", x, weight))
            data = np.random.default_rng(2).integers(-3, 4, (rows, terms)).astype(np.float32)
            check(b.function(), [data], target, 1, 0.0, on_cpu(target))


@pytest.mark.parametrize("columns", [5, 8])
def test_short_sums_have_other_lanes(columns: int) -> None:
    target = targets.load("x86-64-v4")

    def schedule(terms: int) -> Schedule:
        b = Builder()
        x = b.input("x", f"f32[50, {terms}]")
        weight = np.ones((terms, columns), np.float32)
        b.output("y", b.op("matmul", x, weight))
        return schedule_of(b.function(), target)[0].schedule

    assert schedule(64) is Schedule.PLANES
    assert schedule(1024) is Schedule.INNER


def test_one_row_of_few_columns() -> None:
    """A sum was once as many additions one after another as it has terms."""
    for columns, terms in ((2, 100), (4, 1280), (3, 1000)):
        b = Builder()
        x = b.input("x", f"f32[1, {terms}]")
        b.output("y", b.op("matmul", x, np.ones((terms, columns), np.float32)))
        for name in ("x86-64-v4", "x86-64-v3", *(["aarch64-generic"] if columns == 2 else [])):
            assert schedule_of(b.function(), targets.load(name))[0].schedule is Schedule.INNER


@pytest.mark.parametrize("end", ["", "residual", "sigmoid"])
def test_padded_windows_of_planes(end: str) -> None:
    """A plane of the sum after the other."""
    for case in (
        Conv((6, 3, 9, 11), kernel=3, pad=1),
        Conv((17, 1, 20, 33), kernel=5, pad=2),
        Conv((5, 2, 7, 8), kernel=3, stride=2, pad=1),
        Conv((3, 4, 30, 5), kernel=5, pad=1),
    ):
        for weights in (PLANES, PACKED):
            for opened in ("", "W", "HW", "C"):
                fields = {**vars(case), "end": end, "weights": weights, "opened": opened}
                Conv(**fields).check("x86-64-v3", on_cpu("x86-64-v3"))
    Conv((2, 1, 4, 5), kernel=3, pad=1, end=end).check("aarch64-generic", on_interpreter)


def test_where_lanes_go_along_the_sum() -> None:
    def schedule(conv: Conv, target: str = "x86-64-v3") -> Schedule:
        return schedule_of(conv.function(), targets.load(target))[0].schedule

    assert schedule(of(Conv((32, 1, 9, 7), kernel=3, pad=1), PLANES)) is Schedule.INNER
    for other in (
        Conv((32, 1, 9, 7), kernel=3, pad=1),  # planes have no neighbours along the sum
        of(Conv((32, 5, 9, 11)), LAST),
        of(Conv((5, 2, 9, 11)), LAST),
        of(Conv((32, 1, 1, 2)), LAST),
    ):
        assert schedule(other) is not Schedule.INNER
    assert schedule(of(Conv((32, 2, 1, 2)), LAST)) is Schedule.INNER
    assert schedule(of(CASES[0], PLANES), "vulkan-1.1") is Schedule.CONTRACTION


@pytest.mark.parametrize("target", ["x86-64-v2", "wasm32", "armv7-neon", "x86-64-v4"])
@pytest.mark.parametrize("columns", [3, 4, 6, 12])
def test_a_panel_of_few_columns_is_read_without_masks(columns: int, target: str) -> None:
    """What lies behind its columns is the panel's, and several rows share what is read of it."""
    kernel = lower(
        Conv((24, columns, 5, 7), left=LAST, result=LAST).function(), targets.load(target)
    )
    products = [s for s in walk(kernel.body) if isinstance(s, Store) and "Fma(" in repr(s.value)]
    assert products and not any(
        load.guard is not None for s in products for load in expr.loads(s.value)
    )
    held = [s.shape[0] for s in kernel.scratch if s.name.startswith("acc")]
    assert max(held) > 1


@pytest.mark.parametrize(("columns", "width"), [(5, 8), (8, 8), (9, 16), (16, 16)])
def test_vectors_are_no_wider_than_columns(columns: int, width: int) -> None:
    case = of(Conv((24, columns, 3, 5)), LAST)
    kernel = lower(case.function(), targets.load("x86-64-v4"))
    loops = [x for x in walk(kernel.body) if isinstance(x, For) and x.kind is LoopKind.VECTOR]
    assert {loop.extent for loop in loops} == {width}


@pytest.mark.parametrize(("columns", "width"), [(3, 4), (5, 8), (9, 16)])
def test_vectors_of_dot_products_are_no_wider(columns: int, width: int) -> None:
    """Of 4 and 8 columns each has several lanes: test_dots_in_parts.py."""
    target = targets.load("x86-64-v4-vnni")
    function, _ = dot_products.made(dot_products.conv(DType.U8, 16, columns), target)
    loops = [x for x in walk(lower(function, target).body) if isinstance(x, For)]
    sums = [x for x in loops if x.kind is LoopKind.VECTOR and "Dot(" in repr(x.body)]
    assert {loop.extent for loop in sums} == {width}


@pytest.mark.parametrize("how", ["extremes", "random"])
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_narrow_vectors_of_dot_products(columns: int, how: str) -> None:
    for name in NATIVE:
        target = targets.load(name)
        case = dot_products.conv(DType.U8, 20, columns)
        dot_products.check(case, how, target, on_cpu(name))


@pytest.mark.parametrize("columns", [2, 3, 5, 8])
def test_narrow_vectors(columns: int) -> None:
    for target in NATIVE:
        for sizes in ((24, columns, 3, 7), (40, columns, 1, 2)):
            of(Conv(sizes, end="residual"), LAST).check(target, on_cpu(target))
