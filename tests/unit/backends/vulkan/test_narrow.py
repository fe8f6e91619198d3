"""Shaders that compute and store in 16 and 8 bits, where a target says that its devices do.

Every op's samples in f16, i8 and u8, and kernels written by hand; what shaders declare; which
variant runs where a device lacks it; a model in float16 against ONNX Runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import aot
from aot.analysis.memory.views import is_view
from aot.backends.vulkan.shader import Shader
from aot.builder import Builder
from aot.errors import CompileError, RuntimeFailure
from aot.ir.expr import COMPARE_OPS, Bitcast, Expr, Fma, Select, binary, cast, const, unary
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, OpRecord, Sample
from aot.ir.text.printer import print_module
from aot.ir.types import DType, TensorType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder, Stmt, Store
from aot.link.reader import read_module
from aot.target import selection as targets
from tests.support import vulkan_running
from tests.support.half_contractions import CONTRACTIONS
from tests.support.hard_kernels import HARD_KERNELS, HardKernel
from tests.support.lowering import sample_array, sample_function
from tests.support.lowering_checks import Engine
from tests.support.lowering_checks import check as check_against_interpreter
from tests.support.op_samples import by_op, naming
from tests.support.random_graphs import Graph, difference, graphs
from tests.support.vulkan_case import Array, load, spread, tensor
from tests.support.vulkan_checks import assert_close, check_hard_kernel
from tests.support.vulkan_kernels import CASES
from tests.support.vulkan_runtime import VALIDATION_MANIFESTS, running_on

pytestmark = pytest.mark.vulkan

NARROW = {DType.F32: DType.F16, DType.I32: DType.I8, DType.U32: DType.U8}
HALF = 2.0**-11  # what rounding to f16 may change, of the number
SMALL = frozenset(d for d in DType if d.is_stored and d.bytes <= 4 and not d.is_storage_only)
DRIVER = "lavapipe"  # SwiftShader has no narrow types


PLAIN = ("f32", "i32", "u32", "bool")
FULL = "vulkan-android-15"


def target_file(folder: Path, computed: tuple[str, ...], stored: tuple[int, ...]) -> str:
    """A file of FULL with other narrow types and other widths of storage."""
    text = (targets.directory() / f"{FULL}.toml").read_text()
    dtypes = ", ".join(f'"{d}"' for d in (*PLAIN, *computed))
    text = re.sub(r"dtypes = .*", f"dtypes = [{dtypes}]", text)
    text = re.sub(r"storage_bits = .*", f"storage_bits = {list(stored)}", text)
    path = folder / f"narrow-{'-'.join(computed)}-{'-'.join(map(str, stored))}.toml"
    path.write_text(text)
    return str(path)


# What is computed and stored: all; arithmetic on parts of words; storage for f32 arithmetic.
MACHINES = {
    "all": (("f16", "i8", "u8"), (8, 16)),
    "arithmetic": (("f16", "i8", "u8"), ()),
    "storage": ((), (8, 16)),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A target's file."""
    return target_file(tmp_path, *MACHINES[request.param])


def narrowed(record: OpRecord, sample: Sample) -> Sample | None:
    """The sample in narrow types; None where the op does not take them."""

    def of(type: TensorType | None) -> TensorType | None:
        if type is None or type.dtype not in NARROW:
            return type
        return TensorType(NARROW[type.dtype], type.dims, type.layout)

    operands = tuple(of(t) for t in sample.operands)
    if operands == sample.operands or max(-sample.low, sample.high) > 6e4:
        return None
    specs = record.operands
    for number, type in enumerate(operands):
        if type is not None and type.dtype not in specs[min(number, len(specs) - 1)].dtypes:
            return None
    made = replace(sample, operands=operands)
    try:
        record.call(made.operands, made.attrs)
    except CompileError:
        return None
    return made


SAMPLES = [
    pytest.param(record, made, id=f"{name}-{number}")
    for name, record in sorted(REGISTRY.items())
    if record.compute is not None or record.kind.has_handwritten_kernel
    for number, sample in enumerate(record.samples)
    if "layout" not in sample.attrs and (made := narrowed(record, sample)) is not None
]


def engine(machine: str, shaders: list[Shader]) -> Engine:
    """Runs kernels on the driver, and notes their shaders."""

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        shader = vulkan_running.build(kernel, targets.load(machine))
        shaders.append(shader)
        results = vulkan_running.run_on(DRIVER, kernel, buffers, params, shader=shader)
        for buffer, array in results.items():
            buffers[buffer][...] = array.reshape(buffers[buffer].shape)

    return run


@pytest.mark.parametrize("op", by_op(SAMPLES))
def test_every_sample_of_every_op(op: str, machine: str) -> None:
    for name, record, sample in by_op(SAMPLES)[op]:
        with naming(name):
            check_sample(record, sample, machine)


def check_sample(record: OpRecord, sample: Sample, machine: str) -> None:
    """Ops that compute in f16 round each step of theirs, so that what a sample's largest number is
    to be off by is some units of it."""
    rng = np.random.RandomState(1)
    inputs = [sample_array(t, sample, rng) for t in sample.operands if t is not None]
    function = sample_function(record, sample)
    dispatches = sum(1 for op in function.block if op.record is record and not is_view(op))
    is_half = any(v.type.dtype is DType.F16 for v in function.results)
    shaders: list[Shader] = []
    check_against_interpreter(
        function,
        inputs,
        machine,
        dispatches,
        tolerance=4 * HALF if is_half else 2e-6,
        engine=engine(machine, shaders),
    )


@pytest.mark.parametrize("name", CASES)
def test_kernels_written_by_hand(name: str, machine: str) -> None:
    case = CASES[name]()
    shader = vulkan_running.build(case.kernel, targets.load(machine))
    found = vulkan_running.run_on(DRIVER, case.kernel, case.arrays, case.params, shader=shader)
    for output, expected in case.expected.items():
        assert_close(found[output], expected, case.tolerance)


@pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)
def test_hard_kernels(case: HardKernel, machine: str) -> None:
    check_hard_kernel(case, DRIVER, targets.load(machine))


# every number of 16 and of 8 bits

F16, F32 = DType.F16, DType.F32
HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)


def each(
    dtype: DType, result: DType, of: Callable[[Expr, Expr], Expr], a: Array, b: Array
) -> Kernel:
    """y[i] = of(a[i], b[i])"""
    builder = KernelBuilder("each")
    left = tensor(builder, "a", dtype, BufferClass.INPUTS, a.size)
    right = tensor(builder, "b", dtype, BufferClass.CONSTANTS, b.size)
    y = tensor(builder, "y", result, BufferClass.OUTPUTS, a.size)

    def body(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        zero = const(0, dtype)
        value = of(
            load(left, i, guard=inside, other=zero), load(right, i, guard=inside, other=zero)
        )
        return (Store(y, (i,), value, inside),)

    return builder.build(spread(builder, a.size, 64, body))


def computed(
    machine: str, result: DType, of: Callable[[Expr, Expr], Expr], a: Array, b: Array
) -> Array:
    dtype = DType.of(a)
    kernel = each(dtype, result, of, a, b)
    shader = vulkan_running.build(kernel, targets.load(machine))
    return vulkan_running.run_on(DRIVER, kernel, {"a": a, "b": b}, shader=shader)["y"]


def test_the_validation_layer_listens() -> None:
    """A capability whose feature is not enabled, in the process that runs kernels."""
    if not (VALIDATION_MANIFESTS / "VkLayer_khronos_validation.json").exists():
        pytest.skip("the validation layer is not installed")
    a = HALVES[:64]
    kernel = each(F16, F16, lambda x, y: binary("add", x, y), a, a)
    shader = vulkan_running.build(kernel, targets.load(FULL))
    undeclared = replace(shader, features=())
    with pytest.raises(AssertionError, match=r"the validation layer says: [\s\S]*Capability"):
        vulkan_running.run_on(DRIVER, kernel, {"a": a, "b": a}, shader=undeclared)
    vulkan_running.run_on(DRIVER, kernel, {"a": a, "b": a}, shader=shader)


def interpreted(result: DType, of: Callable[[Expr, Expr], Expr], a: Array, b: Array) -> Array:
    buffers = {"a": a, "b": b, "y": np.zeros(a.size, result.numpy)}
    kernel = each(DType.of(a), result, of, a, b)
    with np.errstate(all="ignore"):
        interpreter.run(kernel, buffers, {p.name: 0 for p in kernel.params})
    return buffers["y"]


ON_HALVES: dict[str, tuple[DType, Callable[[Expr, Expr], Expr]]] = {
    **{op: (F16, lambda a, b, op=op: binary(op, a, b)) for op in ("add", "sub", "mul", "div")},  # type: ignore[misc]
    **{op: (F16, lambda a, b, op=op: binary(op, a, b)) for op in ("min", "max")},  # type: ignore[misc]
    **{op: (F16, lambda a, b, op=op: unary(op, a)) for op in ("neg", "abs", "floor", "ceil")},  # type: ignore[misc]
    **{op: (F16, lambda a, b, op=op: unary(op, a)) for op in ("trunc", "round", "sqrt")},  # type: ignore[misc]
    **{op: (F16, lambda a, b, op=op: unary(op, a)) for op in ("exp", "tanh", "sigmoid")},  # type: ignore[misc]
    **{op: (DType.BOOL, lambda a, b, op=op: binary(op, a, b)) for op in sorted(COMPARE_OPS)},  # type: ignore[misc]
    "isnan": (DType.BOOL, lambda a, b: unary("isnan", a)),
    "select": (F16, lambda a, b: Select(binary("lt", a, b), a, b, F16)),
    "literal": (F16, lambda a, b: binary("max", a, const(-0.3, F16))),
    **{f"to {d}": (d, lambda a, b, d=d: cast(a, d)) for d in DType if d in SMALL},  # type: ignore[misc]
    "bits": (DType.U16, lambda a, b: Bitcast(a, DType.U16)),
}


@pytest.mark.parametrize("name", ON_HALVES)
def test_every_half(name: str, machine: str) -> None:
    result, of = ON_HALVES[name]
    b = np.random.default_rng(1).permutation(HALVES)
    found, wanted = computed(machine, result, of, HALVES, b), interpreted(result, of, HALVES, b)
    if not result.is_float:
        is_number = ~np.isnan(HALVES) if name == "bits" else slice(None)  # NaNs may become another
        np.testing.assert_array_equal(found[is_number], wanted[is_number])
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    is_exact = name not in ("div", "sqrt", "exp", "tanh", "sigmoid")
    x, y = (ordered(v)[~np.isnan(wanted)] for v in (found, wanted))
    assert np.abs(x - y).max() <= (0 if is_exact else 1)


def test_a_product_that_is_added_to_rounds_once_or_twice(machine: str) -> None:
    b = np.random.default_rng(1).permutation(HALVES)
    found = computed(machine, F16, lambda x, y: Fma(x, y, y, F16), HALVES, b)
    with np.errstate(all="ignore"):
        once = (HALVES.astype(np.float64) * b + b).astype(np.float16)
        twice = HALVES * b + b
    is_one = (found == once) | (found == twice) | (np.isnan(found) & np.isnan(twice))
    assert is_one.all()


def ordered(halves: Array) -> Array:
    """Numbers of f16 as integers in the same order: neighbours differ by 1, and the zeros by 0."""
    if halves.dtype != np.float16:
        return halves.view(np.int32).astype(np.int64)
    bits = halves.view(np.uint16).astype(np.int64)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


BYTES = {DType.I8: np.int8, DType.U8: np.uint8}
ON_BYTES = (
    "add",
    "sub",
    "mul",
    "min",
    "max",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
    *sorted(COMPARE_OPS),
)


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("op", [*ON_BYTES, "div", "floordiv", "floormod", "neg", "abs", "bitnot"])
def test_every_pair_of_bytes(op: str, dtype: DType, machine: str) -> None:
    numbers = np.arange(256, dtype=np.uint8).view(BYTES[dtype])
    a, b = (np.ascontiguousarray(m.reshape(-1)) for m in np.meshgrid(numbers, numbers))
    if op in ("div", "floordiv", "floormod"):
        b = np.where(b == 0, 3, b).astype(BYTES[dtype])
        a = np.where((b.astype(int) == -1) & (a.astype(int) == -128), 5, a).astype(BYTES[dtype])
    if op in ("shl", "shr"):
        b = (b & 7).astype(BYTES[dtype])
    result = DType.BOOL if op in COMPARE_OPS else dtype

    def of(x: Expr, y: Expr) -> Expr:
        return unary(op, x) if op in ("neg", "abs", "bitnot") else binary(op, x, y)

    found, wanted = computed(machine, result, of, a, b), interpreted(result, of, a, b)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("to", [d for d in DType if d in SMALL], ids=str)
def test_bytes_as_other_types(to: DType, dtype: DType, machine: str) -> None:
    numbers = np.arange(256, dtype=np.uint8).view(BYTES[dtype])
    given = numbers

    def of(x: Expr, y: Expr) -> Expr:
        return cast(binary("add", x, y), to)

    np.testing.assert_array_equal(
        computed(machine, to, of, given, given), interpreted(to, of, given, given)
    )


# programs


def half_model(seed: int = 0) -> onnx.ModelProto:
    """Convolutions, pooling, a matrix product, attention, layer norm and softmax, in float16."""
    rng = np.random.default_rng(seed)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:], dtype=np.float64))
        array = (rng.standard_normal(shape) * scale).astype(np.float16)
        weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def ints(name: str, *values: int) -> str:
        weights.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", weight("w0", 24, 3, 3, 3), weight("b0", 24)], ["c0"], pads=[1] * 4),
        node("HardSwish", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", weight("w1", 24, 1, 3, 3)], ["c1"], pads=[1] * 4, group=24),
        node("Conv", ["c1", weight("w2", 32, 24, 1, 1), weight("b2", 32)], ["c2"]),
        node("Sigmoid", ["c2"], ["s2"]),
        node("Mul", ["c2", "s2"], ["m2"]),
        node("Reshape", ["m2", ints("shape", 1, 32, -1)], ["flat"]),
        node("Transpose", ["flat"], ["rows"], perm=[0, 2, 1]),
        node("LayerNormalization", ["rows", weight("scale", 32), weight("shift", 32)], ["norm"]),
        node("MatMul", ["norm", weight("wq", 32, 32)], ["q"]),
        node("MatMul", ["norm", weight("wk", 32, 32)], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["soft"], axis=-1),
        node("MatMul", ["soft", "norm"], ["mixed"]),
        node("Add", ["mixed", "rows"], ["sum"]),
        node("Gelu", ["sum"], ["gelu"]),
        node("MatMul", ["gelu", weight("wo", 32, 10)], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT16
    graph = onnx.helper.make_graph(
        nodes,
        "half",
        [onnx.helper.make_tensor_value_info("x", kind, [1, 3, 16, 16])],
        [onnx.helper.make_tensor_value_info("y", kind, [1, 64, 10])],
        weights,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model


def answer(model: onnx.ModelProto, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


def bytes_of(model: onnx.ModelProto, folder: Path, *wanted: str, **options: Any) -> bytes:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return aot.compile(path, targets=list(wanted), **options).to_bytes()


def half_input(seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float16)


def byte_model() -> onnx.ModelProto:
    """Quantised convolutions, a depthwise one among them, an extremum and a matrix product. Weights
    have seven bits: ONNX Runtime saturates sums of two products on CPUs without VNNI."""
    rng = np.random.default_rng(0)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, value: Any) -> str:
        weights.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def conv(given: str, name: str, shape: tuple[int, ...], group: int = 1) -> onnx.NodeProto:
        operands = [
            given,
            weight(f"{name}_sx", np.float32(0.02)),
            weight(f"{name}_zx", np.uint8(120)),
        ]
        numbers = rng.integers(-64, 64, shape).astype(np.int8)
        operands += [weight(f"{name}_w", numbers), weight(f"{name}_sw", np.float32(0.01))]
        operands += [weight(f"{name}_zw", np.int8(0)), weight(f"{name}_sy", np.float32(0.05))]
        operands += [weight(f"{name}_zy", np.uint8(100))]
        operands += [weight(f"{name}_b", rng.integers(-500, 500, shape[0]).astype(np.int32))]
        pads = [shape[2] // 2] * 4
        return onnx.helper.make_node("QLinearConv", operands, [name], pads=pads, group=group)

    node = onnx.helper.make_node
    nodes = [
        conv("x", "a", (16, 3, 3, 3)),
        conv("a", "b", (16, 1, 3, 3), 16),
        conv("b", "c", (32, 16, 1, 1)),
        node("Max", ["c", weight("least", np.array(90, np.uint8))], ["most"]),
        node("Reshape", ["most", weight("shape", np.array([32, 144]))], ["flat"]),
        node(
            "MatMulInteger",
            ["flat", weight("w", rng.integers(-64, 64, (144, 24)).astype(np.int8)), "least"],
            ["y"],
        ),
    ]
    kinds = onnx.TensorProto
    graph = onnx.helper.make_graph(
        nodes,
        "bytes",
        [onnx.helper.make_tensor_value_info("x", kinds.UINT8, [1, 3, 12, 12])],
        [
            onnx.helper.make_tensor_value_info("most", kinds.UINT8, [1, 32, 12, 12]),
            onnx.helper.make_tensor_value_info("y", kinds.INT32, [32, 24]),
        ],
        weights,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("name", [FULL, "vulkan-android-2022"])
def test_a_quantised_model(name: str, tmp_path: Path) -> None:
    """A few numbers on the border between two may be rounded to the other one."""
    model = byte_model()
    x = np.random.default_rng(5).integers(0, 256, (1, 3, 12, 12)).astype(np.uint8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    most, y = (a.astype(np.int64) for a in session.run(None, {"x": x}))
    data = bytes_of(model, tmp_path, name)
    (variant,) = read_module(data).variants
    narrow = ("shaderInt8", "storageBuffer8BitAccess")
    assert set(variant.features) & set(narrow) == (set(narrow) if name == FULL else set())
    with running_on(DRIVER, tmp_path), aot.load(data, "vulkan") as program:
        found = program({"x": x})
    off = np.abs(found["most"].astype(np.int64) - most)
    assert off.max() <= 1
    assert np.count_nonzero(off) <= 0.005 * off.size
    assert np.abs(found["y"] - y).max() <= 64 * np.count_nonzero(off)


@pytest.mark.parametrize("name", [FULL, "mali-valhall-fp16", "adreno-fp16"])
def test_a_model_in_float16(name: str, tmp_path: Path) -> None:
    model, x = half_model(), half_input()
    data = bytes_of(model, tmp_path, name)
    wanted = answer(model, x).astype(np.float64)
    with running_on(DRIVER, tmp_path), aot.load(data, "vulkan") as program:
        found = program({"x": x})["y"]
        again = program({"x": x})["y"]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, again)
    assert np.abs(found.astype(np.float64) - wanted).max() <= 8 * HALF * np.abs(wanted).max()
    (variant,) = read_module(data).variants
    for each_one in variant.executables:
        vulkan_running.validate(each_one.spirv or b"")
    assert data == bytes_of(model, tmp_path, name)


def test_what_a_model_in_float16_needs(tmp_path: Path) -> None:
    model = half_model()

    def needs(name: str, **options: Any) -> tuple[str, ...]:
        (variant,) = read_module(bytes_of(model, tmp_path, name, **options)).variants
        return variant.features

    # no sum is long enough for the lanes of a subgroup to share it
    assert needs(FULL) == ("shaderFloat16", "storageBuffer16BitAccess")
    assert needs("adreno-fp16") == ("shaderFloat16",)
    assert needs("vulkan-android-2022") == ()


def test_each_shader_declares_what_it_uses(tmp_path: Path) -> None:
    """Nothing of f16 where a model has none; no bytes where there is f16 only."""
    b = Builder()
    b.output("y", b.op("relu", b.input("x", "f32[N, 5]")))
    assert features_of(b, FULL) == ()
    for dtype, features in (
        ("f16", ("shaderFloat16", "storageBuffer16BitAccess")),
        ("i8", ("shaderInt8", "storageBuffer8BitAccess")),
        ("bool", ("storageBuffer8BitAccess",)),
        ("u16", ("storageBuffer16BitAccess",)),
        ("f16 moved", ("storageBuffer16BitAccess",)),
        ("f16 as f32", ("storageBuffer16BitAccess",)),
    ):
        b = Builder()
        x, z = (b.input(name, f"{dtype.split()[0]}[5, 5]") for name in "xz")
        if dtype == "f16 moved":
            y = b.op("transpose", x, perm=(1, 0))
        elif dtype == "f16 as f32":
            y = b.op("relu", b.op("cast", x, to="f32"))
        else:
            y = b.op("and" if dtype == "bool" else "maximum", x, z)
        b.output("y", y)
        assert features_of(b, FULL) == features


def features_of(b: Builder, name: str) -> tuple[str, ...]:
    (variant,) = read_module(aot.compile(b.module(), targets=[name]).to_bytes()).variants
    return variant.features


def test_a_device_without_them_is_refused_by_name_or_runs_the_next_variant(
    tmp_path: Path,
) -> None:
    model, x = half_model(), half_input()
    alone = bytes_of(model, tmp_path, FULL)
    both = bytes_of(model, tmp_path, FULL, "vulkan-android-2022")
    wanted = answer(model, x).astype(np.float64)
    with running_on("swiftshader", tmp_path):
        with pytest.raises(RuntimeFailure, match="there is no shaderFloat16, which the") as caught:
            aot.load(alone, "vulkan")
        assert caught.value.status == "unsupported"
        with aot.load(both, "vulkan") as program:
            assert program.target == "vulkan-android-2022"
            assert "shaderFloat16" in program.skipped
            found = program({"x": x})["y"].astype(np.float64)
    assert np.abs(found - wanted).max() <= 8 * HALF * np.abs(wanted).max()
    with running_on(DRIVER, tmp_path), aot.load(both, "vulkan") as program:
        assert program.target == FULL


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 9))
def test_random_graphs(tmp_path: Path, graph: Graph, seed: int) -> None:
    """Values in f16 and f32, casts between them, and what fusion makes of it."""
    inputs = graph.inputs(seed)
    note(print_module(graph.module))
    expected = run(graph.module.main, inputs)
    try:
        data = aot.compile(graph.module, targets=[FULL]).to_bytes()
    except aot.UnsupportedError:
        assume(False)
    with running_on(DRIVER, tmp_path), aot.load(data, "vulkan") as program:
        found = list(program(inputs).values())
    problem = difference(graph.module.main, inputs, expected, found)
    assert not problem, problem


# what lies in f16 and is computed in f32


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_halves(name: str, machine: str) -> None:
    """Sums are f32, whatever is native."""
    CONTRACTIONS[name].check(machine, engine(machine, []), "normal")
    scratch = CONTRACTIONS[name].lowered(machine).scratch
    assert {s.dtype for s in scratch if s.name == "acc"} == {F32}


@pytest.mark.parametrize("name", ["vulkan-1.1", FULL])
def test_four_neighbours_are_one_load(name: str) -> None:
    """A panel's weights and a row's elements: two words for four f16."""
    kernel = CONTRACTIONS["conv"].lowered(name, 16)
    text = vulkan_running.disassemble(vulkan_running.build(kernel, targets.load(name)).words)
    (pair,) = re.findall(r"%(\d+) = OpTypeVector %(?:\d+) 2\n", pairs_of_words(text))
    assert len(re.findall(rf"OpLoad %{pair} ", text)) >= 4
    assert "UnpackHalf2x16" in text
    kernel = CONTRACTIONS["conv"].lowered(name)  # nothing is known of where operands begin
    text = vulkan_running.disassemble(vulkan_running.build(kernel, targets.load(name)).words)
    assert len(re.findall(rf"OpLoad %{pair} ", text)) < 4


def pairs_of_words(text: str) -> str:
    """The lines of a disassembly that make a type of two u32."""
    (word,) = re.findall(r"%(\d+) = OpTypeInt 32 0", text)
    return "".join(f"{line}\n" for line in text.splitlines() if f"OpTypeVector %{word} 2" in line)


def test_storage_in_16_bits_needs_no_atomics(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", "f32[N, 64]")
    w = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    y = b.op("softmax", b.op("matmul", x, b.constant(w)), axis=1)
    b.output("y", b.op("matmul", y, b.constant(np.ascontiguousarray(w.T))))
    given = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    found = {}
    for name in (FULL, "vulkan-1.1"):
        module = aot.compile(b.module(), targets=[name], storage="fp16").to_bytes()
        with running_on(DRIVER, tmp_path), aot.load(module, "vulkan") as program:
            found[name] = program({"x": given})["y"]
        (variant,) = read_module(module).variants
        texts = [vulkan_running.disassemble(e.spirv or b"") for e in variant.executables]
        assert any("OpAtomicXor" in text for text in texts) == (name != FULL)
        assert ("storageBuffer16BitAccess" in variant.features) == (name == FULL)
        assert "shaderFloat16" not in variant.features
    largest = np.abs(found["vulkan-1.1"]).max()
    np.testing.assert_allclose(found[FULL], found["vulkan-1.1"], rtol=0, atol=2 * HALF * largest)
