"""Tiles of a GPU that brings rows and columns into shared memory: when, and what comes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import planned
from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.spirv import Op, StorageClass
from aot.errors import InternalError
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Barrier, For, If, Kernel, Stmt, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.kernel_backends import DRIVEN, INTERPRETED, KernelBackend
from tests.support.lowering import run_executable, to_memory

PRODUCT = """
executable @e0{dims}(%0: f32[{left}], %1: f32[{right}]{packing}, %2: f32[{columns}])
    -> ("r0") bindings [1, {class_of}, 0, 1] {{
  {right_side}
  %4 = matmul(%0, {name}) : f32[{result}]
  %5 = add(%4, %2) : f32[{result}]
  %6 = relu(%5) : f32[{result}]
  return(%6)
}}
"""
CONV = """
executable @e0(%0: f32[{images}, {channels}, {size}]{{order={last}}},
    %1: f32[{columns}, {part}, {taps}]{packing}, %2: f32[{columns}])
    -> ("r0") bindings [1, 0, 0, 1] {{
  %3 = conv(%0, %1, %2) {{strides = {strides}, dilations = {dilations}, pads = {pads},
      group = {group}}} : f32[{images}, {columns}, {result}]{{order={last}}}
  return(%3)
}}
"""


def executable(text: str) -> Function:
    (function,) = parse_module(text).executables
    return function


def product(
    rows: int | str,
    terms: int | str,
    columns: int | str,
    *,
    batch: int = 0,
    is_packed: bool = False,
    is_turned: bool = False,
) -> Function:
    """A product with a bias and an activation; `is_turned`: by the rows of a matrix, not by its
    columns."""
    before = f"{batch}, " if batch else ""
    symbols = [n for n in (rows, terms, columns) if isinstance(n, str)]
    right = f"{before}{terms}, {columns}"
    return executable(
        PRODUCT.format(
            dims=f"[{', '.join(symbols)}]" if symbols else "",
            left=f"{before}{rows}, {terms}",
            right=f"{before}{columns}, {terms}" if is_turned else right,
            packing="{splits=1/16 order=1:0:2}" if is_packed else "",
            class_of=0 if is_packed else 1,
            columns=columns,
            right_side=f"%3 = transpose(%1) {{perm = [{'0, 2, 1' if batch else '1, 0'}]}} "
            f": f32[{right}]"
            if is_turned
            else "",
            name="%3" if is_turned else "%1",
            result=f"{before}{rows}, {columns}",
        )
    )


def conv(
    size: tuple[int, ...],
    channels: int,
    taps: tuple[int, ...],
    columns: int,
    *,
    images: int = 1,
    stride: int = 1,
    dilation: int = 1,
    begin: int = 0,
    end: int = 0,
    group: int = 1,
    is_first: bool = False,
    is_packed: bool = False,
) -> Function:
    """A convolution with a bias; `is_first`: channels lie outside of what windows slide along."""
    rank = len(size)
    spans = [dilation * (tap - 1) + 1 for tap in taps]
    result = [(n + begin + end - span) // stride + 1 for n, span in zip(size, spans, strict=True)]
    last = range(rank + 2) if is_first else (0, *range(2, rank + 2), 1)
    spatial = ":".join(map(str, range(2, rank + 2)))
    packing = f"{{splits=0/16 order=0:{spatial}:1:{rank + 2}}}"
    return executable(
        CONV.format(
            images=images,
            channels=channels,
            part=channels // group,
            size=", ".join(map(str, size)),
            taps=", ".join(map(str, taps)),
            columns=columns,
            packing=packing if is_packed else f"{{order={spatial}:1:0}}",
            last=":".join(map(str, last)),
            strides=[stride] * rank,
            dilations=[dilation] * rank,
            pads=[begin] * rank + [end] * rank,
            group=group,
            result=", ".join(map(str, result)),
        )
    )


def staging(
    terms: int, busy_lanes: int = 0, name: str = "vulkan-1.1", registers: int = 64
) -> Target:
    """A GPU that has so many terms brought into shared memory at a time; lanes have a sum for two
    registers."""
    target = replace(targets.load(name), vector_registers=registers)
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, staged_terms=terms, busy_lanes=busy_lanes))


@pytest.mark.parametrize(
    ("function", "target", "expected"),
    [
        (product(512, 512, 512), staging(16), "tile=64:32 staged=16"),
        (product(512, 512, 512), staging(0), "tile=64:32"),
        (product(16, 512, 512), staging(16), "tile=16:128 staged=16"),
        (product(15, 512, 512), staging(16), "tile=16:128"),  # few rows read each column
        (product(512, 512, 15), staging(16), "tile=128:16"),
        (product(512, 31, 512), staging(16), "tile=64:32"),
        (product("t", 512, 512), staging(16), "tile=64:32 staged=16"),
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
def test_which_tiles_are_staged(function: Function, target: Target, expected: str) -> None:
    (made,) = planned(function, target)
    found = str(made).partition(" tile=")
    if expected:
        assert f"tile={found[2]}" == expected
    else:
        assert not made.staged


@pytest.mark.parametrize("name", ["lavapipe", "vulkan-1.1", "mali-valhall", "mali-valhall-fp16"])
def test_targets_whose_shared_memory_is_no_nearer_stage_nothing(name: str) -> None:
    (made,) = planned(product(512, 512, 512), targets.load(name))
    assert not made.staged


def test_more_than_shared_memory_holds_is_not_staged() -> None:
    target = staging(16, 4096)
    assert target.gpu is not None
    small = replace(target, gpu=replace(target.gpu, max_shared_bytes=8192))
    (made,) = planned(product(49, 512, 64), small)
    assert (made.shares, made.staged) == (1, 16)
    (made,) = planned(
        product(49, 512, 64), replace(target, gpu=replace(target.gpu, max_shared_bytes=4096))
    )
    assert made.staged == 0


BACKENDS = [
    INTERPRETED["vulkan-1.1"],
    *(pytest.param(b, marks=pytest.mark.vulkan) for b in DRIVEN.values()),
]
PRODUCTS = [
    product(64, 64, 32),
    product(70, 40, 36),
    product(33, 131, 41),  # what is left of rows, terms and columns
    product(49, 200, 64),
    product(49, 200, 64, is_packed=True),
    product(50, 67, 40, is_packed=True),  # a panel that is not full
    product(40, 96, 24, is_turned=True),
    product(37, 97, 27, is_turned=True),
    product(36, 48, 40, batch=3),
    product(17, 70, 21, batch=2, is_turned=True),
]
CONVS = [
    conv((7, 7), 64, (3, 3), 32, begin=1, end=1),
    conv((7, 7), 64, (3, 3), 32, begin=1, end=1, is_packed=True),
    conv((9, 8), 7, (3, 2), 36, begin=1),  # terms of several taps at a time
    conv((13, 13), 3, (5, 5), 20, stride=2, begin=2, end=1),
    conv((12, 9), 24, (3, 3), 33, stride=2, dilation=2, begin=2, end=2),
    conv((5, 6), 66, (3, 3), 18, images=3, begin=1, end=1, is_packed=True),
    conv((9, 9), 48, (1, 1), 20, stride=2),
    conv((8, 8), 40, (1, 1), 36, images=2),
    conv((60,), 20, (5,), 28, begin=2, end=2),
    conv((6, 5, 4), 17, (2, 3, 1), 19, end=1),
    conv((8, 8), 36, (3, 3), 40, group=2, begin=1, end=1),
    conv((9, 9), 20, (3, 3), 24, begin=1, end=1, is_first=True),
]


def check(
    function: Function, target: Target, backend: KernelBackend, dims: dict[str, int], alignment: int
) -> None:
    rng = np.random.default_rng(1)
    shapes = [[dims.get(str(n), n) for n in value.type.dims] for value in function.inputs]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]  # type: ignore[arg-type]
    (wanted,) = run(function, arrays)
    laid = [
        to_memory(array, value.type, dims)
        for array, value in zip(arrays, function.inputs, strict=True)
    ]
    alignments = [alignment] * len(function.bindings)
    sizes = [dims[name] for name in function.dim_names]
    (found,) = run_executable(function, target, laid, sizes, backend.engine, alignments)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("busy_lanes", [0, 4096])
@pytest.mark.parametrize("function", [*PRODUCTS, *CONVS])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_staged_sums_are_whole(function: Function, backend: KernelBackend, busy_lanes: int) -> None:
    target = staging(16, busy_lanes)
    assert planned(function, target)[0].staged
    check(function, target, backend, {}, 16)


@pytest.mark.parametrize("terms", [8, 32, 64])
@pytest.mark.parametrize("function", [PRODUCTS[2], PRODUCTS[5], CONVS[0], CONVS[3], CONVS[5]])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_any_number_of_terms_is_staged(
    function: Function, backend: KernelBackend, terms: int
) -> None:
    check(function, staging(terms), backend, {}, 4)


HALF = """
executable @e0(%0: f16[37, 70], %1: f16[70, 41]) -> ("r0") bindings [1, 1, 1] {
  %2 = cast(%0) {to = f32} : f32[37, 70]
  %3 = cast(%1) {to = f32} : f32[70, 41]
  %4 = matmul(%2, %3) : f32[37, 41]
  %5 = cast(%4) {to = f16} : f16[37, 41]
  return(%5)
}
"""


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_elements_stored_in_16_bits_are_widened_once(backend: KernelBackend) -> None:
    function, target = executable(HALF), staging(16)
    assert planned(function, target)[0].staged
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in ((37, 70), (70, 41))]
    laid = [array.reshape(-1) for array in arrays]
    (found,) = run_executable(function, target, laid, [], backend.engine, [16] * 3)
    wanted = arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), wanted, atol=2e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["nvidia", "nvidia-matrix", "adreno", "adreno-fp16"])
@pytest.mark.parametrize("function", [PRODUCTS[2], CONVS[5]])
def test_targets_of_gpus_stage(function: Function, name: str) -> None:
    target = targets.load(name)
    assert planned(function, target)[0].staged
    check(function, target, INTERPRETED["vulkan-1.1"], {}, 16)


@pytest.mark.parametrize(
    "dims",
    [
        {"t": 1, "k": 40, "n": 20},
        {"t": 63, "k": 64, "n": 33},
        {"t": 70, "k": 37, "n": 64},
        {"t": 17, "k": 5, "n": 16},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_extents_may_be_open(dims: dict[str, int], is_turned: bool, backend: KernelBackend) -> None:
    function = product("t", "k", "n", is_turned=is_turned)
    assert planned(function, staging(16))[0].staged
    check(function, staging(16), backend, dims, 4)


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
    function, target = product(49, 512, 64), staging(16, 4096)
    kernel = lower(function, target, [16] * 4)
    assert sum(isinstance(stmt, Barrier) for stmt in walk(kernel.body)) == 3

    def engine(kernel: Kernel, buffers: object, params: object) -> None:
        body, _ = without_barrier(kernel.body, number)
        INTERPRETED["vulkan-1.1"].engine(replace(kernel, body=body), buffers, params)  # type: ignore[arg-type]

    backend = replace(INTERPRETED["vulkan-1.1"], engine=engine)
    with pytest.raises(InternalError, match="race: both touch (rows|columns|parts)"):
        check(function, target, backend, {}, 16)


@pytest.mark.parametrize(
    ("function", "loads", "stores"),
    [
        # of each four terms 8 rows' and a column's of each; 2 of rows and 4 of columns are brought
        (product(512, 512, 1024, is_packed=True), 8 + 8, 6),
        (conv((56, 56), 64, (3, 3), 256, begin=1, end=1, is_packed=True), 8 + 8, 6),
    ],
)
def test_shared_memory_is_accessed_in_fours(function: Function, loads: int, stores: int) -> None:
    target = staging(16, 0, "nvidia", 128)
    shader = compile_kernel(lower(function, target, [16] * len(function.bindings)), target)
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
    target = replace(targets.load("nvidia"), vector_registers=128)
    assert target.gpu is not None
    target = replace(target, gpu=replace(target.gpu, max_shared_bytes=most))
    shader = compile_kernel(lower(product("t", 512, 1024), target, [16] * 4), target)
    assert shader.shared_bytes == expected
