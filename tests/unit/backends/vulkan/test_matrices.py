"""Shaders whose subgroups multiply matrices: valid, and what they declare and require.

Kernels are run in tests/unit/kernels/test_matrices.py.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from aot.backends.vulkan.emit import compile_kernel
from aot.errors import InternalError
from aot.kernels.ir.nodes import MatrixDot, MatrixProduct, walk
from aot.link.image import VariantImage
from aot.link.reader import read_module
from aot.target import selection as targets
from tests.support import vulkan_running
from tests.support.matrix_products import CASES, TARGETS, kept_busy, product

OWN = {"cooperativeMatrix", "computeFullSubgroups", "vulkanMemoryModel", "subgroupBasic"}
SHAPES = {
    "nvidia-matrix": ("cooperativeMatrix[16x16x16 f16*f16+f32]", "subgroupSize[32]"),
    "lavapipe-matrix": ("cooperativeMatrix[8x8x8 f16*f16+f32]", "subgroupSize[8]"),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_shaders_are_valid(case: str, name: str) -> None:
    target = kept_busy(name)
    shader = vulkan_running.build(CASES[case].lowered(target, 16), target)
    assert set(shader.features) >= {*OWN, *SHAPES[name]}
    text = vulkan_running.disassemble(shader.words)
    assert "OpMemoryModel Logical Vulkan" in text
    assert 'OpExtension "SPV_KHR_cooperative_matrix"' in text
    assert 'OpExtension "SPV_KHR_vulkan_memory_model"' in text


def shared_accesses(text: str) -> list[str]:
    """The loads and stores of what lanes share."""
    pointers = set(re.findall(r"(%\d+) = OpTypePointer Workgroup", text))
    chains = {
        made
        for made, type_ in re.findall(r"(%\d+) = OpAccessChain (%\d+)", text)
        if type_ in pointers
    }
    accesses = re.findall(r"Op(?:Cooperative\w+|Load|Store) .*", text)
    return [a for a in accesses if chains & set(re.findall(r"%\d+", a))]


def test_what_lanes_share_is_made_visible() -> None:
    target = targets.load("lavapipe-matrix")
    shader = vulkan_running.build(CASES["conv"].lowered(target, 16), target)
    accesses = shared_accesses(vulkan_running.disassemble(shader.words))
    kinds = {a.split()[0] for a in accesses}
    assert kinds >= {"OpStore", "OpLoad", "OpCooperativeMatrixLoadKHR"}
    for access in accesses:
        is_store = "Store" in access.split()[0]
        wanted = "MakePointerAvailable" if is_store else "MakePointerVisible"
        assert f"{wanted}|NonPrivatePointer" in access


def test_a_matrix_is_loaded_once_for_all_its_products() -> None:
    """A subgroup has two rows and four columns of matrices, and two of them along the sum."""
    target = targets.load("nvidia-matrix")
    kernel = product(2048, 64, 1024).lowered(target, 16)
    products = sum(isinstance(s, MatrixProduct) for s in walk(kernel.body))
    assert products == 1  # in loops that are written out
    text = vulkan_running.disassemble(compile_kernel(kernel, target).words)
    assert text.count("OpCooperativeMatrixMulAddKHR") == 2 * 2 * 4
    assert text.count("OpCooperativeMatrixLoadKHR") == 2 * (2 + 4)


def test_shared_memory_holds_four_neighbours_at_a_time() -> None:
    """Halves of both sides are stored and loaded as vectors of four, whose lines are whole."""
    target = kept_busy("nvidia-matrix")
    shader = vulkan_running.build(CASES["conv-of-points"].lowered(target, 16), target)
    text = vulkan_running.disassemble(shader.words)
    (half,) = re.findall(r"(%\d+) = OpTypeFloat 16", text)
    (quad,) = re.findall(rf"(%\d+) = OpTypeVector {half} 4", text)
    arrays = re.findall(rf"(%\d+) = OpTypeArray {quad} ", text)
    assert len(arrays) == 2
    stored = re.findall(rf"(%\d+) = OpCompositeConstruct {quad} ", text)
    assert stored
    assert all(re.search(rf"OpStore %\d+ {value} Make", text) for value in stored)


def model(dtype: type = np.float16) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    type_ = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    first, second = ((rng.standard_normal((64, n)) / 8).astype(dtype) for n in (64, 48))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "first"], ["p"]),
            helper.make_node("Sigmoid", ["p"], ["s"]),
            helper.make_node("MatMul", ["s", "second"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", type_, [1024, 64])],
        [helper.make_tensor_value_info("y", type_, [1024, 48])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def variant_of(found: onnx.ModelProto, target: str, storage: str = "fp32") -> VariantImage:
    data = aot.compile(found, targets=[target], storage=storage).to_bytes()
    (variant,) = read_module(data).variants
    return variant


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("is_half", [True, False])
def test_models_in_halves_multiply_matrices(name: str, is_half: bool) -> None:
    """Halves of their own; or as they are stored, which the model's inputs are not."""
    found = model(np.float16 if is_half else np.float32)
    variant = variant_of(found, name, "fp32" if is_half else "fp16")
    assert set(variant.features) >= {*OWN, *SHAPES[name]}
    for executable in variant.executables:
        vulkan_running.validate(executable.spirv or b"")


@pytest.mark.parametrize("name", TARGETS)
def test_long_epilogues_are_written_once_a_row_of_matrices(name: str) -> None:
    """A sigmoid is some hundred words, which a lane computes for four neighbours."""
    words = [len(e.spirv or b"") // 4 for e in variant_of(model(), name).executables]
    assert max(words) <= {"nvidia-matrix": 3000, "lavapipe-matrix": 4600}[name]


def test_models_in_floats_need_no_matrices() -> None:
    variant = variant_of(model(np.float32), "nvidia-matrix")
    assert not OWN & set(variant.features)


def test_a_cpu_s_products_are_no_shader() -> None:
    target = targets.load("lavapipe-matrix")
    kernel = CASES["product"].lowered(target, 16)
    wrong = MatrixDot.__new__(MatrixDot)
    with pytest.raises(InternalError, match="a CPU's products of matrices"):
        compile_kernel(replace(kernel, body=(*kernel.body, wrong)), target)
