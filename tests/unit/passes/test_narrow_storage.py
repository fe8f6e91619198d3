"""`--storage fp16`: what is stored in 16 bits, what must not be, and that results stay right.

Golden texts of the pass are in tests/golden/passes/narrow-storage; kernels on f16 are in
test_half_kernels.py and test_op_samples.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import aot
from aot.analysis.half import f16_range_issue, squares
from aot.builder import Builder
from aot.cli.text import compile_summary
from aot.driver.pipeline import read_model
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.text.printer import print_module
from aot.ir.types import DType
from aot.ir.verifier import verify
from aot.ops.structure import REGION
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.fuse import fuse
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.passes.quantise import narrow_storage
from aot.passes.quantise.narrow_storage import NARROW_STORAGE, choose, narrow
from aot.target.selection import load
from aot.tools.agreement import compare
from tests.support import vulkan_device
from tests.support.fresh_process import digest_in_fresh_process
from tests.support.models import MODELS, all_runs, compiled, feeds, model_path, reference
from tests.support.random_graphs import Graph, difference, graphs
from tests.support.vulkan_graph import run_on_driver
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
TARGETS = ("x86-64-v3", "x86-64-v2", "host")
TOLERANCE = 1e-2  # of each output's largest magnitude
# Their inputs are noise, and some of their many probabilities stand on the edge: ONNX Runtime, with
# nothing but its weights rounded to f16, is off by 0.038 and 0.014.
TOLERANCES = {"ppocr_det": 6e-2, "ppocr_rec": 2.5e-2}


@pytest.fixture(autouse=True, scope="module")
def narrow_what_is_small() -> Iterator[None]:
    """Test graphs save too little to be narrowed otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrow_storage, "LEAST_SAVED", 0)
        yield


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic", "thumbv7em"])
@pytest.mark.parametrize("width", [4, 16, 24, 128])
def test_no_module_is_larger_than_in_float32(
    target: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_storage, "LEAST_SAVED", 2048)
    b = Builder()
    weights = np.random.default_rng(0).standard_normal((width, width), np.float32)
    b.output("y", b.op("relu", b.op("matmul", b.input("x", f"f32[1, {width}]"), weights)))
    module = b.module()
    sizes = [
        len(aot.compile(module, targets=[target], storage=storage).to_bytes())
        for storage in ("fp16", "fp32")
    ]
    assert sizes[0] <= sizes[1]
    if width == 128:
        assert sizes[0] < 0.75 * sizes[1]


def narrowed(module: Module, target: str = "x86-64-v3", disable: tuple[str, ...] = ()) -> Module:
    """The module after all passes up to narrow-storage, regions and all."""
    options = CompileOptions(targets=(target,), storage="fp16", disable=disable)
    made = read_model(module, options)
    context = PassContext(options, load(target))
    last = TARGET_PASSES.index(NARROW_STORAGE)
    run_passes(made, (*MODEL_PASSES, *TARGET_PASSES[: last + 1]), context)
    verify(made)
    return made


# constants


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0.1, -65504], ""),
        ([65505, 1], "too_large"),
        ([np.inf, -np.inf, np.nan, 1 / 3], ""),
        ([np.inf, 1e5], "too_large"),
        ([1e-5, -2e-7], "too_small"),
        ([2.0**-24, 2.0**-15], ""),  # exact, if not normal
        ([2.0**-14, 1e-8], ""),
        ([2049, 3], "whole"),
        ([2048, 4096, 6144], ""),
        ([2049, 0.5], ""),
        ([0, 0], ""),
        ([], ""),
    ],
)
def test_what_f16_holds(values: list[float], reason: str) -> None:
    assert f16_range_issue(np.array(values, np.float32)) == reason


def constants_of(*sizes: int) -> dict[int, DType]:
    """By their sizes, the dtypes of constants that a region each multiplies by."""
    b = Builder()
    for number, size in enumerate(sizes):
        x = b.input(f"x{number}", f"f32[{size}]")
        b.output(f"y{number}", b.op("mul", x, np.linspace(0.1, 1, size, dtype=np.float32)))
    module = b.module()
    fuse(module.main)
    narrow(module.main, choose(module.main))
    found = [op.result.type for op in module.main.block if op.record is CONSTANT]
    return {t.shape[0]: t.dtype for t in found}


def test_the_smallest_constants_stay_as_they_are() -> None:
    """At most 1/128 of the bytes, the smallest first; and what fills half a slot of rodata."""
    found = constants_of(16, 17, 100, 101, 50_000)
    assert [n for n, dtype in found.items() if dtype is DType.F32] == [16, 17, 100, 101]
    found = constants_of(16, 17, 100, 101, 20_000)  # a budget of 157 floats
    assert [n for n, dtype in found.items() if dtype is DType.F32] == [16, 17, 100]
    found = constants_of(16, 17, 18)
    assert [n for n, dtype in found.items() if dtype is DType.F32] == [16]


def test_a_constant_that_must_stay_takes_of_the_budget() -> None:
    b = Builder()
    arrays = (np.full(300, 1e5), np.linspace(0, 1, 100), np.ones(50_000) / 3)
    for number, array in enumerate(arrays):
        x = b.input(f"x{number}", f"f32[{len(array)}]")
        b.output(f"y{number}", b.op("mul", x, array.astype(np.float32)))
    function = b.module().main
    fuse(function)
    choice = choose(function)
    assert choice.counts == {
        "constants": 2,
        "constant_bytes_saved": 2 * 50_100,
        "activations": 0,
        "constants_small": 0,
        "constants_too_large": 1,
        "constants_too_small": 0,
        "constants_whole": 0,
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [("nvidia", DType.F32), ("nvidia-matrix", DType.F16), ("x86-64-v3", DType.F32)],
)
def test_weights_of_matrices_are_all_halves(target: str, expected: DType) -> None:
    """The first product's weights are less than 1/128 of the bytes, and biases less than those."""
    b = Builder()
    rng = np.random.default_rng(0)
    x = b.input("x", "f32[40, 32]")
    for columns in (48, 1000, 400):
        terms = x.type.dims[1]
        weights = rng.standard_normal((terms, columns)).astype(np.float32)
        bias = rng.standard_normal(columns).astype(np.float32)
        x = b.op("relu", b.op("add", b.op("matmul", x, weights), bias))
    b.output("y", x)
    made = narrowed(b.module(), target)
    types = [op.result.type for op in made.main.block if op.record is CONSTANT]
    assert {t.dtype for t in types if t.dims == (32, 48)} == {expected}
    assert {t.dtype for t in types if t.dims == (48,)} == {DType.F32}


# activations


def stores_half(module: Module) -> bool:
    """Whether a region of the module stores f16."""
    regions = [op for op in module.main.block if op.record is REGION]
    return any(v.type.dtype is DType.F16 for op in regions for v in op.results)


def split(b: Builder, value: Any, name: str) -> Any:
    """`value` as a value that is stored: two outputs read it, so that no region takes it in."""
    value.name = name
    b.output(f"max_{name}", b.op("reduce_max", value, axes=(0,), keepdims=True))
    b.output(f"min_{name}", b.op("reduce_min", value, axes=(0,), keepdims=True))
    return value


def test_squares_are_found_across_regions() -> None:
    b = Builder()
    x = b.input("x", "f32[4, 8]")
    re = split(b, b.op("sin", x), "re")
    power = split(b, b.op("mul", re, re), "power")
    more = split(b, b.op("mul", power, b.op("sin", x)), "more")
    tame = split(b, b.op("log", b.op("add", power, np.float32(1))), "tame")
    plain = split(b, b.op("mul", tame, b.op("cos", x)), "plain")
    spread = b.op("reduce_sum", b.op("mul", plain, plain), axes=(1,), keepdims=True)
    variance = split(b, spread, "variance")
    b.output("y", b.op("div", plain, b.op("sqrt", variance)))
    b.output("more", b.op("exp", more))
    module = b.module()
    fuse(module.main)
    assert {v.name for v in squares(module.main)} >= {"re", "power", "more", "variance"}
    assert not {v.name for v in squares(module.main)} & {"tame", "plain", "x"}


def test_cubes_and_powers_count_and_roots_do_not() -> None:
    for exponent, is_square in ((2.0, True), (3.0, True), (0.5, False), (1.5, False)):
        b = Builder()
        x = b.input("x", "f32[4, 8]")
        y = split(b, b.op("sin", x), "y")
        split(b, b.op("pow", y, np.float32(exponent)), "z")
        function = b.module().main
        fuse(function)
        assert ({v.name for v in squares(function)} >= {"y", "z"}) is is_square, exponent


def test_numbers_beyond_f16_become_its_largest() -> None:
    b = Builder()
    x = b.input("x", "f32[2, 8]")
    y = split(b, b.op("mul", b.op("exp", x), np.float32(1e6)), "y")
    b.output("z", b.op("sub", y, b.op("reduce_max", y, axes=(1,), keepdims=True)))
    module = b.module()
    inputs = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)}
    assert stores_half(narrowed(module, disable=("fusion",)))
    with aot.load(aot.compile(module, storage="fp16", disable=("fusion",))) as program:
        found = program(inputs)
    assert (found["max_y"] == 65504).all()
    assert (found["z"] == 0).all()  # and no infinity less infinity


def test_infinities_and_nans_are_stored_as_they_are() -> None:
    b = Builder()
    x = b.input("x", "f32[1, 40]")
    y = split(b, b.op("mul", x, np.float32(0.5)), "y")
    b.output("z", b.op("mul", y, np.float32(2)))
    x_array = np.zeros((1, 40), np.float32)
    x_array[0, :5] = [np.inf, -np.inf, np.nan, 1e9, -131070]
    module = b.module()
    assert stores_half(narrowed(module, disable=("fusion",)))
    for target in TARGETS:
        data = aot.compile(module, targets=[target], storage="fp16", disable=("fusion",))
        with aot.load(data) as program:
            found = program({"x": x_array})["z"]
        wanted = x_array.copy()
        wanted[0, 3:5] = [2 * 65504, -2 * 65504]
        np.testing.assert_array_equal(found, wanted)


# the whole pass on random graphs


FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@FEW
@given(
    graphs(max_ops=10),
    st.integers(0, 9),
    st.sampled_from(TARGETS),
    st.sampled_from([(), ("fusion",)]),
)
def test_compiled_graphs_compute_what_the_narrowed_graph_says(
    graph: Graph, seed: int, target: str, disable: tuple[str, ...]
) -> None:
    inputs = graph.inputs(seed)
    try:
        oracle = narrowed(graph.module, target, disable)
        data = aot.compile(graph.module, targets=[target], storage="fp16", disable=disable)
    except aot.UnsupportedError:
        assume(False)
    note(print_module(oracle))
    expected = run(oracle.main, inputs)
    with aot.load(data) as program:
        found = list(program(inputs).values())
    problem = difference(oracle.main, inputs, expected, found)
    assert not problem, f"{target}: {problem}"


@pytest.mark.vulkan
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 9))
def test_narrowed_graphs_as_spirv(graph: Graph, seed: int) -> None:
    inputs = graph.inputs(seed)
    options = CompileOptions(targets=("vulkan-1.1",), storage="fp16", disable=("fusion",))
    try:
        oracle = narrowed(graph.module, "vulkan-1.1", ("fusion",))
        found = run_on_driver("lavapipe", graph.module.main, inputs, options)
    except aot.UnsupportedError:
        assume(False)
    note(print_module(oracle))
    problem = difference(oracle.main, inputs, run(oracle.main, inputs), found)
    assert not problem, problem


# the product


def test_an_unknown_storage_is_refused() -> None:
    with pytest.raises(aot.CompileError) as error:
        CompileOptions(storage="fp8")
    assert str(error.value) == "storage is 'fp8', expected one of fp32, fp16"


def test_stats_say_what_was_stored() -> None:
    b = Builder()
    x = b.input("x", "f32[4, 64]")
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    b.output("y", b.op("softmax", b.op("matmul", x, weights), axis=1))
    module = b.module()
    (variant,) = aot.compile(module, storage="fp16").stats["variants"]
    assert variant["storage"]["type"] == "fp16"
    assert variant["storage"]["constants"] == 1
    assert variant["storage"]["constant_bytes_saved"] == 64 * 64 * 2
    summary = compile_summary({"variants": [variant]}, "out.aotm", 1, 1)
    assert "1 constants and 0 activations in fp16, 8,192 bytes of constants saved" in summary
    (variant,) = aot.compile(module).stats["variants"]
    assert variant["storage"] == {"type": "fp32"}
    assert "saved" not in compile_summary({"variants": [variant]}, "out.aotm", 1, 1)


@pytest.mark.models
def test_equal_bytes_in_every_process() -> None:
    path, targets = model_path("silero_vad_16k"), ["x86-64-v3", "aarch64-generic"]
    data = aot.compile(path, targets=targets, storage="fp16").to_bytes()
    again = digest_in_fresh_process(path, targets, storage="fp16", PYTHONHASHSEED="3")
    assert again == hashlib.sha256(data).hexdigest()


# of every kind, one with a tolerance of its own among them; the others with -m sweep
NARROWED = (
    *("squeezenet_rw", "silero_vad_16k", "minilm_l3", "ppocr_rec", "smart_turn_qdq"),
    *("oww_mel", "magika"),
)


@pytest.mark.models
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in NARROWED else [pytest.mark.sweep], id=n) for n in MODELS],
)
def test_models_are_half_as_large_and_nearly_the_same(name: str) -> None:
    full = compiled(name)
    module = aot.compile(model_path(name), storage="fp16")
    ratio = module.stats["rodata"]["bytes_kept"] / full.stats["rodata"]["bytes_kept"]
    low, high = (0.9, 1.0) if name == "smart_turn_qdq" else (0.49, 0.51)  # its weights are bytes
    assert low <= ratio <= high
    with aot.load(module) as program:
        for run_name in all_runs(name):
            outputs = program(feeds(name, run_name))
            for output, wanted in reference(name, run_name).items():
                agreement = compare(output, outputs[output], wanted)
                assert agreement.error <= TOLERANCES.get(name, TOLERANCE), (run_name, agreement)


@pytest.mark.vulkan
@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet_rw", "minilm_l3"])
def test_models_on_a_gpu(name: str, tmp_path: Path) -> None:
    module = aot.compile(model_path(name), targets=["vulkan-1.1"], storage="fp16").to_bytes()
    for driver in vulkan_device.DRIVERS:
        with running_on(driver, tmp_path), aot.load(module, "vulkan") as program:
            found = program(feeds(name))
        for output, wanted in reference(name).items():
            assert compare(output, found[output], wanted).error <= TOLERANCE, driver
