"""Every entry of PyTorch's table against torch itself: shapes, types, axes, open dims.

A test is one export of many functions of the same inputs, as an export takes longer than they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.torch_modules import Functions, check


def named(t: Any, names: str) -> Functions:
    """Functions of torch by their names."""
    return {name: getattr(t, name) for name in names.split()}


OPEN = {0: "rows", 1: "columns"}


def test_functions_of_floats(t: Any) -> None:
    names = (
        "abs neg ceil floor round trunc fix sign relu cos sin tan exp exp2 expm1 erf erfc "
        "sigmoid tanh atan asinh sinh cosh square reciprocal isnan isinf isfinite logical_not sgn"
    )
    x = t.cat([t.randn(3, 5), t.tensor([[0.0, -0.0, 1e-4, 20.5, -2.5]])])
    check(named(t, names), [x], {"x0": OPEN}, [[t.randn(2, 7) * 4], [t.randn(1, 1)]])


def test_functions_of_positive_floats(t: Any) -> None:
    x = t.rand(4, 3) * 3 + 1
    check(
        named(t, "log log2 log10 log1p sqrt rsqrt acosh"),
        [
            x,
        ],
        {"x0": OPEN},
        [[x[:2, :1]]],
    )
    check(named(t, "asin acos atanh log1p"), [t.rand(3, 5) * 1.8 - 0.9])


def test_functions_of_integers(t: Any) -> None:
    x = t.tensor([[3, -4, 0], [7, 1, -2]])
    float_names = "cos exp sigmoid tanh erf expm1 atan reciprocal sin sinh"
    check(named(t, f"abs neg sign square isnan isinf logical_not bitwise_not {float_names}"), [x])
    more: dict[str, Callable[..., Any]] = {
        "ceil": t.ceil,
        "floor": t.floor,
        "trunc": t.trunc,
        "round": t.round,
        "sum": t.sum,
    }
    check(more, [x.to(t.int32)])
    check({"abs": t.abs, "sign": t.sign}, [x.abs().to(t.uint8)])
    check({"not": t.bitwise_not, "lnot": t.logical_not, "sum": t.sum, "any": t.any}, [x > 0])


def test_arithmetic_and_promotion(t: Any) -> None:
    x, y, i = t.randn(3, 4), t.randn(4) + 3, t.tensor([[1], [-2], [3]])
    functions: Functions = {
        "add": lambda x, y, i: x + y,
        "add alpha": lambda x, y, i: t.add(x, y, alpha=2),
        "sub alpha": lambda x, y, i: t.sub(i, i, alpha=3),
        "rsub": lambda x, y, i: 2 - x,
        "rsub integers": lambda x, y, i: 1.5 - i,
        "mixed": lambda x, y, i: x * i,
        "mixed number": lambda x, y, i: i * 2.5,
        "whole": lambda x, y, i: i * 2 + 1,
        "truths": lambda x, y, i: (x > 0) + (i > 0),
        "truths mul": lambda x, y, i: (x > 0) * (i > 0),
        "truth and number": lambda x, y, i: (x > 0) * 3,
        "div": lambda x, y, i: x / y,
        "div integers": lambda x, y, i: i / 2,
        "div trunc": lambda x, y, i: t.div(i, 2, rounding_mode="trunc"),
        "div floor": lambda x, y, i: t.div(x, y, rounding_mode="floor"),
        "floor": lambda x, y, i: i // 2,
        "floor floats": lambda x, y, i: x // 0.75,
        "fmod": lambda x, y, i: t.fmod(x, 0.75),
        "remainder": lambda x, y, i: x % y,
        "remainder negative": lambda x, y, i: i % -2,
        "pow": lambda x, y, i: t.pow(x, 3),
        "pow tensor": lambda x, y, i: t.pow(y, x),
        "pow base": lambda x, y, i: 2.0**x,
        "pow integers": lambda x, y, i: i**3,
        "pow root": lambda x, y, i: y**0.5,
        "maximum": lambda x, y, i: t.maximum(x, y - 3),
        "minimum": lambda x, y, i: t.minimum(x, i.float()),
        "fmax": lambda x, y, i: t.fmax(x / (x > 0), y),
        "fmin": lambda x, y, i: t.fmin(x, y - 3),
        "atan2": lambda x, y, i: t.atan2(x, i),
        "addcmul": lambda x, y, i: t.addcmul(x, x, y, value=0.5),
        "addcdiv": lambda x, y, i: t.addcdiv(x, x, y, value=2),
        "lerp": lambda x, y, i: t.lerp(x, y, 0.25),
        "clamp": lambda x, y, i: t.clamp(x, -0.5, 0.5),
        "clamp min": lambda x, y, i: x.clamp(min=0.1),
        "clamp max": lambda x, y, i: i.clamp(max=1),
        "clamp tensor": lambda x, y, i: t.clamp(x, y - 4, y - 3),
        "clamp type": lambda x, y, i: i.clamp(0.5, 1.5),
        "shift": lambda x, y, i: (i << 2) + (i >> 1),
        "bits": lambda x, y, i: (i & 3) | (i ^ 5),
    }
    check(functions, [x, y, i], {"x0": {0: "n"}, "x1": None, "x2": {0: "n"}}, [[x[:2], y, i[:2]]])


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_quotients_of_large_integers(t: Any, name: str) -> None:
    """Where the product of a rest and its divisor is beyond the type."""
    info = t.iinfo(getattr(t, name))
    near = (info.min, info.min // 2, info.min // 3, 0, info.max // 3, info.max // 2, info.max)
    numbers = [c + s for c in near for s in (-2, -1, 0, 1, 2) if info.min <= c + s <= info.max]
    pairs = [(a, b) for a in numbers for b in numbers if b and (a, b) != (info.min, -1)]
    x, y = (t.tensor(column, dtype=getattr(t, name)) for column in zip(*pairs, strict=True))
    functions: Functions = {
        "remainder": lambda x, y: x % y,
        "floor": lambda x, y: x // y,
        "div floor": lambda x, y: t.div(x, y, rounding_mode="floor"),
        "div trunc": lambda x, y: t.div(x, y, rounding_mode="trunc"),
        "fmod": t.fmod,
    }
    check(functions, [x, y], {"x0": {0: "n"}, "x1": {0: "n"}}, [[x[:3], y[:3]]])


def test_roots_and_thresholds_of_special_values(t: Any) -> None:
    x = t.tensor([-math.inf, -3.0, -0.0, 0.0, 1.0, 2.0, math.inf, math.nan])
    calls = {
        "root": lambda x: x**0.5,
        "reciprocal root": lambda x: x**-0.5,
        "threshold": lambda x: t.threshold(x, 1.0, 7.0),
    }
    check(calls, [x])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_quotients_of_floats_that_round_to_whole_ones(t: Any, name: str) -> None:
    """No difference is near enough for another remainder or quotient to pass."""
    dtype = getattr(t, name)
    above = [1, 5.5, 6, 0.84, 1e2, -1, -5.5, 3e-5, -0.0, 0, 7, -7, -1e-40, 41, 2.5, -2.5, 1]
    below = [0.1, 1.1, 0.2, 0.02, 3, 0.1, -1.1, 1e-6, 3, -3, math.inf, math.inf, 1, 41, -0.1, 0, 0]
    x, y = t.tensor(above), t.tensor(below)
    functions: Functions = {
        "remainder": lambda x, y: (x.to(dtype) % y.to(dtype)).to(t.float64),
        "fmod": lambda x, y: t.fmod(x.to(dtype), y.to(dtype)).to(t.float64),
        "floor": lambda x, y: (x.to(dtype) // y.to(dtype)).to(t.float64),
        "remainder number": lambda x, y: (x.to(dtype) % 0.1).to(t.float64),
        "floor number": lambda x, y: (x.to(dtype) // 0.1).to(t.float64),
    }
    check(functions, [x, y], {"x0": {0: "n"}, "x1": {0: "n"}}, [[x[:3], y[:3]]], tolerance=0.0)


def test_comparisons_and_choices(t: Any) -> None:
    x, i = t.randn(3, 4).round(decimals=1), t.tensor([0, 1, 2, 1])
    functions: Functions = {
        "eq": lambda x, i: x == i,
        "ne": lambda x, i: i != 1,
        "lt": lambda x, i: x < 0.3,
        "le": lambda x, i: i <= 1,
        "gt": lambda x, i: i > 0.5,
        "ge": lambda x, i: x >= i,
        "truths": lambda x, i: (x > 0) == (i > 0),
        "truths less": lambda x, i: (x > 0) < (i > 0),
        "and": t.logical_and,
        "or": lambda x, i: t.logical_or(x > 0, i),
        "xor": lambda x, i: t.logical_xor(x > 0, i),
        "masks": lambda x, i: ((x > 0) & (i > 0)) | ~(x > 1) ^ (i > 1),
        "where": lambda x, i: t.where(x > 0, x, i),
        "where number": lambda x, i: t.where(x > 0, x, 0.5),
        "where integers": lambda x, i: t.where(i > 0, i, -1),
        "fill": lambda x, i: x.masked_fill(i > 1, -math.inf),
        "fill whole": lambda x, i: i.masked_fill(i > 1, 7),
        "cast": lambda x, i: (x * 3).to(t.int32),
        "to truth": lambda x, i: i.bool(),
        "to float": lambda x, i: i.to(t.float64),
        "half": lambda x, i: x.half(),
        "type as": lambda x, i: i.type_as(x),
        "isin": lambda x, i: t.isin(i, t.tensor([1, 5])),
    }
    check(functions, [x, i])


ACTIVATIONS = (
    "relu6 silu mish hardswish hardsigmoid hardtanh elu selu celu gelu softplus leaky_relu "
    "softsign tanhshrink logsigmoid hardshrink softshrink relu"
)


def test_activations(t: Any, nn: Any) -> None:
    functions: Functions = {
        **named(nn, ACTIVATIONS),
        "gelu tanh": lambda x: nn.gelu(x, approximate="tanh"),
        "leaky": lambda x: nn.leaky_relu(x, 0.3),
        "elu alpha": lambda x: nn.elu(x, 2.0),
        "softplus beta": lambda x: nn.softplus(x, beta=2, threshold=3),
        "threshold": lambda x: nn.threshold(x, 0.1, 20),
        "prelu": lambda x: nn.prelu(x, t.tensor([0.1, 0.2, 0.3])),
        "prelu one": lambda x: nn.prelu(x, t.tensor([0.1])),
        "glu": lambda x: nn.glu(x, 2),
        "dropout": lambda x: nn.dropout(x, 0.5, training=False),
    }
    x = t.randn(2, 3, 4) * 3
    check(functions, [x], {"x0": {0: "n"}}, [[t.randn(5, 3, 4)]], tolerance=4e-6)


def test_reductions(t: Any) -> None:
    functions: Functions = {
        "sum": lambda x: x.sum(),
        "sum axis": lambda x: x.sum(-1),
        "sum axes": lambda x: x.sum((0, -1), keepdim=True),
        "sum type": lambda x: (x > 0).sum(1),
        "mean": lambda x: x.mean((1, 2)),
        "mean all": lambda x: x.mean(),
        "mean type": lambda x: (x > 0).long().mean(1, dtype=t.float32),
        "prod": lambda x: x.prod(1),
        "prod all": lambda x: x.prod(),
        "amax": lambda x: x.amax((0, 2)),
        "amin": lambda x: x.amin(-2, keepdim=True),
        "max": lambda x: x.max(),
        "min": lambda x: x.min(),
        "max axis": lambda x: tuple(x.max(1)),
        "max places": lambda x: x.max(-1, keepdim=True).indices,
        "min axis": lambda x: x.min(0).values,
        "any": lambda x: (x > 1).any(),
        "any axis": lambda x: (x > 1).any(1),
        "all": lambda x: (x > -1).all(-1, keepdim=True),
        "argmax": lambda x: x.argmax(1),
        "argmax all": lambda x: x.argmax(),
        "argmin": lambda x: x.argmin(-1, keepdim=True),
        "var": lambda x: x.var(1),
        "var plain": lambda x: x.var((1, 2), unbiased=False, keepdim=True),
        "std": lambda x: x.std(-1),
        "var mean": lambda x: tuple(t.var_mean(x, 2)),
        "norm": lambda x: x.norm(dim=1),
        "norm 1": lambda x: t.linalg.vector_norm(x, 1, 2),
        "norm 3": lambda x: t.linalg.vector_norm(x, 3, (1, 2), keepdim=True),
        "norm inf": lambda x: t.linalg.vector_norm(x, math.inf, -1),
        "norm 0": lambda x: t.linalg.vector_norm(x, 0, -1),
        "normalize": lambda x: t.nn.functional.normalize(x, dim=1),
        "logsumexp": lambda x: t.logsumexp(x, (1, 2)),
        "softmax": lambda x: x.softmax(1),
        "softmax last": lambda x: t.softmax(x, -1),
        "log softmax": lambda x: t.log_softmax(x, -2),
        "cumsum": lambda x: x.cumsum(1),
        "cumsum whole": lambda x: (x > 0).cumsum(-1),
        "cumprod": lambda x: x.cumprod(2),
        "count": lambda x: t.count_nonzero(x > 0, 1),
    }
    check(
        functions,
        [t.randn(3, 4, 5)],
        {"x0": {0: "n", 1: "m"}},
        [[t.randn(2, 7, 5)]],
        tolerance=5e-6,
    )


def test_reductions_of_numbers(t: Any) -> None:
    """Tensors without dims."""
    check(
        {
            "sum": lambda x: x.sum(),
            "axis": lambda x: x.sum(0),
            "max": lambda x: tuple(x.max(0)),
            "argmax": lambda x: x.argmax(),
            "softmax": lambda x: x.softmax(0),
            "cumsum": lambda x: x.cumsum(0),
            "mean": lambda x: x.mean(),
            "transpose": lambda x: x.t(),
            "expand": lambda x: x.expand(3),
            "reshape": lambda x: x.reshape(1, 1),
            "sort": lambda x: tuple(x.sort()),
        },
        [t.tensor(2.5)],
    )


def test_orders(t: Any) -> None:
    x = t.tensor([[3.0, -1.0, 2.0, 3.5], [0.5, 7.0, -2.0, 1.5], [9.0, 8.0, 7.5, -1.0]])
    check(
        {
            "topk": lambda x: tuple(x.topk(2)),
            "topk first": lambda x: tuple(x.topk(2, dim=0, largest=False)),
            "sort": lambda x: tuple(x.sort()),
            "sort down": lambda x: tuple(x.sort(0, descending=True)),
            "stable": lambda x: tuple(t.sort(x.round(), stable=True, dim=1)),
            "argsort": lambda x: x.argsort(-1, descending=True),
            "search": lambda x: t.searchsorted(t.tensor([0.0, 1.0, 3.0]), x),
            "search right": lambda x: t.searchsorted(t.tensor([0.0, 1.0, 3.0]), x, right=True),
            "buckets": lambda x: t.bucketize(x, t.tensor([0.5, 3.0]), out_int32=True),
        },
        [x],
    )


def test_shapes(t: Any) -> None:
    functions: Functions = {
        "reshape": lambda x: x.reshape(-1, 4),
        "view": lambda x: x.view(x.shape[0], -1),
        "flatten": lambda x: x.flatten(1),
        "unflatten": lambda x: x.unflatten(-1, (2, 2)),
        "squeeze": lambda x: x.squeeze(1),
        "squeeze all": lambda x: x[:, :, :1].squeeze(),
        "unsqueeze": lambda x: x.unsqueeze(-1),
        "permute": lambda x: x.permute(3, 0, -2, 1),
        "transpose": lambda x: x.transpose(0, -1),
        "swap": lambda x: x.swapaxes(1, 2),
        "move": lambda x: x.movedim(-1, 0),
        "expand": lambda x: x.expand(-1, 3, -1, -1),
        "expand front": lambda x: x.expand(2, *x.shape),
        "repeat": lambda x: x.repeat(2, 1, 3, 1),
        "repeat front": lambda x: x.repeat(2, 1, 1, 1, 2),
        "interleave": lambda x: x.repeat_interleave(2, dim=2),
        "tile": lambda x: x.tile(1, 2),
        "roll": lambda x: x.roll(2, -1),
        "roll many": lambda x: x.roll((1, -1), (2, 3)),
        "flip": lambda x: x.flip(0, -1),
        "rot": lambda x: x.rot90(1, (2, 3)),
        "cat": lambda x: t.cat([x, x * 2, x], -1),
        "cat types": lambda x: t.cat([x, x.long()], 0),
        "stack": lambda x: t.stack([x, x + 1], -2),
        "chunk": lambda x: x.chunk(2, -1),
        "split": lambda x: x.split([1, 3], -1),
        "split even": lambda x: x.split(3, -1),
        "unbind": lambda x: x.unbind(-1),
        "tensor split": lambda x: x.tensor_split(3, -1),
        "diagonal": lambda x: x.diagonal(dim1=2, dim2=3),
        "diagonal off": lambda x: x.diagonal(1, 2, 3),
        "diagonal below": lambda x: x.diagonal(-2, 2, 3),
        "unfold": lambda x: x.unfold(2, 3, 2),
        "meshgrid": lambda x: t.meshgrid(x[0, 0, :, 0], x[0, 0, 0], indexing="ij"),
        "outer": lambda x: t.outer(x[0, 0, :, 0], x[0, 0, 0]),
    }
    check(functions, [t.randn(3, 1, 5, 4)], {"x0": {0: "n"}}, [[t.randn(2, 1, 5, 4)]])


def test_open_shapes(t: Any) -> None:
    functions: Functions = {
        "reshape": lambda x: x.reshape(x.shape[0] * x.shape[1], 4),
        "halves": lambda x: x[:, : x.shape[1] // 2],
        "ends": lambda x: x[:, -2:],
        "from": lambda x: x[:, 1:-1],
        "steps": lambda x: x[:, ::2],
        "last": lambda x: x[:, -1],
        "repeat": lambda x: x.repeat(1, 2, 1),
        "roll": lambda x: x.roll(1, 1),
        "unfold": lambda x: x.unfold(1, 3, 1),
        "arange": lambda x: t.arange(x.shape[1]),
        "floats": lambda x: t.arange(x.shape[1], dtype=t.float32) * 2,
        "scaled": lambda x: x * x.shape[1],
        "full": lambda x: t.full((x.shape[1], 2), 3),
        "zeros": lambda x: t.zeros(x.shape[:2]),
        "causal": lambda x: t.ones(x.shape[1], x.shape[1]).tril(),
        "eye": lambda x: t.eye(x.shape[1]),
        "cat": lambda x: t.cat([x, x[:, :2]], 1),
        "flip": lambda x: x.flip(1),
        "pad": lambda x: t.nn.functional.pad(x, (1, 2, 3, 0)),
        "reflect": lambda x: t.nn.functional.pad(x.transpose(1, 2), (2, 1), mode="reflect"),
        "sort": lambda x: x.sort(1).values,
        "diagonal": lambda x: (x @ x.transpose(1, 2)).diagonal(dim1=1, dim2=2),
        "mean": lambda x: x.mean(1),
        "std": lambda x: x.std(1),
        "size": lambda x: t.tensor(1.0) * x.numel(),
    }
    check(functions, [t.randn(2, 6, 4)], {"x0": {1: "n"}}, [[t.randn(2, 9, 4)], [t.randn(2, 4, 4)]])


def test_slices(t: Any) -> None:
    functions: Functions = {
        "middle": lambda x: x[1:4],
        "negative": lambda x: x[-3:-1, ::2],
        "far": lambda x: x[2:100],
        "empty": lambda x: x[4:2],
        "select": lambda x: x[2],
        "select end": lambda x: x[:, -1],
        "none": lambda x: x[None, :, None],
        "dots": lambda x: x[..., 1:],
        "narrow": lambda x: x.narrow(1, 1, 3),
        "index select": lambda x: x.index_select(0, t.tensor([2, 0, 2])),
        "strided": lambda x: x.as_strided((2, 3), (3, 1), 4),
        "pad": lambda x: t.nn.functional.pad(x, (1, 2, 0, 3), value=2.5),
        "cut": lambda x: t.nn.functional.pad(x, (-1, 2)),
        "cut both": lambda x: t.nn.functional.pad(x, (-1, -2, 1, -1)),
        "constant": lambda x: t.nn.functional.pad(x[None], (1, 1), mode="replicate"),
        "circular": lambda x: t.nn.functional.pad(x[None], (2, 1), mode="circular"),
        "reflect": lambda x: t.nn.functional.pad(x[None, None], (2, 1, 0, 3), mode="reflect"),
    }
    check(functions, [t.randn(5, 7)])


def test_writes_of_slices(t: Any) -> None:
    def written(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def function(x: Any, y: Any, i: Any) -> Any:
            z = x.clone()
            change(z, (y, i))
            return z

        return function

    def put(z: Any, at: Any, value: Any) -> None:
        z[at] = value

    functions: Functions = {
        "slice": written(lambda z, m: put(z, slice(1, 3), m[0][:2])),
        "column": written(lambda z, m: put(z, (slice(None), 2), m[0][:, 0])),
        "steps": written(lambda z, m: put(z, (slice(None), slice(1, None, 2)), m[0][:, :2])),
        "steps number": written(lambda z, m: put(z, (slice(None, None, 3),), 7.0)),
        "end": written(lambda z, m: put(z, (slice(None), slice(-2, None)), 1.5)),
        "add": written(lambda z, m: z[1].add_(3)),
        "twice": written(lambda z, m: z[1:, 2:].mul_(2)),
        "row": written(lambda z, m: put(z, 0, m[0][1])),
        "list": written(lambda z, m: put(z, m[1], m[0][:2])),
        "list columns": written(lambda z, m: put(z, (slice(None), m[1]), m[0][:, :2])),
        "pairs": written(lambda z, m: put(z, (m[1], m[1]), m[0][0, :2])),
        "mask": written(lambda z, m: put(z, z > 0, 0.25)),
        "whole": written(lambda z, m: z.copy_(m[0])),
        "fill": written(lambda z, m: z[:, 1].fill_(4)),
        "view": written(lambda z, m: z.view(-1)[3:5].zero_()),
        "transposed": written(lambda z, m: z.t()[1].add_(m[0][:, 3])),
    }
    x, y = t.randn(4, 5), t.randn(4, 5)
    check(functions, [x, y, t.tensor([3, 1])])


def test_positions(t: Any) -> None:
    x, i, k = t.randn(4, 5, 6), t.tensor([[0, 2], [3, 1]]), t.tensor([1, -1])
    functions: Functions = {
        "one": lambda x, i, k: x[i],
        "second": lambda x, i, k: x[:, i],
        "negative": lambda x, i, k: x[k],
        "two": lambda x, i, k: x[i, k],
        "apart": lambda x, i, k: x[k, :, k],
        "apart matrix": lambda x, i, k: x[i, :, k],
        "later": lambda x, i, k: x[:, k, i],
        "three": lambda x, i, k: x[i, i, k],
        "column": lambda x, i, k: x[k[:, None], k],
        "gather": lambda x, i, k: x.gather(1, t.tensor([[[0], [3]]]).expand(4, 2, 6)),
        "gather smaller": lambda x, i, k: x[:, :, 0].gather(0, i),
        "along": lambda x, i, k: t.take_along_dim(x, x.argmax(1, keepdim=True), 1),
        "embedding": lambda x, i, k: t.nn.functional.embedding(i, x[:, 0]),
        "one hot": lambda x, i, k: t.nn.functional.one_hot(i, 5),
        "select": lambda x, i, k: x.index_select(-1, i[0]),
        "scatter": lambda x, i, k: x[0].scatter(0, i, x[1, :2, :2]),
        "scatter number": lambda x, i, k: x[0].scatter(1, i, 2.5),
        "scatter add": lambda x, i, k: x[0].scatter_add(1, i, x[1]),
        "scatter amax": lambda x, i, k: x[0].scatter_reduce(1, i, x[1, :2, :2], "amax"),
        "scatter sum": lambda x, i, k: x[0].scatter_reduce(0, i, x[1, :2, :2], "sum"),
        "index add": lambda x, i, k: x.index_add(1, i[0], x[:, :2], alpha=2),
        "index copy": lambda x, i, k: x.index_copy(0, i[1], x[:2]),
        "index fill": lambda x, i, k: x.index_fill(2, i[0], 3.0),
        "put": lambda x, i, k: x.index_put((i, i), t.tensor(1.5)),
        "put add": lambda x, i, k: x.index_put((k, k), x[0, 0], accumulate=True),
        "put apart": lambda x, i, k: t.ops.aten.index_put(x, (i, None, i), t.ones(2, 2, 5)),
    }
    check(functions, [x, i, k])


def test_creation(t: Any) -> None:
    functions: Functions = {
        "like": lambda x: t.zeros_like(x) + t.ones_like(x, dtype=t.int32),
        "full like": lambda x: t.full_like(x, 2.5),
        "new": lambda x: x.new_zeros(2, 3) + x.new_ones(3) + x.new_full((2, 1), 4),
        "full": lambda x: t.full((2, 3), True),
        "arange": lambda x: t.arange(2, 9, 3),
        "arange floats": lambda x: t.arange(0, 1, 0.3),
        "arange down": lambda x: t.arange(5, 0, -2),
        "linspace": lambda x: t.linspace(0, 1, 7),
        "eye": lambda x: t.eye(3, 4),
        "tril": lambda x: x.tril(-1),
        "triu": lambda x: x.triu(1),
        "constant": lambda x: x + t.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "hann": lambda x: t.hann_window(8),
        "scalar": lambda x: t.scalar_tensor(3.5),
        "tril places": lambda x: t.tril_indices(3, 3),
        "normal": lambda x: t.empty(2, 2).fill_(1.5),
    }
    check(functions, [t.randn(4, 4)])


def test_products(t: Any) -> None:
    x, y, v = t.randn(2, 3, 4), t.randn(2, 4, 5), t.randn(4)
    functions: Functions = {
        "matmul": lambda x, y, v: x @ y,
        "vector": lambda x, y, v: x @ v,
        "row": lambda x, y, v: v @ y,
        "mm": lambda x, y, v: t.mm(x[0], y[0]),
        "bmm": lambda x, y, v: t.bmm(x, y),
        "mv": lambda x, y, v: t.mv(x[0], v),
        "dot": lambda x, y, v: t.dot(v, v),
        "addmm": lambda x, y, v: t.addmm(y[0, :3], x[0], y[1], beta=0.5, alpha=2),
        "baddbmm": lambda x, y, v: t.baddbmm(y[:, :3], x, y),
        "linear": lambda x, y, v: t.nn.functional.linear(x, y[0].t(), y[0, 0]),
        "linear plain": lambda x, y, v: t.nn.functional.linear(v, y[0].t()),
        "einsum": lambda x, y, v: t.einsum("bij,bjk->bki", x, y),
        "einsum sum": lambda x, y, v: t.einsum("bij,j->b", x, v),
        "einsum trace": lambda x, y, v: t.einsum("...ij->...ji", x),
        "broadcast": lambda x, y, v: x[:, None] @ y[None],
        "integers": lambda x, y, v: (x * 3).long() @ (y * 3).long(),
        "chain": lambda x, y, v: t.linalg.multi_dot([x[0], y[0], y[1].t()]),
        "tensordot": lambda x, y, v: t.tensordot(x, y, dims=([2], [1])),
        "kron": lambda x, y, v: t.kron(x[0, :2, :2], y[0, :2, :2]),
        "cross": lambda x, y, v: t.linalg.cross(x[..., :3], x[..., 1:]),
        "cdist": lambda x, y, v: t.cdist(x, y.transpose(1, 2)),
    }
    shapes = {"x0": {0: "n"}, "x1": {0: "n"}, "x2": None}
    check(functions, [x, y, v], shapes, [[t.randn(3, 3, 4), t.randn(3, 4, 5), v]], tolerance=1e-5)


def test_complex_numbers(t: Any) -> None:
    def pair(x: Any) -> Any:
        return t.view_as_complex(x.reshape(2, 4, 2))

    functions: Functions = {
        "conjugate": lambda x: t.view_as_real(pair(x) * pair(x).conj()),
        "arithmetic": lambda x: t.view_as_real((pair(x) + 1) * 2 - pair(x) / 3),
        "alpha": lambda x: t.view_as_real(t.sub(pair(x), pair(x).flip(0), alpha=2)),
        "quotient": lambda x: t.view_as_real(pair(x) / (pair(x).roll(1, 1) + 2)),
        "real factor": lambda x: t.view_as_real(x.reshape(2, 2, 4)[0] * pair(x)),
        "abs": lambda x: pair(x).abs(),
        "angle": lambda x: pair(x).angle(),
        "exp": lambda x: t.exp(pair(x)).real,
        "polar": lambda x: t.polar(x.abs(), x).imag,
        "complex": lambda x: t.complex(x, x * 2).abs(),
        "shapes": lambda x: t.cat([pair(x).t()[None], pair(x).t()[None]], 0)[..., 1:].imag,
        "sum": lambda x: pair(x).sum(1).real,
        "matrix": lambda x: t.view_as_real(pair(x) @ pair(x).t()),
        "square": lambda x: (pair(x) ** 2).real,
        "rotary": lambda x: t.view_as_real(
            pair(x) * t.polar(t.ones(2, 4), t.outer(t.arange(2.0), t.arange(4.0)))
        ).flatten(1),
    }
    check(functions, [t.randn(16)], tolerance=5e-6)


def test_fourier_transforms(t: Any) -> None:
    window = t.hann_window(8)
    functions: Functions = {
        "real": lambda x: t.view_as_real(t.fft.rfft(x)),
        "ortho": lambda x: t.fft.rfft(x, norm="ortho").abs(),
        "back": lambda x: t.fft.irfft(t.fft.rfft(x), n=9),
        "back odd": lambda x: t.fft.irfft(t.fft.rfft(x[:, :7]), n=7),
        "complex": lambda x: t.view_as_real(t.fft.fft(x)),
        "inverse": lambda x: t.fft.ifft(t.fft.fft(x)).real,
        "planes": lambda x: t.fft.fft2(x).abs(),
        "planes back": lambda x: t.fft.irfft2(t.fft.rfft2(x), s=(4, 9)),
        "shift": lambda x: t.fft.fftshift(t.fft.fft(x).real),
        "padded": lambda x: t.fft.rfft(x, n=12).imag,
        "frames": lambda x: t.stft(x, 8, return_complex=True, window=window).abs(),
        "frames plain": lambda x: (
            t.stft(
                x[0], 8, 3, 6, center=False, onesided=False, normalized=True, return_complex=True
            ).real
        ),
        "frames back": lambda x: t.istft(
            t.stft(x, 8, return_complex=True, window=window), 8, window=window
        ),
    }
    check(functions, [t.randn(4, 9)], tolerance=2e-5)
