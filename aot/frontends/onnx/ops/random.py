"""ONNX's random tensors as constants: numbers that a seed decides, the same in every run.

A program computes the same results from the same inputs. The seed is the node's, or else its
name's, so that nodes differ from one another; distributions are right, and no run differs from
another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType


def _generator(node: Node) -> np.random.Generator:
    seed = repr(node.float_attr("seed")) if node.has("seed") else f"node {node.label}"
    digest = hashlib.sha256(seed.encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))


def _drawn(node: Node, extents: Sequence[Dim], dtype: DType) -> Value:
    shape = static_extents(extents, "a random tensor of a shape")
    count = int(np.prod(shape))
    node.check_computed(count, "the random tensor")
    generator = _generator(node)
    if node.op_type.startswith("RandomNormal"):
        numbers = generator.standard_normal(shape)
        numbers = numbers * node.float_attr("scale", 1.0) + node.float_attr("mean", 0.0)
    else:
        low, high = node.float_attr("low", 0.0), node.float_attr("high", 1.0)
        numbers = generator.random(shape) * (high - low) + low
    return node.constant(numbers.astype(dtype.numpy))


def _dtype(node: Node, usual: DType) -> DType:
    try:
        return dtype_of(node.int_attr("dtype")) if node.has("dtype") else usual
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None


@onnx_op("RandomNormal", "RandomUniform")
def random_tensor(node: Node) -> Value:
    return _drawn(node, node.ints_attr("shape"), _dtype(node, DType.F32))


@onnx_op("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node) -> Value:
    x = node.input(0)
    return _drawn(node, x.type.dims, _dtype(node, x.type.dtype))
