"""Tiles of a GPU: in which loops sums stand, when several lanes share one, when rows
and columns are brought into shared memory, and what comes out.

Sums are of small whole numbers: exact, whatever their order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import planned
from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.spirv import Op, StorageClass
from aot.errors import InternalError
from aot.ir.dims import evaluate
from aot.ir.expr import Fma
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Barrier, For, If, Kernel, LoopKind, Space, Stmt, Store, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.executables import Conv, Executable, Product
from tests.support.gpu_tiles import busy, conv, product, staging
from tests.support.kernel_backends import DRIVEN, INTERPRETED, KernelBackend
from tests.support.lowering import run_executable
from tests.support.lowering_checks import on_interpreter

SIZE = 6
BACKENDS = [
    INTERPRETED["vulkan-1.1"],
    *(pytest.param(b, marks=pytest.mark.vulkan) for b in DRIVEN.values()),
]
STAGES = """
executable @e0(%0: f32[2, 32, 3, 3], %1: f32[5, 32, 3, 3], %2: f32[5])
    -> ("r0", "r1") bindings [1, 0, 0, 1, 1] {
  %3 = relu(%0) : f32[2, 32, 3, 3]
  %4 = conv(%3, %1, %2) {strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1], group = 1}
      : f32[2, 5, 3, 3]
  return(%3, %4)
}
"""


def barriers(kernel: Kernel) -> int:
    return sum(isinstance(stmt, Barrier) for stmt in walk(kernel.body))


def window(size: int, channels: int, taps: int, columns: int) -> Conv:
    pad = taps // 2
    return conv((size, size), channels, (taps, taps), columns, begin=pad, end=pad)


# ---- sums in registers ----


def loops_of_sums(kernel: Kernel) -> list[list[tuple[LoopKind, object]]]:
    """The loops that the sums of products stand in, lanes and workgroups aside."""
    found: list[list[tuple[LoopKind, object]]] = []

    def walk(body: tuple[Stmt, ...], around: list[tuple[LoopKind, object]]) -> None:
        for stmt in body:
            if isinstance(stmt, For):
                inside = stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLLED)
                walk(stmt.body, [*around, (stmt.kind, stmt.extent)] if inside else around)
            elif isinstance(stmt, Store) and isinstance(stmt.value, Fma):
                found.append(around)
            else:
                for part in ("then", "otherwise"):
                    walk(getattr(stmt, part, ()), around)

    walk(kernel.body, [])
    return found


@pytest.mark.parametrize(
    ("channels", "taps", "expected"),
    [
        (8, (3, 3), [9, 2]),  # one loop for the taps, four channels a step
        (12, (1, 5), [5, 3]),
        (3, (5, 3), [15]),  # all channels in a step
        (6, (3, 3), [9, 2]),  # three at a time
        (5, (3, 3), [9, 5]),
        (8, (3, 3, 3), [9, 3, 2]),
    ],
)
def test_sums_stand_in_few_loops(channels: int, taps: tuple[int, ...], expected: list[int]) -> None:
    case = conv((SIZE,) * len(taps), channels, taps, 32, has_bias=False, bindings=(1, 0, 1))
    pads = tuple(t // 2 for t in taps) * 2
    case = replace(case, pad=pads)
    for loops in loops_of_sums(case.lowered("vulkan-1.1", 16)):
        assert [extent for kind, extent in loops if kind is LoopKind.SERIAL] == expected
    case.check("vulkan-1.1", on_interpreter, alignment=16)


# ---- sums that lanes share ----


@pytest.mark.parametrize(
    ("case", "lanes", "expected"),
    [
        (product(1, 2048, 1000), 4096, "contraction lanes=64 tile=1:16 shares=16"),
        (product(1, 2048, 1000), 1024, "contraction lanes=64 tile=1:64 shares=4"),
        (product(1, 2048, 1000), 0, "contraction lanes=64 tile=1:256"),
        (product(1, 500, 1000), 4096, "contraction lanes=64 tile=1:64 shares=4"),  # few terms each
        (product(1, 127, 1000), 4096, "contraction lanes=64 tile=1:256"),
        (product(49, 512, 512), 4096, "contraction lanes=64 tile=14:32 shares=4"),
        (product(512, 512, 512), 4096, "contraction lanes=64 tile=64:32"),
        (product(8, 512, 16), 4096, "contraction lanes=64 tile=8:16 shares=16"),  # idle lanes
        (window(7, 512, 3, 512), 4096, "contraction lanes=64 tile=7:64 shares=4"),
        (window(7, 3, 7, 64), 4096, "contraction lanes=64 tile=7:64"),  # taps are not shared
    ],
)
def test_lanes_share_sums_where_few_would_be_at_work(
    case: Executable, lanes: int, expected: str
) -> None:
    (made,) = planned(case.function(), busy(lanes))
    assert str(made) == expected


def test_which_sums_are_not_shared() -> None:
    """Where that gains nothing, and of unknown length."""
    long = product(1, 2048, 1000)
    assert planned(long.function(), targets.load("lavapipe"))[0].shares == 1
    assert planned(replace(long, opened="K").function(), busy(4096))[0].shares == 1


SHARED = [
    product(1, 512, 40),
    product(1, 515, 40),  # no steps of the loop together
    product(1, 512, 41),  # columns that are stored one by one
    *(product(3, 257, 37), product(9, 320, 24), product(49, 200, 64)),
    *(window(7, 64, 3, 32), window(5, 150, 1, 36), window(5, 66, 3, 10)),
]


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_shared_sums_are_whole(case: Executable, backend: KernelBackend) -> None:
    target = busy(4096)
    assert planned(case.function(), target)[0].shares > 1
    assert barriers(case.lowered(target, 16)) == 1
    case.check(target, backend.engine, alignment=16)


@pytest.mark.parametrize("rows", [1, 2, 9, 63, 64, 70])
@pytest.mark.parametrize("lanes", [0, 4096])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_few_rows_have_tiles_of_their_own(rows: int, lanes: int, backend: KernelBackend) -> None:
    case, target = product(rows, 259, 300, opened="M"), busy(lanes)
    groups = [evaluate(extent, {"M": rows}) for extent in case.lowered(target, 16).grid]
    few = {0: 2, 4096: 5}[lanes]  # tiles of 256 columns, or of 64 where four lanes share a sum
    assert groups[:2] == ([-(-rows // 8), few] if rows < 64 else [-(-rows // 64), 10])
    case.check(target, backend.engine, alignment=16)


@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_few_rows_may_have_any_length(rows: int, backend: KernelBackend) -> None:
    for terms, columns in ((301, 100), (3, 5), (64, 33)):
        case = product(rows, terms, columns, opened="MKN")
        kernel = case.lowered(busy(4096), 4)
        assert barriers(kernel) == 2
        # both tiles have one memory for the sums that their lanes share
        assert [s.name for s in kernel.scratch if s.space is Space.WORKGROUP] == ["parts"]
        case.check(busy(4096), backend.engine, alignment=4)


@pytest.mark.parametrize("taps", [1, 3])
def test_windows_have_no_tile_for_one_row(taps: int) -> None:
    case = replace(window(9, 2048, taps, 32), opened="HW", is_image=False)
    assert barriers(case.lowered(busy(4096), 16)) == 0


def test_a_workgroup_of_several_tiles_waits_for_the_sums_of_each() -> None:
    (function,) = parse_module(STAGES).executables
    target = targets.load("mali-valhall-fp16")
    kernel = lower(function, target)
    assert "parts" in {s.name for s in kernel.scratch if s.space is Space.WORKGROUP}
    rng = np.random.default_rng(2)
    arrays = [rng.integers(-3, 4, v.type.shape).astype(np.float32) for v in function.inputs]
    memory = [a.reshape(-1) for a in arrays]
    found = run_executable(function, target, memory, [], on_interpreter)
    for got, wanted in zip(found, run(function, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


# ---- rows and columns in shared memory ----


@pytest.mark.parametrize(
    ("case", "target", "expected"),
    [
        (product(512, 512, 512), staging(16), "tile=64:32 staged=16"),
        (product(512, 512, 512), staging(0), "tile=64:32"),
        (product(16, 512, 512), staging(16), "tile=16:128 staged=16"),
        (product(15, 512, 512), staging(16), "tile=16:128"),  # few rows read each column
        (product(512, 512, 15), staging(16), "tile=128:16"),
        (product(512, 31, 512), staging(16), "tile=64:32"),
        (product(100, 512, 512, opened="M"), staging(16), "tile=64:32 staged=16"),
        (product(49, 512, 64), staging(16, 4096), "tile=7:16 shares=16 staged=64"),
        (product(196, 512, 128), staging(16, 4096), "tile=28:16 shares=4 staged=32"),
        # rows are those of all lines and images
        (conv((14, 14), 64, (3, 3), 64, begin=1, end=1), staging(16), "tile=56:32 staged=16"),
        (
            conv((4, 4), 64, (3, 3), 64, images=4, begin=1, end=1),
            staging(16),
            "tile=64:32 staged=16",
        ),
        (conv((56, 56), 64, (3, 3), 64, group=64), staging(16), ""),
        (product(512, 512, 1024), staging(16, 0, "nvidia"), "tile=64:64 staged=16"),
        (product(512, 512, 1024), staging(16, 0, "nvidia", 128), "tile=64:128 staged=16"),
    ],
)
def test_which_tiles_are_staged(case: Executable, target: Target, expected: str) -> None:
    (made,) = planned(case.function(), target)
    found = str(made).partition(" tile=")
    if expected:
        assert f"tile={found[2]}" == expected
    else:
        assert not made.staged


@pytest.mark.parametrize("name", ["lavapipe", "vulkan-1.1", "mali-valhall", "mali-valhall-fp16"])
def test_targets_whose_shared_memory_is_no_nearer_stage_nothing(name: str) -> None:
    (made,) = planned(product(512, 512, 512).function(), targets.load(name))
    assert not made.staged


def test_more_than_shared_memory_holds_is_not_staged() -> None:
    function = product(49, 512, 64).function()
    for most, shares, staged in ((8192, 1, 16), (4096, None, 0)):
        target = busy(4096, registers=64, staged_terms=16, max_shared_bytes=most)
        (made,) = planned(function, target)
        assert shares is None or made.shares == shares
        assert made.staged == staged


PRODUCTS = [
    product(64, 64, 32),
    product(70, 40, 36),
    product(33, 131, 41),  # what is left of rows, terms and columns
    product(49, 200, 64),
    product(49, 200, 64, is_packed=True),
    product(50, 67, 40, is_packed=True),  # a panel that is not full
    product(40, 96, 24, is_turned=True),
    product(37, 97, 27, is_turned=True),
    product(36, 48, 40, batch=(3,)),
    product(17, 70, 21, batch=(2,), is_turned=True),
]
CONVS = [
    conv((7, 7), 64, (3, 3), 32, begin=1, end=1),
    conv((7, 7), 64, (3, 3), 32, begin=1, end=1, is_packed=True),
    conv((9, 8), 7, (3, 2), 36, begin=1),  # terms of several taps at a time
    conv((13, 13), 3, (5, 5), 20, stride=2, begin=2, end=1),
    conv((12, 9), 24, (3, 3), 33, stride=2, apart=2, begin=2, end=2),
    conv((5, 6), 66, (3, 3), 18, images=3, begin=1, end=1, is_packed=True),
    conv((9, 9), 48, (1, 1), 20, stride=2),
    conv((8, 8), 40, (1, 1), 36, images=2),
    conv((60,), 20, (5,), 28, begin=2, end=2),
    conv((6, 5, 4), 17, (2, 3, 1), 19, end=1),
    conv((8, 8), 36, (3, 3), 40, group=2, begin=1, end=1),
    conv((9, 9), 20, (3, 3), 24, begin=1, end=1, is_first=True),
]


SMALL = [PRODUCTS[2], PRODUCTS[5], CONVS[0], CONVS[3], CONVS[5]]
OPENED = [(1, 40, 20), (63, 64, 33), (70, 37, 64), (17, 5, 16)]


@pytest.mark.parametrize("case", [*PRODUCTS, *CONVS])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_staged_sums_are_whole(case: Executable, backend: KernelBackend) -> None:
    for lanes in (0, 4096):
        assert planned(case.function(), staging(16, lanes))[0].staged
        case.check(staging(16, lanes), backend.engine, alignment=16)
    for terms in (8, 32, 64) if case in SMALL else ():
        case.check(staging(terms), backend.engine, alignment=4)


@pytest.mark.parametrize("sizes", OPENED)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_extents_may_be_open(sizes: tuple[int, int, int], backend: KernelBackend) -> None:
    for is_turned in (False, True):
        case = product(*sizes, opened="MKN", is_turned=is_turned)
        assert planned(case.function(), staging(16))[0].staged
        case.check(staging(16), backend.engine, alignment=4)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_elements_stored_in_16_bits_are_widened_once(backend: KernelBackend) -> None:
    case = Product((37, 70, 41), stored="f16", bindings=(1, 1, 1))
    assert planned(case.function(), staging(16))[0].staged
    case.check(staging(16), backend.engine, "normal", alignment=16)


@pytest.mark.parametrize("name", ["nvidia", "nvidia-matrix", "adreno", "adreno-fp16"])
@pytest.mark.parametrize("case", [PRODUCTS[2], CONVS[5]])
def test_targets_of_gpus_stage(case: Executable, name: str) -> None:
    assert planned(case.function(), targets.load(name))[0].staged
    case.check(name, on_interpreter, alignment=16)


def without_barrier(body: tuple[Stmt, ...], number: int) -> tuple[tuple[Stmt, ...], int]:
    """The statements without one of their barriers, and which one of what follows that is."""
    made: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Barrier):
            if number != 0:
                made.append(stmt)
            number -= 1
        elif isinstance(stmt, For):
            inner, number = without_barrier(stmt.body, number)
            made.append(replace(stmt, body=inner))
        elif isinstance(stmt, If):
            then, number = without_barrier(stmt.then, number)
            made.append(replace(stmt, then=then))
        else:
            made.append(stmt)
    return tuple(made), number


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_barrier_is_needed(number: int) -> None:
    case, target = product(49, 512, 64), staging(16, 4096)
    assert barriers(case.lowered(target, 16)) == 3

    def engine(kernel: Kernel, buffers: object, params: object) -> None:
        body, _ = without_barrier(kernel.body, number)
        on_interpreter(replace(kernel, body=body), buffers, params)

    with pytest.raises(InternalError, match="race: both touch (rows|columns|parts)"):
        case.check(target, engine, alignment=16)


@pytest.mark.parametrize(
    ("case", "loads", "stores"),
    [
        # of each four terms 8 rows' and a column's of each; 2 of rows and 4 of columns are brought
        (product(512, 512, 1024, is_packed=True), 8 + 8, 6),
        (conv((56, 56), 64, (3, 3), 256, begin=1, end=1, is_packed=True), 8 + 8, 6),
    ],
)
def test_shared_memory_is_accessed_in_fours(case: Executable, loads: int, stores: int) -> None:
    target = staging(16, 0, "nvidia", 128)
    shader = compile_kernel(case.lowered(target, 16), target)
    assert shared_accesses(shader.words) == (loads, stores)


def shared_accesses(words: bytes) -> tuple[int, int]:
    """Loads of fours from shared memory, and stores to it, of any size."""
    code = np.frombuffer(words, np.uint32).tolist()
    pointers: dict[int, int] = {}  # types of those to shared memory, by what they point to
    shared: set[int] = set()
    vectors: set[int] = set()
    loads = stores = 0
    at = 5
    while at < len(code):
        size, op = code[at] >> 16, code[at] & 0xFFFF
        operands = code[at + 1 : at + size]
        if op == Op.TYPE_VECTOR and operands[2] == 4:
            vectors.add(operands[0])
        elif op == Op.TYPE_POINTER and operands[1] == StorageClass.WORKGROUP:
            pointers[operands[0]] = operands[2]
        elif op == Op.ACCESS_CHAIN and operands[0] in pointers:
            shared.add(operands[1])
        elif op == Op.LOAD and operands[2] in shared:
            assert operands[0] in vectors
            loads += 1
        elif op == Op.STORE and operands[0] in shared:
            stores += 1
        at += size
    return loads, stores


@pytest.mark.parametrize(
    ("most", "expected"),
    [(49152, 45184), (32768, 16512), (16384, 12416)],
)
def test_all_tiles_of_open_rows_fit_shared_memory(most: int, expected: int) -> None:
    """Of many rows what is brought, of a few the sums that lanes share, as far as there is room."""
    target = targets.load("nvidia")
    assert target.gpu is not None
    gpu = replace(target.gpu, max_shared_bytes=most)
    target = replace(target, vector_registers=128, gpu=gpu)
    kernel = product(100, 512, 1024, opened="M").lowered(target, 16)
    assert compile_kernel(kernel, target).shared_bytes == expected
