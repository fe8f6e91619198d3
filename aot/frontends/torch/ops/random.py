"""PyTorch's random tensors, determined by the compile's seed (`aot.frontends.lib.random`).

A node's name makes its numbers differ from those of other nodes. They are not those that torch
draws, but have the same distribution.
"""

from __future__ import annotations

from typing import Any

from aot.frontends.lib import random
from aot.frontends.torch.table import Node, Number, UnsupportedNodeError, torch_op
from aot.ir.graph import Value
from aot.ir.types import DType

F32 = DType.F32


def _uniform(n: Node) -> Value:
    return random.uniform(n, n.dims, f"{n.seed} node {n.label}")


def _normal(n: Node) -> Value:
    return random.normal(n, n.dims, f"{n.seed} node {n.label}")


@torch_op("aten.rand.default", "aten.rand_like.default")
def rand(n: Node, *arguments: Any) -> Value:
    return n.cast(_uniform(n), n.dtype)


@torch_op("aten.randn.default", "aten.randn_like.default")
def randn(n: Node, *arguments: Any) -> Value:
    return n.cast(_normal(n), n.dtype)


@torch_op("aten.randint.default", "aten.randint_like.default")
def randint_below(n: Node, like: Any, high: int, *arguments: Any) -> Value:
    # of randint the first argument is the bound, of randint_like the second
    return _whole(n, 0, like if isinstance(like, int) else high)


@torch_op("aten.randint.low", "aten.randint_like.low_dtype")
def randint(n: Node, first: Any, second: int, third: Any, *arguments: Any) -> Value:
    low, high = (first, second) if isinstance(first, int) else (second, third)
    return _whole(n, low, high)


def _whole(n: Node, low: int, high: int) -> Value:
    """Random integers from `low` up to, but not including, `high`."""
    if not isinstance(low, int) or not isinstance(high, int) or high - low > 1 << 24:
        raise UnsupportedNodeError("random integers of more than 2^24 values are not supported")
    numbers = n("floor", n("mul", _uniform(n), float(high - low)))
    last = n("minimum", numbers, float(high - low - 1))  # a product may be rounded up
    return n("add", n.cast(last, n.dtype), low)


@torch_op("aten.bernoulli.default")
def bernoulli(n: Node, x: Value) -> Value:
    return n.cast(n("less", _uniform(n), n.cast(x, F32)), n.dtype)


@torch_op("aten.bernoulli.p")
def bernoulli_of(n: Node, x: Value, p: Number) -> Value:
    return n.cast(n("less", _uniform(n), float(p)), n.dtype)


@torch_op("aten.normal_functional.default")
def normal(n: Node, x: Value, mean: Number, deviation: Number) -> Value:
    scaled = n("mul", _normal(n), float(deviation))
    return n.cast(n("add", scaled, float(mean)), n.dtype)


@torch_op("aten.uniform.default")
def uniform(n: Node, x: Value, low: Number, high: Number) -> Value:
    scaled = n("mul", _uniform(n), float(high) - float(low))
    return n.cast(n("add", scaled, float(low)), n.dtype)
