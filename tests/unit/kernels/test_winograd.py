"""Winograd's convolutions: the kernel against the op's reference, and where the plan chooses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.analysis.cost import winograd
from aot.analysis.cost.plan import lanes_of, plan
from aot.builder import Builder
from aot.cli.text import compile_summary
from aot.frontends.text import import_text
from aot.ir import dims
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import Call, call_of
from aot.ir.schedule import Schedule
from aot.ir.types import DType, TensorType
from aot.ops.contraction import CONV
from aot.ops.winograd import CONV_WINOGRAD, transformed
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.cpu_running import native_targets, target_of
from tests.support.cpu_running import run as run_kernel
from tests.support.kernel_backends import on_qemu
from tests.support.lowering_checks import Engine, check

CPUS = tuple(name for name in targets.names() if targets.load(name).is_cpu)
LAST = "{order=0:2:3:1}"


def conv_text(x: tuple[Any, ...], filters: int, pads: str, *, is_stored: bool = False) -> str:
    """A convolution of channels-last tensors with weights that are an input, transformed ones where
    it `is_stored`."""
    n, channels, height, width = x
    top, left, bottom, right = (int(p) for p in pads.split(","))
    rows, columns = (
        d + e - 2 if isinstance(d, int) else f"{d} + {e - 2}" if e != 2 else d
        for d, e in ((height, top + bottom), (width, left + right))
    )
    out = f"f32[{n}, {filters}, {rows}, {columns}]{LAST}"
    operands = (
        f"%x: f32[{n}, {channels}, {height}, {width}]{LAST}",
        f"%w: f32[{filters}, {channels}, {'6, 6' if is_stored else '3, 3'}]",
        f"%b: f32[{filters}]",
    )
    attrs = f'strides = [1, 1], dilations = [1, 1], pads = [{pads}], algorithm = "winograd"'
    op = "conv"
    if is_stored:
        op, attrs = "conv_winograd", f"pads = [{pads}]"
    return f"""
func @main({", ".join(operands)}) -> ("y") {{
  %0 = {op}(%x, %w, %b) {{{attrs}}} : {out}
  %1 = relu(%0) : {out}
  return(%1)
}}
"""


def conv_function(
    x: tuple[Any, ...], filters: int, pads: str = "1,1,1,1", *, is_stored: bool = False
) -> Function:
    return import_text(conv_text(x, filters, pads, is_stored=is_stored)).main


def inputs_of(function: Function, **symbols: int) -> list[Any]:
    rng = np.random.default_rng(3)

    def elements(type: TensorType) -> Any:
        extents = [d if isinstance(d, int) else symbols[str(d)] for d in type.dims]
        if extents[2:] == [6, 6]:
            filters = rng.standard_normal((*extents[:2], 3, 3)).astype(np.float32)
            return transformed(filters)
        return rng.standard_normal(extents).astype(np.float32)

    return [elements(v.type) for v in function.inputs]


CASES = [
    ((1, 16, 8, 8), 16, "1,1,1,1"),
    ((2, 5, 6, 9), 7, "1,1,1,1"),
    ((1, 18, 7, 5), 33, "0,0,0,0"),
    ((1, 3, 10, 4), 20, "2,0,1,1"),
    ((3, 20, 3, 17), 40, "0,1,2,0"),
    # more channels than transformed inputs of are kept at a time
    ((1, 272, 4, 5), 16, "1,1,1,1"),
    ((1, 331, 4, 9), 16, "1,1,1,1"),
]


def native(target: str) -> Engine:
    return lambda kernel, buffers, params: run_kernel(kernel, buffers, params, target_of(target))


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(("x", "filters", "pads"), CASES)
def test_computes_the_convolution(
    x: tuple[int, ...], filters: int, pads: str, is_stored: bool, target: str
) -> None:
    function = conv_function(x, filters, pads, is_stored=is_stored)
    made = plan(call_of(function.block.first), target_of(target))  # type: ignore[arg-type]
    assert made.schedule is Schedule.WINOGRAD
    check(function, inputs_of(function), target, 1, tolerance=1e-5, engine=native(target))


@pytest.mark.parametrize(("channels", "piece"), [(96, 24), (160, 20), (224, 28)])
def test_no_channel_past_the_last_one_is_read(channels: int, piece: int, tmp_path: Path) -> None:
    """The channels are whole vectors, and their pieces are not."""
    known = (targets.directory() / "x86-64-v4.toml").read_text()
    file = tmp_path / "small.toml"
    file.write_text(known.replace("l2_bytes = 1048576", f"l2_bytes = {1 << 17}"))
    function = conv_function((1, channels, 4, 4), 16, is_stored=True)
    target = targets.load(str(file))
    tile = winograd.best_tile(call_of(function.block.first), target, 16)  # type: ignore[arg-type]
    assert winograd.stored_block_of(tile, channels, 16, target.l2_bytes)[2] == piece
    check(function, inputs_of(function), str(file), 1, tolerance=1e-5)


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("is_stored", [False, True])
def test_computes_it_for_dims_that_are_open(is_stored: bool, target: str) -> None:
    for height, width in ((4, 4), (9, 6), (2, 13)):
        function = conv_function((1, 6, "H", "W"), 9, is_stored=is_stored)
        inputs = inputs_of(function, H=height, W=width)
        check(function, inputs, target, 1, tolerance=1e-5, engine=native(target))


@pytest.mark.qemu
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("name", ["aarch64-generic", "armv7-neon", "riscv64-v"])
def test_computes_it_elsewhere(name: str, is_stored: bool) -> None:
    function = conv_function((1, 18, 7, 5), 33, "1,0,1,1", is_stored=is_stored)
    check(function, inputs_of(function), name, 1, tolerance=1e-5, engine=on_qemu(target_of(name)))


@pytest.mark.qemu
@pytest.mark.parametrize("channels", [16, 32, 48, 64])
def test_pieces_of_channels_where_lanes_multiply(channels: int) -> None:
    """All of them at once, or pieces of 16 or 32, which divide them where their number is open."""
    target = target_of("aarch64-generic")
    whole = dims.multiply(dims.symbol("C"), 16)
    piece = winograd.piece_of(whole, target)
    assert dims.evaluate(piece, {"C": channels // 16}) == winograd.piece_of(channels, target)
    engine = on_qemu(target)
    for extent in (channels, "16 * C"):
        function = conv_function((1, extent, 15, 14), 33)  # with tiles at no border
        inputs = inputs_of(function, **{str(whole): channels})
        check(function, inputs, target.name, 1, tolerance=1e-5, engine=engine)


def graph_of(channels: int, filters: int, size: Any, dtype: str = "f32") -> Module:
    """A 1x1, a 3x3 and a 1x1 convolution, whose weights are the same in every type."""
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", f"{dtype}[1, {channels}, {size}, {size}]")

    def constant(elements: Any) -> Any:
        return b.constant(elements.astype(np.float32).astype(DType(dtype).numpy))

    def conv(value: Any, out: int, into: int, k: int) -> Any:
        weights = rng.standard_normal((out, into, k, k)) / (k * into**0.5)
        bias = constant(rng.standard_normal(out))
        attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (k // 2,) * 4}
        made = b.op("conv", value, constant(weights), bias, **attrs, group=1)
        return b.op("relu", made)

    y = conv(conv(conv(x, channels, channels, 1), filters, channels, 3), 16, filters, 1)
    b.output("y", y)
    return Module([b.function()])


def block(channels: int, filters: int, size: Any, *, winograd: bool) -> tuple[Any, Any]:
    """The convolutions, compiled for the host, and the graph."""
    module = graph_of(channels, filters, size)
    return aot.compile(module, targets=["host"], winograd=winograd), module


@pytest.mark.parametrize(
    ("channels", "filters", "size"), [(64, 64, 20), (96, 24, 37), (32, 80, 26)]
)
def test_a_compiled_model_agrees_with_the_graph(channels: int, filters: int, size: int) -> None:
    module, graph = block(channels, filters, size, winograd=True)
    direct, _ = block(channels, filters, size, winograd=False)
    assert module.to_bytes() != direct.to_bytes(), "winograd was not chosen"
    x = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype(np.float32)
    (want,) = run(graph.main, [x])
    for each in (module, direct):
        with aot.load(each) as program:
            found = program({"x": x})["y"]
        assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


def test_an_open_size_is_served_by_one_kernel() -> None:
    module, graph = block(32, 48, "S", winograd=True)
    with aot.load(module) as program:
        for size in (5, 32, 21):
            x = np.random.default_rng(size).standard_normal((1, 32, size, size)).astype(np.float32)
            (want,) = run(graph.main, [x])
            assert np.abs(program({"x": x})["y"] - want).max() <= 1e-5 * np.abs(want).max()


def conv_call(channels: Any, filters: Any, size: Any) -> Call:
    text = conv_text((1, channels, size, size), filters, "1,1,1,1")
    op = import_text(text).main.block.first
    assert op is not None
    return call_of(op)


@pytest.mark.parametrize("name", CPUS)
def test_tiles_fit_the_registers(name: str) -> None:
    target = targets.load(name)
    lanes = lanes_of(target, 4)
    for channels, filters, size in ((16, 16, 80), (64, 64, 40), (256, 256, 10), (512, 512, 7)):
        call = conv_call(channels, filters, size)
        rows, columns = winograd.best_tile(call, target, lanes)
        vectors = max(1, columns // lanes)
        assert rows == 1 or rows * vectors + vectors + 2 <= target.vector_registers
        tiles, across = winograd.block_of((rows, columns), filters, target.l2_bytes)
        assert tiles % rows == 0
        assert (across - 1) * columns < filters
        sums = winograd.POINTS * tiles * across * columns * 4
        assert sums <= target.l2_bytes or (tiles, across) == (rows, 1)


def test_only_what_its_kernel_can_do_fits() -> None:
    host = targets.load("x86-64-v4")
    fitting = conv_call(32, 32, 20)
    assert winograd.fits(fitting, host)
    assert not winograd.fits(fitting, targets.load("vulkan-1.1"))
    dense = TensorType(DType.F32, fitting.operand(0).dims)
    attrs = dict(fitting.attrs)
    weight, bias = fitting.operand(1), fitting.operand(2)
    assert not winograd.fits(CONV.call([dense, weight, bias], attrs, ""), host)
    strided = {**attrs, "strides": (2, 2)}
    assert not winograd.fits(CONV.call([fitting.operand(0), weight, bias], strided, ""), host)


def test_a_model_computes_small_images_directly() -> None:
    b = Builder()
    x = b.input("x", "f32[1, 64, 4, 4]")
    rng = np.random.default_rng(0)
    for _ in range(2):
        w = b.constant(rng.standard_normal((64, 64, 3, 3)).astype(np.float32))
        x = b.op("conv", x, w, strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1), group=1)
    b.output("y", x)
    module = Module([b.function()])
    context = PassContext(CompileOptions(), targets.load("x86-64-v4"))
    names = [step.name for step in TARGET_PASSES]
    steps = TARGET_PASSES[: names.index("choose-algorithms") + 1]
    run_passes(module, (*MODEL_PASSES, *steps), context)
    chosen = {op.attrs["algorithm"] for op in module.main.walk() if op.record is CONV}
    assert chosen == {"direct"}


@pytest.mark.parametrize(("channels", "more"), [(64, 1.7), (512, 1)])
def test_rounding_is_hardly_more_than_that_of_direct_sums(channels: int, more: float) -> None:
    """In float32, against the convolutions in float64: 1.4 times as much with AVX-512, and 1.6
    times with AVX2, whose direct sums round less."""
    x = np.random.default_rng(5).standard_normal((1, channels, 16, 16)).astype(np.float32)
    (exact,) = run(graph_of(channels, 32, 16, "f64").main, [x.astype(np.float64)])
    errors = {}
    graph = graph_of(channels, 32, 16)
    for way in ({"winograd": False}, {}, {"optimize": "speed"}):
        with aot.load(aot.compile(graph, targets=["host"], **way)) as program:  # type: ignore[arg-type]
            errors[str(way)] = np.sqrt(np.square(program({"x": x})["y"] - exact).mean())
    direct, *others = errors.values()
    assert max(others) <= more * direct


# ---- filters that are stored transformed ----


def test_transformed_filters_mean_what_filters_do() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(n).astype(np.float32) for n in ((1, 5, 9, 8), (7, 5, 3, 3)))
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 0, 2, 1)}

    def computed(op: str, filters: Any, **attrs: Any) -> Any:
        b = Builder()
        b.output("y", b.op(op, b.constant(x), b.constant(filters), **attrs))
        return run(b.function(), [])[0]

    want = computed("conv", w, **attrs, group=1)
    found = computed("conv_winograd", transformed(w), pads=attrs["pads"])
    assert np.abs(found - want).max() <= 1e-6 * np.abs(want).max()


def convolutions(
    sizes: Sequence[tuple[int, int, int]],
    target: str = "aarch64-generic",
    *,
    is_shared: bool = False,
    **options: Any,
) -> tuple[list[str], dict[str, int]]:
    """What the passes make of 3x3 convolutions of (channels, filters, image), and their counts."""
    b, rng = Builder(), np.random.default_rng(0)
    for number, (channels, filters, size) in enumerate(sizes):
        x = b.input(f"x{number}", f"f32[1, {channels}, {size}, {size}]")
        square = rng.standard_normal((channels, channels, 1, 1)).astype(np.float32)
        attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
        w = b.constant(rng.standard_normal((filters, channels, 3, 3)).astype(np.float32))
        y = b.op("relu", b.op("conv", x, b.constant(square), pads=(0, 0, 0, 0), **attrs))
        y = b.op("relu", b.op("conv", y, w, pads=(1, 1, 1, 1), **attrs))
        last = rng.standard_normal((channels, filters, 1, 1)).astype(np.float32)
        b.output(f"y{number}", b.op("conv", y, b.constant(last), pads=(0, 0, 0, 0), **attrs))
        if is_shared:
            b.output(f"w{number}", b.op("mul", w, b.input(f"s{number}", "f32[1, 1, 1, 1]")))
    module = Module([b.function()])
    context = PassContext(CompileOptions(**options), targets.load(target))
    names = [step.name for step in TARGET_PASSES]
    steps = TARGET_PASSES[: names.index("choose-algorithms") + 1]
    run_passes(module, (*MODEL_PASSES, *steps), context)
    found = [
        str(op.attrs.get("algorithm", "stored"))
        for op in module.main.walk()
        if op.record in (CONV, CONV_WINOGRAD) and op.operands[1].type.dims[-1] != 1  # type: ignore[union-attr]
    ]
    return found, context.statistics.get("choose-algorithms", {})


def test_filters_are_stored_transformed_for_speed_only() -> None:
    sizes = [(64, 64, 20)]
    assert convolutions(sizes)[0] == ["winograd"]
    assert convolutions(sizes, optimize="size")[0] == ["winograd"]
    found, counts = convolutions(sizes, optimize="speed")
    assert found == ["stored"]
    more = 64 * 64 * (36 - 9) * 4
    assert counts == {"convolutions": 1, "transformed": 1, "more_bytes": more}
    assert convolutions(sizes, optimize="speed", winograd=False)[0] == ["direct"]
    assert convolutions(sizes, optimize="speed", storage="fp16")[0] == ["winograd"]


def test_filters_that_others_read_are_not_stored_twice() -> None:
    found, counts = convolutions([(64, 64, 20)], optimize="speed", is_shared=True)
    assert found == ["winograd"]
    assert counts["more_bytes"] == 0


def test_transformed_filters_have_a_budget() -> None:
    """16 MiB: those that gain most for their bytes come first."""
    sizes = [(384, 384, 12), (384, 384, 12), (64, 64, 48)]
    found, counts = convolutions(sizes, optimize="speed")
    assert found == ["stored", "winograd", "stored"]
    assert counts["more_bytes"] == (384 * 384 + 64 * 64) * 27 * 4 <= 16 << 20


def test_wide_vectors_do_not_wait_for_transformed_filters() -> None:
    """An image of few tiles has fewer products than it takes to read four times the bytes."""
    assert convolutions([(64, 256, 13)], "aarch64-generic", optimize="speed")[0] == ["stored"]
    assert convolutions([(64, 256, 13)], "x86-64-v4", optimize="speed")[0] == ["winograd"]
    assert convolutions([(64, 64, 56)], "x86-64-v4", optimize="speed")[0] == ["stored"]


def test_a_model_with_stored_filters_agrees_with_the_graph() -> None:
    graph = graph_of(64, 48, 48)
    module = aot.compile(graph_of(64, 48, 48), targets=["host"], optimize="speed")
    (variant,) = module.stats["variants"]
    assert variant["winograd"] == {
        "convolutions": 1,
        "transformed": 1,
        "more_bytes": 64 * 48 * 27 * 4,
    }
    summary = compile_summary(module.stats, "model.aotm", 1, 1.0)
    assert (
        "1 of 1 convolutions by Winograd's algorithm have transformed filters, of 331,776 bytes "
        "more" in summary
    )
    x = np.random.default_rng(1).standard_normal((1, 64, 48, 48)).astype(np.float32)
    (want,) = run(graph.main, [x])
    with aot.load(module) as program:
        found = program({"x": x})["y"]
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
