"""Decompositions on a builder that knows no format: any importer may bring its own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aot.analysis.dim_values import DimValues
from aot.builder import Builder
from aot.errors import CompileError
from aot.frontends.lib import fourier, normalization, resize
from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.frontends.lib.recurrent import Layer, activations_of, recurrent
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.types import Array, DType
from tests.support.paths import ROOT


@dataclass
class Plain:
    """A GraphBuilder over the public builder, with nothing of ONNX."""

    b: Builder
    values: DimValues

    def emit(self, op: str, *operands: Value | None, **attrs: Attr) -> Value:
        (made,) = self.emit_all(op, *operands, **attrs)
        return made

    def emit_all(self, op: str, *operands: Value | None, **attrs: Attr) -> list[Value]:
        made: Any = self.b.op(op, *operands, **attrs)
        return list(made) if isinstance(made, Sequence) else [made]

    def constant(self, array: Array) -> Value:
        return self.b.constant(np.asarray(array))

    def scalar(self, value: float | int | bool, dtype: DType) -> Value:
        return self.constant(np.array(value, dtype.numpy))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.type.dims == tuple(shape) else self.emit("reshape", x, shape=tuple(shape))

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.emit("cast", x, to=dtype)

    def check_computed(self, elements: int, what: str) -> None:
        if elements > 1 << 12:
            raise self.error(f"{what} would have {elements} elements")

    def error(self, message: str) -> CompileError:
        return CompileError(f"here: {message}")


def plain() -> Plain:
    empty = Builder()
    empty.output("y", empty.input("x", "f32[1]"))
    return Plain(Builder(), DimValues(empty.module().main))


def computed(b: Plain, results: Sequence[Value], *inputs: Array) -> list[Array]:
    for number, result in enumerate(results):
        b.b.output(f"y{number}", result)
    return run(b.b.module().main, list(inputs))


def random(*dims: int) -> Array:
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32)


def test_a_plain_builder_is_one() -> None:
    builder: GraphBuilder = plain()
    assert builder.scalar(2, DType.F32).type.dims == ()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "aot/frontends/lib").glob("*.py")), ids=lambda p: p.name
)
def test_no_format_is_known(path: Any) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        known = ("aot.frontends.lib", "aot.ir", "aot.ops", "aot.analysis", "aot.errors")
        assert all(n.startswith(known) for n in names if n.startswith("aot")), names
        assert not any(n.split(".")[0] == "onnx" for n in names), names


@pytest.mark.parametrize("length", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_onesided", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(length: int, axis: int, is_onesided: bool, parts: int) -> None:
    x = random(5, 8, parts)
    b = plain()
    made = fourier.dft(
        b, b.b.input("x", f"f32[5, 8, {parts}]"), axis, length,
        is_inverse=False, is_onesided=is_onesided,
    )  # fmt: skip
    (y,) = computed(b, [made], x)
    expected = np.fft.fft(x[..., 0] + (1j * x[..., 1] if parts == 2 else 0), length, axis)
    if is_onesided:
        expected = np.take(expected, range(length // 2 + 1), axis)
    np.testing.assert_allclose(y, np.stack([expected.real, expected.imag], -1), atol=2e-5)


def test_a_transform_that_is_too_long_names_the_node() -> None:
    b = plain()
    with pytest.raises(CompileError) as caught:
        fourier.dft(b, b.b.input("x", "f32[99, 1]"), 0, 99, is_inverse=False, is_onesided=False)
    assert str(caught.value) == "here: the matrix of the transform would have 39204 elements"
    with pytest.raises(UnsupportedNodeError) as reason:
        fourier.dft(b, b.b.input("z", "f32[N, 1]"), 0, 9, is_inverse=False, is_onesided=False)
    assert str(reason.value) == "the number of elements depends on the input's shape"


@pytest.mark.parametrize("dims", [(2, 6), (2, 6, 3), (2, 6, 3, 4), (1, 4, 1, 5)])
def test_normalizations(dims: tuple[int, ...]) -> None:
    x, channels = random(*dims), dims[1]
    scale, bias, mean = (random(channels, 1)[:, 0] + n for n in range(3))
    variance = np.abs(scale) + 0.5
    b = plain()
    value = b.b.input("x", f"f32{list(dims)}")
    vectors = [b.constant(v) for v in (scale, bias, mean, variance)]
    batch = normalization.batch_normalization(b, value, *vectors, 1e-3)
    groups = normalization.grouped(b, value, 2)
    group = normalization.scaled(
        b, b.reshape(normalization.standardised(b, groups, (2,), 1e-3), dims), *vectors[:2]
    )
    found = computed(b, [batch, group], x)

    def along(v: Array) -> Array:
        return v.reshape(-1, *[1] * (len(dims) - 2))

    expected = (x - along(mean)) / np.sqrt(along(variance) + 1e-3) * along(scale) + along(bias)
    np.testing.assert_allclose(found[0], expected, atol=1e-4, rtol=1e-4)
    parts = x.reshape(dims[0], 2, -1)
    centred = parts - parts.mean(2, keepdims=True)
    normal = (centred / np.sqrt((centred**2).mean(2, keepdims=True) + 1e-3)).reshape(dims)
    np.testing.assert_allclose(found[1], normal * along(scale) + along(bias), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("is_batch_first", [False, True])
@pytest.mark.parametrize("names", [("tanh", "tanh"), ("tanh", "relu")])
def test_a_layer_of_two_directions(names: tuple[str, str], is_batch_first: bool) -> None:
    """Equal activations are one op, others two; both are what each direction is alone."""
    steps, batch, inputs, hidden = 4, 2, 3, 5
    x, w, r = random(steps, batch, inputs), random(2, hidden, inputs), random(2, hidden, hidden)
    b = plain()
    given = x.transpose(1, 0, 2) if is_batch_first else x
    value = b.b.input("x", f"f32{list(given.shape)}")
    kinds = [activations_of([name], (), ()) for name in names]
    attrs: dict[str, Attr] = {"hidden_size": hidden, "clip": 0.0}
    layer = Layer("rnn", "bidirectional", kinds, attrs, is_batch_first)
    made = recurrent(b, layer, [value, b.constant(w), b.constant(r), None, None, None])
    y, last = computed(b, made, given)
    functions = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0)}
    for direction, name in enumerate(names):
        h, order = np.zeros((batch, hidden)), range(steps)[:: 1 - 2 * direction]
        for step in order:
            h = functions[name](x[step] @ w[direction].T + h @ r[direction].T)
            found = y[:, step, direction] if is_batch_first else y[step, direction]
            np.testing.assert_allclose(found, h, atol=1e-4, rtol=1e-4)
        final = last[:, direction] if is_batch_first else last[direction]
        np.testing.assert_allclose(final, h, atol=1e-4, rtol=1e-4)


def test_an_activation_that_we_lack() -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        activations_of(["tanh", "swoosh"], (), ())
    assert str(caught.value) == "activation swoosh is not supported"


@pytest.mark.parametrize("size", [1, 3, 5, 7, 10, 13])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_along_one_dim(mode: str, size: int) -> None:
    x, b = random(2, 5), plain()
    value = b.b.input("x", "f32[2, 5]")
    axes = resize.by_sizes(b, value, (size,), (1,), "stretch", ())
    (y,) = computed(b, [resize.resized(b, value, resize.Options(mode), axes)], x)
    at = np.arange(size) * 5 / size
    nearest = x[:, np.floor(at).astype(int)]
    linear = [np.interp(at, range(5), row) for row in x]
    np.testing.assert_allclose(y, nearest if mode == "nearest" else linear, atol=1e-5)


def test_sizes_of_a_resize_that_are_wrong() -> None:
    b = plain()
    value = b.b.input("x", "f32[2, 5]")
    for sizes, message in (
        ((1, 2), "sizes has 2 numbers, expected 1"),
        ((-1,), "sizes [-1] are negative"),
    ):
        with pytest.raises(CompileError) as caught:
            resize.by_sizes(b, value, sizes, (1,), "stretch", ())
        assert str(caught.value) == f"here: {message}"
