"""Contractions of integers: sums by dot products, exact everywhere, and the instructions that they
become.

Sweeps of windows and planes of bytes are test_sweeps.py's.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from aot.errors import InternalError
from aot.ir import expr
from aot.ir.expr import Dot, Load
from aot.ir.types import DType
from aot.kernels.ir import scalar
from aot.kernels.ir.nodes import For, LoopKind, walk
from aot.kernels.ir.text import to_text
from tests.support.asked_lines import asked_lines
from tests.support.dot_products import CASES, EXTREMES, conv, matmul, requantized
from tests.support.executables import NATIVE, PLANES, STRONGEST, Conv, Executable
from tests.support.integer_sweeps import depthwise, pointwise
from tests.support.kernel_backends import device, on_cpu, on_qemu
from tests.support.lowering_checks import on_interpreter

VNNI = "x86-64-v4+avx512vnni"
INTERPRETED = (
    *("x86-64-v3", "x86-64-v4+avx512vnni", "aarch64-linux-dotprod+i8mm", "thumbv7em"),
    "riscv64-v",
    "vulkan-1.3",
)
EMULATED = (
    "aarch64-generic",
    "aarch64-linux-dotprod",
    "aarch64-linux-dotprod+i8mm",
    "armv7-neon",
    "thumbv7em",
    "riscv64-v",
)


def few_rows(case: Executable) -> Executable:
    """The case on one image of three rows, as wide as it was."""
    if not isinstance(case, Conv):
        return case
    return replace(case, images=1, sizes=(*case.sizes[:2], 3, case.sizes[3]))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, target)
        for name in ("four-channels", "strided", "groups", "groups-of-words", "columns")
        for target in INTERPRETED
        if (name, target) != ("groups", "thumbv7em")  # loops of scalars, which take seconds
    ],
)
def test_sums_are_exact_in_the_kernel_interpreter(name: str, target: str) -> None:
    alignment = 16 if device(target).has_workgroups else 1  # a GPU's words are whole
    few_rows(CASES[name]).check(target, on_interpreter, "random", alignment=alignment)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("narrow-columns", "x86-64-v3"),
        ("narrow-columns-signed", "aarch64-generic"),
        ("columns", "aarch64-generic"),
    ],
)
def test_narrow_sums_are_exact_in_the_kernel_interpreter(name: str, target: str) -> None:
    CASES[name].check(target, on_interpreter, "extremes")


@pytest.mark.parametrize(
    ("target", "rows", "columns"),
    [("x86-64-v3", 9, 8), ("x86-64-v4", 13, 16), ("x86-64-v4+avx512vnni", 13, 16)],
)
def test_rows_that_are_left_of_an_open_number(target: str, rows: int, columns: int) -> None:
    """Lower tiles do them, the last of which goes past what scratch has."""
    case = replace(matmul("u8", rows, 18, columns), opened="M")
    case.check(target, on_interpreter, "random")


@pytest.mark.parametrize("target", STRONGEST)
@pytest.mark.parametrize("how", EXTREMES)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact_in_machine_code(name: str, how: str, target: str) -> None:
    CASES[name].check(target, on_cpu(target), how)


@pytest.mark.qemu
@pytest.mark.parametrize("target", EMULATED)
@pytest.mark.parametrize("how", EXTREMES)
def test_sums_are_exact_elsewhere(how: str, target: str) -> None:
    """The most telling cases; random sums also of the others, half of them on each target."""
    engine = on_qemu(target)
    few = "three-channels", "pointwise", "columns", "short", "narrow-signed", "narrow-rows"
    others = [name for name in CASES if name not in few][EMULATED.index(target) % 2 :: 2]
    for name in (*few, *others) if how == "random" else few:
        CASES[name].check(target, engine, how)


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        ("x86-64-v2", "uneven", r"\bpmaddwd\b"),
        ("x86-64-v3", "uneven", r"\bvpmaddwd\b.*%ymm"),
        ("x86-64-v4", "uneven", r"\bvpmaddwd\b.*%zmm"),
        ("x86-64-v4+avx512vnni", "uneven", r"\bvpdpbusd\b.*%zmm"),
        ("x86-64-v4+avx512vnni", "pointwise", r"\bvpmaddwd\b.*%zmm"),  # both sides are signed
        ("x86-64-v3+avxvnni", "uneven", r"\bvpdpbusd\b.*%ymm"),
        ("aarch64-linux-dotprod", "pointwise", r"\bsdot\b"),
        ("aarch64-linux-dotprod", "groups-strided", r"\bsdot\b"),
        ("aarch64-linux-dotprod+i8mm", "row", r"\bsudot\b"),
        ("x86-64-v2", "narrow", r"\bpmaddubsw\b"),
        ("x86-64-v3", "narrow", r"\bvpmaddubsw\b.*%ymm"),
        ("x86-64-v4", "narrow-rows", r"\bvpmaddubsw\b.*%zmm"),
        ("aarch64-generic", "pointwise", r"\bsmull\b"),
        ("aarch64-generic", "narrow-signed", r"\bsmlal\b"),
        ("armv7-neon", "narrow-rows-signed", r"\bvmlal\.s8\b"),
        ("riscv64-v", "uneven", r"e32, m[24]\b"),
        ("riscv64-v", "groups", r"\bvmacc\.vx\b"),
        ("wasm32", "uneven", r"i32x4\.dot_i16x8_s"),
        ("thumbv7em", "uneven", r"\bsmlad\b"),
        ("thumbv7em", "rows", r"\bsxtb16\b.*ror #8"),
    ],
)
def test_instructions_for_dot_products_are_used(target: str, name: str, instruction: str) -> None:
    assert re.search(instruction, CASES[name].assembly(target))


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        ("x86-64-v3", "uneven", r"\bvpmaddubsw\b"),
        ("x86-64-v3", "not-narrow", r"\bvpmaddubsw\b"),
        ("x86-64-v3", "narrow-signed", r"\bvpmaddubsw\b"),
        ("aarch64-generic", "pointwise", r"\bsmlal\b"),
    ],
)
def test_sums_in_16_bits_are_not_used_where_they_may_wrap(
    target: str, name: str, instruction: str
) -> None:
    assert not re.search(instruction, CASES[name].assembly(target))


def test_the_kernel_interpreter_sees_products_that_are_not_narrow() -> None:
    words = [Load(0, (expr.index(n),), DType.I8X4) for n in range(2)]
    dot = Dot(*words, expr.const(0, DType.I32), is_narrow=True)
    apply = scalar.operation(dot)
    assert apply is not None
    word = np.asarray(0x80000080, np.uint32)
    with pytest.raises(InternalError, match="do not fit 16 bits in pairs"):
        apply(word, word, np.asarray(0, np.int32))
    assert apply(word, np.asarray(0x81000081, np.uint32), np.asarray(0, np.int32)) == 2 * 128 * 127


@pytest.mark.parametrize(
    ("target", "name", "dot"),
    [
        ("aarch64-linux-dotprod", "pointwise", "sdot"),
        ("aarch64-linux-dotprod+i8mm", "row", "sudot"),
    ],
)
def test_dot_products_take_lanes_of_the_rows(target: str, name: str, dot: str) -> None:
    """One load brings four words of a row, and no instruction repeats a word for all columns."""
    text = CASES[name].assembly(target)
    assert re.search(rf"\b{dot}\b.*\.4b\[3\]", text)
    loop = max(re.split(r"^\.LBB", text, flags=re.M), key=lambda part: part.count(f"\t{dot}\t"))
    assert not re.search(r"\bdup\b|\bld1r\b", loop.partition("b.ne")[0])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4+avx512vnni", "aarch64-generic"])
@pytest.mark.parametrize(
    ("name", "is_one_run"),
    [("four-channels", True), ("dilated", False), ("groups-of-words", False), ("uneven", False)],
)
def test_taps_that_lie_side_by_side_are_read_at_once(
    name: str, is_one_run: bool, target: str
) -> None:
    """Where all of them are inside: each tap has a condition of its own else."""
    copies = re.findall(r"(?:bytes|staged)\[.*\] = .*in\[.*", to_text(CASES[name].lowered(target)))
    assert any("where" not in line for line in copies) == is_one_run


@pytest.mark.parametrize("target", ["x86-64-v4-vnni", "x86-64-v4-bf16"])
def test_products_of_a_depthwise_window_are_added_as_they_are_made(target: str) -> None:
    code = replace(conv("u8", 64, 64, group=64), weights=PLANES).assembly(target)
    assert "vpdpwssd" in code and "vpmaddwd" not in code


def test_channels_that_fill_no_vector_are_copied_in_two() -> None:
    copies = re.findall(r"staged\[.*\] = in\[", to_text(conv("u8", 26, 32).lowered(VNNI)))
    assert len(copies) == 2


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("in-place")])
def test_rows_are_read_in_place(name: str) -> None:
    assert "scratch staged" not in to_text(CASES[name].lowered(VNNI))


@pytest.mark.parametrize(("rows", "is_in_place"), [(400, True), (40_000, False)])
def test_rows_that_no_cache_holds_are_brought_nearer(rows: int, is_in_place: bool) -> None:
    text = to_text(matmul("u8", rows, 32, 16).lowered(VNNI))
    assert ("scratch staged" not in text) == is_in_place


@pytest.mark.parametrize(("filters", "has_all"), [(64, True), (40, False)])
def test_sums_begin_with_the_bias_where_all_columns_have_one(filters: int, has_all: bool) -> None:
    text = to_text(conv("u8", 72, filters, kernel=1).lowered(VNNI))
    assert bool(re.search(r"acc\[.*\] = in_2\[", text)) == has_all


# more weights than a quarter of the second-level cache, and fewer; more rows than a tile has
@pytest.mark.parametrize(("rows", "depth", "columns"), [(77, 516, 640), (60, 640, 192)])
def test_weights_are_asked_for_while_others_are_multiplied(
    rows: int, depth: int, columns: int
) -> None:
    lines = sorted(asked_lines(matmul("u8", rows, depth, columns).lowered(VNNI).body, 64))
    per_tile = depth * 64 // 64
    # all behind the tiles that come first, and hardly any twice
    assert lines[0] % per_tile == 0 and lines[0] * 64 >= 1 << 16
    assert set(range(lines[0], columns * depth // 64)) <= set(lines)
    assert len(lines) < 1.3 * len(set(lines)) + per_tile


def test_sums_are_exact_where_weights_are_asked_for() -> None:
    matmul("u8", 77, 516, 192).check(STRONGEST[-1], on_cpu(STRONGEST[-1]), "random")


def test_weights_lie_alike_for_all_targets() -> None:
    def layout(name: str) -> str:
        return str(CASES["uneven"].function(name).inputs[1].type)

    names = ("x86-64-v4", "aarch64-generic", "wasm32", "vulkan-1.1", "thumbv7em")
    assert len(set(map(layout, names))) == 1


@pytest.mark.parametrize(("columns", "width"), [(3, 4), (5, 8), (9, 16)])
def test_vectors_of_dot_products_are_no_wider(columns: int, width: int) -> None:
    """Of 4 and 8 columns each has several lanes."""
    loops = [x for x in walk(conv("u8", 16, columns).lowered(VNNI).body) if isinstance(x, For)]
    sums = [x for x in loops if x.kind is LoopKind.VECTOR and "Dot(" in repr(x.body)]
    assert {loop.extent for loop in sums} == {width}


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_narrow_vectors_of_dot_products(columns: int) -> None:
    for how in ("extremes", "random"):
        conv("u8", 20, columns).natively(how)


@pytest.mark.parametrize("name", [*NATIVE, "aarch64-linux-i8mm"])
def test_one_column_stays_a_line(name: str) -> None:
    """Panels have words of columns that are not there between them."""
    case = matmul("u8", 7, 130, 1)
    assert case.function(name).inputs[1].type.layout is None


# ---- bytes that become bytes again ----


def scratch_of(case: Executable) -> dict[str, tuple[int, ...]]:
    return {s.name: s.shape for s in case.lowered(VNNI).scratch}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        *((depthwise((64, 8, 8), 3, stride), "column_words") for stride in (1, 2)),
        *((depthwise((20, 8, 8), 5, *rest), "column_words") for rest in ((1,), (2, 2))),
        (depthwise((20, 8, 8), 5, 2), "square_words"),
        *((requantized((64, 8, 8), group, 64), "image_rows") for group in (8, 16)),
        (pointwise(4, 64, 9, 31, layout=PLANES), "staged"),
        (pointwise(4, 3, 9, 31, layout=PLANES, last=PLANES), "words"),
    ],
)
def test_what_is_brought_into_scratch(case: Executable, name: str) -> None:
    scratch = scratch_of(case)
    windows = {"column_words", "square_words", "image_rows"}
    assert name in scratch and (name not in windows or windows & scratch.keys() == {name})
    assert name in windows or {64, 256} & set(scratch[name])  # many places together


def test_rows_that_share_words_are_as_many_as_fit() -> None:
    """Four rows of an image have all taps of two rows of 3 x 3 windows, eight of four of 5 x 5.
    Words of two by two places serve all windows that begin at every other place."""
    for kernel, stride, rows in ((3, 1, 2), (3, 2, 1), (5, 1, 4), (7, 1, 2), (4, 1, 1)):
        scratch = scratch_of(depthwise((16, 9, 9), kernel, stride))
        assert scratch["column_weights"][0] == rows
    for kernel, lines in ((4, 2), (5, 3), (7, 4)):
        scratch = scratch_of(depthwise((16, 19, 19), kernel, 2))
        assert scratch["square_words"][0] == lines
        assert scratch["square_weights"][:2] == (lines, lines)


@pytest.mark.parametrize(
    ("columns", "channels", "lanes"), [*((n, 64, 16) for n in (8, 4, 2)), (8, 12, 8)]
)
def test_vectors_are_full(columns: int, channels: int, lanes: int) -> None:
    """Of 12 channels there are no two words of each lane."""
    assert scratch_of(pointwise(channels, columns))["acc"][-1] == lanes
