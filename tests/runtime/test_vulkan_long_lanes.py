"""Extents at which a lane's loops could be longer than a driver lets them be: right, or refused.

llvmpipe ends a shader's loops after 65,535 iterations and goes on as if they were done. So a kernel
of more is shared by more lanes, run by the host, or refused by name: at compile time where the
extents are known, by the program where only the device knows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.backends.vulkan import backend
from aot.backends.vulkan.placement import written_out
from aot.errors import CompileError, RuntimeFailure, UnsupportedError
from aot.ir import dims, expr
from aot.ir.builder import Builder
from aot.ir.dims import symbol
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Kind, OpRecord
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, For, If, Kernel, KernelBuilder, LoopKind, Store
from aot.kernels.nest.steps import body_iterations, lane_iterations
from aot.kernels.nest.two_ways import two_ways
from tests.support.grown_samples import Array, arrays_of, function_of, grown, opened
from tests.support.samples_module import CASES
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

LIMIT = 65535
REFUSED = re.compile(r"a lane would go through ([\d,]+) iterations, and may through 65,?535")


def is_refused(error: Exception) -> bool:
    """Whether an error says of more iterations than the limit that they are too many."""
    found = REFUSED.search(str(error))
    return found is not None and int(found[1].replace(",", "")) > LIMIT


def compiled(function: Function) -> bytes | None:
    """The module for vulkan-1.1; None where it is refused."""
    try:
        return aot.compile(Module([function]), targets=["vulkan-1.1"]).to_bytes()
    except UnsupportedError:
        return None


def given(data: bytes, function: Function, inputs: list[Array], what: str) -> list[Array] | None:
    """What the device gives; None where the program refuses the extents."""
    try:
        with aot.load(data, "vulkan") as program:
            arrays = {v.name: a for v, a in zip(function.inputs, inputs, strict=True)}
            return list(program(arrays).values())
    except RuntimeFailure as error:
        assert is_refused(error), f"{what}: {error}"
        return None


def compare(found: list[Array], expected: list[Array], what: str, tolerance: float) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape, what
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(got, wanted, err_msg=what)
            continue
        scale = max(float(np.abs(wanted).max(initial=0)), 1e-30)
        error = np.abs(got.astype(np.float64) - wanted).max(initial=0) / scale
        assert error <= (2e-3 if wanted.dtype.itemsize == 2 else tolerance), what


def check(function: Function, inputs: list[Array], what: str) -> str:
    """Compiles a function for vulkan-1.1, and compares what it gives with the interpreter."""
    data = compiled(function)
    found = None if data is None else given(data, function, inputs, what)
    if found is None:
        return "refused"
    compare(found, list(run(function, inputs)), what, 1e-4)
    return "right"


def test_iterations_of_a_lane() -> None:
    """All loops count, what ends them too, but not those that are lanes or written out."""
    b = KernelBuilder("k")
    n = symbol("n")
    b.dim_param("n")
    out = b.buffer("out", DType.F32, BufferClass.OUTPUTS, (n,), (1,), is_written=True)

    def loop(extent: dims.Dim, *body: Any, kind: LoopKind = LoopKind.SERIAL) -> For:
        return For(b.var("i"), extent, kind, body)

    store = Store(out, (expr.index(0),), expr.const(1.0, DType.F32))
    condition = expr.binary("lt", expr.index(0), expr.index(n))
    written_out = loop(4, loop(2, store), kind=LoopKind.UNROLLED)

    def iterations(*body: Any) -> dims.Dim:
        lanes = loop(64, *body, kind=LoopKind.LANE)
        kernel = Kernel("k", (), (out,), (), (loop(n, lanes, kind=LoopKind.WORKGROUP),))
        return lane_iterations(kernel, {written_out})

    assert iterations(store) == 0
    assert iterations(loop(5, store)) == 6
    assert str(iterations(loop(n, store))) == "n + 1"
    assert str(iterations(loop(10, loop(n, store)))) == "10*n + 21"
    assert iterations(written_out) == 4 * 3
    assert iterations(If(condition, (loop(5, store),), (loop(7, store),))) == 6 + 8
    fewer = dims.add(n, -8)
    assert dims.evaluate(iterations(loop(fewer, store)), {"n": 3}) == 1


def test_iterations_of_two_ways() -> None:
    """The extents choose a way and its grid: lanes go through that one's iterations."""
    b = KernelBuilder("k")
    n = symbol("n")
    b.dim_param("n")
    out = b.buffer("out", DType.F32, BufferClass.OUTPUTS, (n,), (1,), is_written=True)
    store = Store(out, (expr.index(0),), expr.const(1.0, DType.F32))

    def nest(groups: dims.Dim, extent: dims.Dim, axis: int = 0) -> tuple[For, ...]:
        lanes = For(b.var("l"), 4, LoopKind.LANE, (store,))
        loop = For(b.var("i"), extent, LoopKind.SERIAL, (lanes,))
        return (For(b.var("g"), groups, LoopKind.WORKGROUP, (loop,), axis=axis),)

    usual, shared = nest(3, n), nest(12, dims.ceil_divide(n, 4), axis=1)
    assert two_ways(b, usual, usual, 9) is None
    made = two_ways(b, usual, shared, 9)
    assert made is not None
    kernel = b.build(made)
    for extent, iterations, grid in ((8, 9, (3, 1)), (9, 4, (1, 12)), (33, 10, (1, 12))):
        values = {"n": extent}
        assert dims.evaluate(lane_iterations(kernel), values) == iterations
        assert tuple(dims.evaluate(d, values) for d in kernel.grid[:2]) == grid
    assert str(body_iterations(usual)) == "n + 1"


def test_lanes_keep_what_a_driver_sees_as_few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that are written out are none for the driver, and do not make a sum too long."""
    b = Builder()
    x, w = b.input("x", "f32[150, K]"), b.input("w", "f32[K, 1024]")
    b.output("y", b.op("matmul", x, w))
    b.assume("min(K, 16384)", "K", "a bound")
    kernels: list[Kernel] = []
    real = backend.compile_kernel

    def compile_kernel(kernel: Kernel, *given: Any) -> Any:
        kernels.append(kernel)
        return real(kernel, *given)

    monkeypatch.setattr(backend, "compile_kernel", compile_kernel)
    aot.compile(Module([b.function()]), targets=["vulkan-1.1"])
    (kernel,) = kernels
    counted, left = lane_iterations(kernel), lane_iterations(kernel, written_out(kernel))
    grids = []
    for extent in (64, 12544):
        values = dict.fromkeys(("K", "d0", "d1"), extent)
        assert dims.evaluate(left, values) <= LIMIT
        grids.append(tuple(dims.evaluate(d, values) for d in kernel.grid))
    assert dims.evaluate(counted, values) > LIMIT
    assert grids[0] == grids[1]


# what stays one lane's is refused


def longest(extent: dims.Dim) -> Module:
    """The best 5 of a line."""
    b = Builder()
    x = b.input("x", f"f32[{extent}]")
    b.output("y", b.op("top_k", x, axis=0, k=5, dtype=DType.I32)[0])
    return Module([b.function()])


def test_a_line_too_long_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(longest(70_000), targets=["vulkan-1.1"])
    assert str(caught.value) == (
        "target vulkan-1.1 can't run these; add a --target for the CPU, which then runs them in "
        "the same program:\n"
        "  top_k (executable e0): a lane would go through 350,014 iterations, and may through "
        "65,535"
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "vulkan-1.1",
            "target vulkan-1.1 can't run these; add a --target for the CPU, which then runs them "
            "in the same program:\n  conv (executable e0): an index of 1099511627776 does "
            "not fit 32 bits",
        ),
        (
            "wasm32",
            "an index of -1099511627776 does not fit the target's 32 bits; compile for a target "
            "of 64 bits",
        ),
    ],
)
def test_an_index_of_more_than_32_bits_is_refused(target: str, message: str) -> None:
    b = Builder()
    x, w = b.input("x", "f32[1, 1, 3, 3]"), b.input("w", "f32[2, 1, 3, 3]")
    far = 1 << 40
    apart = {"strides": (far, 1), "dilations": (1, 1), "pads": (far, 0, far, 0)}
    b.output("y", b.op("conv", x, w, **apart))
    with pytest.raises((CompileError, UnsupportedError)) as caught:
        aot.compile(b.module(), targets=[target])
    assert str(caught.value) == message


def test_a_line_of_unknown_length_is_refused_where_it_is_too_long(tmp_path: Path) -> None:
    data = aot.compile(longest(symbol("N")), targets=["vulkan-1.1"]).to_bytes()
    with running_on("lavapipe", tmp_path), aot.load(data, "vulkan") as program:
        x = np.random.default_rng(0).standard_normal(70_000).astype(np.float32)
        for extent in (9000, 70_000, 12_000):
            if extent == 70_000:
                with pytest.raises(RuntimeFailure) as caught:
                    program({"x": x})
                assert str(caught.value) == (
                    "top_k (executable e0): a lane would go through 350014 iterations, and may "
                    'through 65535; N is 70000, axis 0 of input "x"; bound N and add a --target '
                    "for the CPU, which then runs it"
                )
                continue
            (found,) = program({"x": x[:extent]}).values()
            np.testing.assert_array_equal(found, np.sort(x[:extent])[::-1][:5])


def test_what_is_bounded_runs_where_it_can(tmp_path: Path) -> None:
    """What the message says helps: the CPU has what may be too long for the GPU."""
    b = Builder()
    x = b.input("x", "f32[N, 2]")
    b.output("y", b.op("reduce_sum", x, axes=[0], keepdims=False))
    b.output("z", b.op("scan", x, axis=0))
    function = b.function()
    shapes: dict[str, tuple[int | str | None, ...]] = {"x": ("N:..80000", 2)}
    targets = ["vulkan-1.1", "host"]
    data = aot.compile(Module([function]), targets=targets, input_shapes=shapes).to_bytes()
    with running_on("lavapipe", tmp_path), aot.load(data, "vulkan") as program:
        array = np.random.default_rng(0).standard_normal((70_000, 2)).astype(np.float32)
        expected = list(run(function, [array]))
        compare(list(program({"x": array}).values()), expected, "bounded", 1e-4)


def test_the_limit_is_the_drivers(tmp_path: Path) -> None:
    """Right to the last iteration that the program lets a lane make, in a loop's loop as well; and
    by lanes that share a sum where it is longer."""
    b = Builder()
    x = b.input("x", "f32[M,N,64]")
    b.output("y", b.op("reduce_sum", x, axes=[0, 1], keepdims=False))
    data = aot.compile(b.module(), targets=["vulkan-1.1"]).to_bytes()
    with running_on("lavapipe", tmp_path), aot.load(data, "vulkan") as program:
        longest = (LIMIT - 1) // 3
        for shape in ((1, LIMIT - 3), (1, LIMIT - 2), (longest, 1), (longest + 1, 1), (700, 300)):
            ones = np.ones((*shape, 64), np.float32)
            assert (program({"x": ones})["y"] == shape[0] * shape[1]).all(), shape


# what more lanes share


LONG = 70_000
ROWS = np.random.default_rng(1).permutation(LONG)[:, None]
SHARED: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "sum of columns": ("reduce_sum", ((LONG, 3),), {"axes": [0], "keepdims": False}),
    "sum of rows": ("reduce_sum", ((3, LONG),), {"axes": [1], "keepdims": True}),
    "mean of planes": ("reduce_mean", ((2, 300, 400, 2),), {"axes": [1, 2], "keepdims": False}),
    "mean of what lies apart": ("reduce_mean", ((5, 90, 2, 800, 3),), {"axes": [1, 3, 4]}),
    "softmax of columns": ("softmax", ((2, LONG, 3),), {"axis": 1}),
    "softmax of rows": ("softmax", ((2, LONG),), {"axis": 1}),
    "position of the largest": ("arg_max", ((LONG, 2),), {"axis": 0, "dtype": DType.I32}),
    "product of matrices": ("matmul", ((2, LONG), (LONG, 3)), {}),
}


def shared(name: str, *, is_open: bool) -> tuple[Function, list[Array]]:
    """A function of one op, and its inputs; with long extents that only the device knows."""
    op, shapes, attrs = SHARED[name]
    b = Builder()
    operands = [
        b.input(
            f"x{n}", f"f32[{','.join(f'N{d}' if is_open and d > 99 else str(d) for d in shape)}]"
        )
        for n, shape in enumerate(shapes)
    ]
    b.output("y", b.op(op, *operands, **attrs))
    r = np.random.default_rng(0)
    return b.function(), [r.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_lanes_share_what_is_long(name: str, is_open: bool, driver: str, tmp_path: Path) -> None:
    """Known or not: of a kernel whose extents only the device knows they choose who sums."""
    function, inputs = shared(name, is_open=is_open)
    with running_on(driver, tmp_path):
        assert check(function, inputs, name) == "right"


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_updates_by_constant_rows(driver: str, reduction: str, tmp_path: Path) -> None:
    b = Builder()
    x, u = b.input("x", f"f32[{LONG}]"), b.input("u", f"f32[{LONG}]")
    rows = b.constant(ROWS)
    b.output("y", b.op("scatter_nd", x, rows, u, depth=1, reduction=reduction))
    r = np.random.default_rng(0)
    inputs = [r.standard_normal(LONG).astype(np.float32) for _ in range(2)]
    with running_on(driver, tmp_path):
        assert check(b.function(), inputs, reduction) == "right"


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("is_open", [False, True])
def test_updates_by_positions_that_are_read(driver: str, is_open: bool, tmp_path: Path) -> None:
    """Lanes have pieces of what is updated, whose copy is no lane's alone."""
    b = Builder()
    x = b.input("x", f"f32[{'N' if is_open else LONG}]")
    rows, u = b.input("i", "i32[200, 1]"), b.input("u", "f32[200]")
    b.output("y", b.op("scatter_nd", x, rows, u, depth=1))
    r = np.random.default_rng(0)
    inputs: list[Array] = [r.standard_normal(LONG).astype(np.float32)]
    inputs.append(r.integers(-LONG - 9, LONG + 9, (200, 1)).astype(np.int32))
    inputs[1][::3] = inputs[1][0]
    inputs.append(r.standard_normal(200).astype(np.float32))
    with running_on(driver, tmp_path):
        assert check(b.function(), inputs, "read") == "right"


def drivers_for(record: OpRecord, extent: int) -> tuple[str, ...]:
    """SwiftShader takes a fraction of a millisecond for each workgroup whose lanes wait for each
    other: a million of them are lavapipe's alone."""
    waits = record.kind in (Kind.ATTENTION, Kind.RECURRENCE)
    return DRIVERS[:1] if waits and extent > 100_000 else DRIVERS


@pytest.mark.sweep
@pytest.mark.parametrize("extent", [100_000, 1_000_000])
@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_every_op_at_long_extents(name: str, extent: int, tmp_path: Path) -> None:
    record = REGISTRY[name]
    # a coordinate along the extent is rounded to f32, wherever it is computed
    tolerance = 1e-6 * extent if name == "grid_sample" else 1e-4
    for sample in (s for n, number in CASES if n == name for s in [record.samples[number]]):
        for long in grown(record, sample, extent):
            function = function_of(record, long)
            inputs = arrays_of(record, long, function)
            expected: list[Array] = []  # of what some driver runs: a million steps take minutes
            unknown = opened(record, long, extent)
            what = f"{name} of {', '.join(map(str, long.operands))} with {dict(long.attrs)}"
            for asked, of in ((function, what), (unknown, f"{what}, extents unknown")):
                data = None if asked is None else compiled(asked)
                drivers = drivers_for(record, extent)
                for driver in drivers if asked is not None and data is not None else ():
                    with running_on(driver, tmp_path):
                        found = given(data, asked, inputs, f"{of}, on {driver}")
                    if found is not None:
                        expected = expected or list(run(function, inputs))
                        compare(found, expected, f"{of}, on {driver}", tolerance)
