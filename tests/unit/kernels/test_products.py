"""Products in f32: the instructions that they become, what is in scratch, and sums whose bits do
not depend on how they are cut. What they compute else is test_sweeps.py's."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import planned
from aot.ir import expr
from aot.kernels.ir.nodes import For, Kernel, LoopKind, Store, walk
from aot.kernels.ir.text import to_text
from aot.target import selection as targets
from aot.target.model import Target
from benchmarks.llvm_mca import inner_loop
from tests.support.asked_lines import asked_lines
from tests.support.executables import LAST, NATIVE, PLANES, Conv, Executable, Ops
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter
from tests.support.product_sweeps import (
    COPIED,
    LEAST,
    MANY,
    MOST,
    NOT_COPIED,
    conv,
    few,
    into_last,
    shuffled,
    turned_columns,
)

ARM = "aarch64-generic"
SIDES = pytest.mark.parametrize("side", [PLANES, LAST], ids=["planes", "last"])
SCALAR_STORES = r"(?:vmovss|vextractps)\s.*%xmm\d+,.*\("


def loops(kernel: Kernel, kind: LoopKind) -> list[For]:
    return [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is kind]


def assert_same_bits(own: Executable, other: Executable, target: str, seed: int = 5) -> None:
    arrays = own.arrays("normal", seed)
    found = (case.computed(target, on_interpreter, arrays) for case in (own, other))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "name", ["aarch64-generic", "armv7-neon", "riscv64-v", "x86-64-v3", "wasm32-relaxed"]
)
@pytest.mark.parametrize("opened", ["O", "HW"])
@pytest.mark.parametrize(
    "case",  # columns that one tile divides and another doesn't; rows that tiles may leave some of
    [
        conv((8, 24, 2, 7), result=PLANES),
        conv((8, 24, 2, 7), 3, 1, 1),
        into_last((3, 8, 2, 16), 3, 2),
    ],
    ids=["points", "windows", "images"],
)
def test_open_extents_change_no_bit(case: Conv, opened: str, name: str) -> None:
    assert_same_bits(case, replace(case, opened=opened), name)


@pytest.mark.parametrize("size", [(8, 192, 4, 4), (12, 203, 4, 9)])
def test_copied_rows_change_no_bit(size: tuple[int, int, int, int]) -> None:
    """Of what kernels for several extents compute, which copy none."""
    assert_same_bits(conv(size), conv(size, opened="HW"), ARM)


def is_copied(case: Executable, target: str = ARM) -> bool:
    return "scratch rows: f32[" in to_text(case.lowered(target))


@pytest.mark.parametrize("terms", [1, 3])
def test_which_rows_are_copied(terms: int) -> None:
    """A kernel of open terms asks at each run whether scratch holds them. None are copied of few
    columns, of rows that tiles have too many of, of borders, of open extents, of terms that scratch
    does not hold, and for other targets."""
    inputs = ("f32[1, 32, 8*d0]", "f32[8*d0, 200]{splits=1/16 order=1:0:2}")
    case = Ops(inputs, ("matmul(%0, %1)",), "f32[1, 32, 200]", (("d0", terms),))
    case.check(ARM, on_interpreter)
    for other in (case, LEAST, replace(LEAST, sizes=(MOST, *LEAST.sizes[1:])), *COPIED):
        assert is_copied(other)
    assert not any(map(is_copied, NOT_COPIED))
    for target in ("x86-64-v3", "armv7-neon", "riscv64-v", "wasm32-relaxed"):
        assert not is_copied(LEAST, target)


@pytest.mark.parametrize(("target", "most"), [("x86-64-v4", 64), (ARM, 10_000)])
def test_few_terms_have_ends_in_registers(target: str, most: int) -> None:
    """Where all rows and columns are there; arms have them for sums of any length."""
    for channels in (16, 64, 65, 256):
        text = to_text(conv((channels, 32, 4, 12)).lowered(target))
        assert ("scratch tile" in text) is (channels > most)


# ---- sums whose weights the second level of cache doesn't hold: piece by piece ----


def with_cache(name: str, l2_bytes: int) -> Target:
    return replace(targets.load(name), l2_bytes=l2_bytes)


def waiting(case: Executable, target: str | Target = "x86-64-v4") -> list[int]:
    """How many tiles have their sums in scratch meanwhile."""
    return [s.shape[0] for s in case.lowered(target).scratch if s.name == "sums"]


# channels that pieces divide, and that they don't; rows and columns that tiles leave some of
@pytest.mark.parametrize(
    "size", [(128, 40, 5, 7), (130, 17, 3, 6), (127, 33, 4, 9), (256, 16, 2, 2)]
)
@pytest.mark.parametrize("window", [(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1)])
def test_sums_in_pieces(size: tuple[int, int, int, int], window: tuple[int, int, int]) -> None:
    for name in NATIVE:
        target = with_cache(name, 65536)
        for end in ("", "residual"):
            case = conv(size, *window, end=end)
            assert window[0] == 1 or waiting(case, target)
            case.check(target, on_cpu(name))


def test_sums_in_pieces_of_planes_and_interpreted() -> None:
    for name in NATIVE:
        into_last((128, 32, 5, 9), 3, 1, 1).check(with_cache(name, 16384), on_cpu(name))
    for name in ("x86-64-v3", ARM):
        case, target = conv((66, 20, 3, 4), 3, 1, 1), with_cache(name, 16384)
        assert waiting(case, target)
        case.check(target, on_interpreter)


def test_pieces_have_the_same_bits_as_whole_sums() -> None:
    name, found = NATIVE[0], []
    case = conv((192, 24, 5, 6), 3, 2, 1, end="sigmoid")
    arrays = case.arrays("normal", 5)
    for l2_bytes in (16384, 1 << 24):
        target = with_cache(name, l2_bytes)
        assert bool(waiting(case, target)) == (l2_bytes == 16384)
        found.append(case.computed(target, on_cpu(name), arrays))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("case", "tiles"),
    [
        (conv((512, 512, 7, 7), 3, 1, 1), [14]),  # 4.6 KB a column
        (conv((512, 2048, 7, 7)), []),  # a tile's weights stay in the cache
        (conv((4096, 64, 7, 7)), [20]),
        (conv((4096, 64, 1, 1)), [2]),  # one row of each image
        (conv((512, 64, 7, 7), 3, 2, 1, opened="C"), []),
    ],
)
def test_where_sums_have_pieces(case: Conv, tiles: list[int]) -> None:
    assert waiting(case) == tiles


@pytest.mark.parametrize(("channels", "filters"), [(512, 512), (384, 256), (1024, 192)])
def test_all_that_comes_next_is_asked_for(channels: int, filters: int) -> None:
    body = conv((channels, filters, 7, 7)).lowered("x86-64-v4").body
    lines = sorted(asked_lines(body, 16))
    # behind the tiles that come first, and hardly any twice
    assert lines[0] * 64 >= 1 << 16
    assert set(range(lines[0], channels * filters // 16)) <= set(lines)
    assert len(lines) < 1.4 * len(set(lines)) + lines[0]


# ---- rows and columns in lanes ----


def test_planes_a_page_apart() -> None:
    """One line of each of many planes has one place in a cache: taps go along a plane first."""
    for width, is_apart in ((32, True), (30, False)):
        kernel = Conv((12, 20, 32, width), 3, pad=1).lowered("x86-64-v3")
        channels = [s for s in loops(kernel, LoopKind.SERIAL) if s.extent == 12]
        inside = [s for loop in channels for s in walk(loop.body) if isinstance(s, For)]
        assert channels and any(s.extent == 3 for s in inside) == is_apart


@SIDES
def test_no_scalar_is_stored(side: str) -> None:
    """Elements of planes were once stored one by one, from vectors of outputs."""
    assert not re.findall(SCALAR_STORES, Conv((16, 8, 8, 12), left=side).assembly("x86-64-v3"))


@SIDES
@pytest.mark.parametrize("outputs", [2, 3, 5, 6, 9, 12])
def test_few_columns_are_stored_in_vectors(outputs: int, side: str) -> None:
    for name in ("x86-64-v3", "x86-64-v4"):
        text = into_last((16, outputs, 8, 12), left=side).assembly(name)
        # of nine columns the last one is alone where vectors have no masks
        most = 12 if outputs % 4 == 1 and name == "x86-64-v3" else 0
        assert len(re.findall(SCALAR_STORES, text)) <= most


def test_interleaving_takes_an_instruction_a_stage_and_vector() -> None:
    """LLVM once merged the shuffles of the stages, to twice as many."""
    text = into_last((4, 8, 8, 12)).assembly("x86-64-v4")
    # 96 rows as tiles of 48, three vectors of each of eight columns
    assert len(re.findall(r"vpermt2|vpermi2|vperm\w+|vunpck|vshuf", text)) <= 3 * 24


@SIDES
def test_rows_are_loaded_in_vectors(side: str) -> None:
    """Elements of rows were broadcast one by one to half of a vector each."""
    text = Conv(MANY, left=LAST, result=side).assembly("x86-64-v4")
    assert len(re.findall(r"vbroadcastss\s.*%zmm\d+", text)) <= 16  # weights, and the bias
    assert not re.findall(SCALAR_STORES, text)


@pytest.mark.parametrize("columns", [8, 12, 24])
def test_tiles_of_a_persons_choice(columns: int) -> None:
    """A tile whose columns fill no vectors is not transposed in scratch."""
    for target in ("x86-64-v4", "x86-64-v3"):
        case = turned_columns(1, 20, 33, 70)
        function = case.function()
        (made,) = planned(function, targets.load(target))
        function.schedule = (replace(made, columns=columns),)
        case.check(target, on_interpreter, function=function)


@pytest.mark.parametrize("target", ["x86-64-v2", "wasm32", "armv7-neon", "x86-64-v4"])
@pytest.mark.parametrize("columns", [3, 4, 6, 12])
def test_a_panel_of_few_columns_is_read_without_masks(columns: int, target: str) -> None:
    """What lies behind its columns is the panel's, and several rows share what is read of it."""
    kernel = conv((24, columns, 5, 7)).lowered(target)
    products = [s for s in walk(kernel.body) if isinstance(s, Store) and "Fma(" in repr(s.value)]
    guards = [load.guard for s in products for load in expr.loads(s.value)]
    assert guards and not any(guards)
    assert max(s.shape[0] for s in kernel.scratch if s.name.startswith("acc")) > 1


@pytest.mark.parametrize(("columns", "width"), [(5, 8), (8, 8), (9, 16), (16, 16)])
def test_vectors_are_no_wider_than_columns(columns: int, width: int) -> None:
    kernel = few((24, columns, 3, 5)).lowered("x86-64-v4")
    assert {loop.extent for loop in loops(kernel, LoopKind.VECTOR)} == {width}


# ---- lanes that multiply ----


# a window that steps over more than it has is no piece of a line
@pytest.mark.parametrize(("stride", "is_together"), [(1, True), (2, True), (4, True), (5, False)])
def test_a_load_serves_four_rows(stride: int, is_together: bool) -> None:
    """Where rows are neighbours, or windows lie in one piece of a line."""
    code = into_last((64, 64, 8, 96), 3, stride).assembly(ARM)
    lanes = set(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[(\d)\]", code))
    assert (lanes > {"0"}) if is_together else (lanes == {"0"})


@pytest.mark.parametrize("opened", ["C", "CO", "CHW"])
def test_no_address_of_a_row_is_computed_from_that_of_another(opened: str) -> None:
    """Beside products and loads a turn has steps for rows and weights, a count and a branch, where
    how far rows are apart is open."""
    code = conv((64, 64, 8, 96), opened=opened).assembly(ARM)
    loop = inner_loop(code, re.compile(r"\s+fmla\s"))
    left = [line for line in loop if not re.match(r"\s+(fmla|ldr|ldp)\s", line)]
    assert len(left) <= 5, left


@pytest.mark.parametrize(("end", "is_repeated"), [("", True), ("residual", False)])
def test_rows_are_stored_twice_unless_results_may_replace_what_is_read(
    end: str, is_repeated: bool
) -> None:
    """The last tile of a line begins where it has all its rows; a sum in place would have what is
    added twice."""
    text = to_text(into_last((3, 16, 2, 41), 3, 2, end=end).lowered(ARM))
    first = re.search(r"min\(\w+ \* (\d+), (\d+)\)", text)
    assert (first is not None) == is_repeated
    if first is not None:
        assert int(first[1]) + int(first[2]) == 41


def test_loads_of_runs_are_few() -> None:
    """Beside the products of four steps there are loads of four scalars a row."""
    code = shuffled(68, 68, 4, 14, is_added=True).assembly(ARM)
    blocks = re.split(r"\n\.LBB\S+\n", code)
    most = max(blocks, key=lambda block: block.count("fmla"))
    loop = most.partition("\tb.ne")[0].splitlines()
    products = sum("fmla" in line for line in loop)
    assert products >= 64
    assert len(loop) <= 1.32 * products
