"""Complex tensors as pairs of real ones: arithmetic, and PyTorch's Fourier transforms.

What is done alike to both parts is done by the entries of real tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from aot.frontends.lib import fourier, functions
from aot.frontends.torch.table import (
    TABLE,
    Complex,
    Node,
    Number,
    UnsupportedNodeError,
    complex_op,
)
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Value

Either = Union[Complex, Value, DimExpr, int, float, bool]

# Linear functions of one tensor, or of several of which all are complex.
_BY_PARTS = (
    "aten._to_copy.default",
    "aten.alias.default",
    "aten.as_strided.default",
    "aten.cat.default",
    "aten.clone.default",
    "aten.constant_pad_nd.default",
    "aten.contiguous.default",
    "aten.cumsum.default",
    "aten.diagonal.default",
    "aten.expand.default",
    "aten.flip.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.mean.dim",
    "aten.neg.default",
    "aten.permute.default",
    "aten.repeat.default",
    "aten.reshape.default",
    "aten.roll.default",
    "aten.select.int",
    "aten.slice.Tensor",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.stack.default",
    "aten.sum.default",
    "aten.sum.dim_IntList",
    "aten.t.default",
    "aten.transpose.int",
    "aten.unfold.default",
    "aten.unsqueeze.default",
    "aten.view.default",
    "aten._unsafe_view.default",
)


def _part(argument: Any, number: int) -> Any:
    """An argument with complex tensors replaced by their real or imaginary parts."""
    if isinstance(argument, Complex):
        return (argument.real, argument.imaginary)[number]
    if isinstance(argument, list):
        return [_part(item, number) for item in argument]
    return argument


def _by_parts(build: Callable[..., Any]) -> Callable[..., Complex]:
    def run(n: Node, *arguments: Any) -> Complex:
        if not _has_complex(arguments):  # a real tensor that becomes complex
            real: Value = build(n, *arguments)
            return Complex(real, n.broadcast(n.scalar(0, real.type.dtype), real.type.dims))
        real, imaginary = (build(n, *(_part(a, i) for a in arguments)) for i in range(2))
        return Complex(real, imaginary)

    return run


def _has_complex(arguments: Sequence[Any]) -> bool:
    return any(
        isinstance(a, Complex) or (isinstance(a, list) and _has_complex(a)) for a in arguments
    )


def register() -> None:
    """Fills the table of complex ops; entries for real tensors must be registered before."""
    for name in _BY_PARTS:
        complex_op(name)(_by_parts(TABLE[name]))


def _complex(n: Node, x: Either) -> Complex:
    """A tensor or number as a complex value."""
    if isinstance(x, Complex):
        return x
    real = n.value(x, n.types[0].dtype if n.types and n.types[0] else None)
    return Complex(real, n.scalar(0, real.type.dtype))


def _interleaved(n: Node, x: Complex) -> Value:
    """A tensor with real and imaginary parts along a new last dim."""
    parts = [n.reshape(v, (*v.type.dims, 1)) for v in (x.real, x.imaginary)]
    return n.emit("concat", *parts, axis=x.real.type.rank)


def _separate(n: Node, x: Value) -> Complex:
    """The complex value whose parts are along the last dim of x."""
    *outer, _ = x.type.dims
    rank = x.type.rank
    parts = [
        n.reshape(
            n.emit(
                "slice",
                x,
                starts=(*[0] * (rank - 1), i),
                stops=(*outer, i + 1),
                steps=(1,) * rank,
            ),
            outer,
        )
        for i in range(2)
    ]
    return Complex(*parts)


@complex_op("aten.view_as_complex.default")
def view_as_complex(n: Node, x: Value) -> Complex:
    return _separate(n, x)


@complex_op("aten.view_as_real.default")
def view_as_real(n: Node, x: Complex) -> Value:
    return _interleaved(n, x)


@complex_op("aten.complex.default")
def complex_of(n: Node, real: Value, imaginary: Value) -> Complex:
    dims = n.dims
    return Complex(n.broadcast(real, dims), n.broadcast(imaginary, dims))


@complex_op("aten.polar.default")
def polar(n: Node, size: Value, angle: Value) -> Complex:
    return Complex(n("mul", size, n("cos", angle)), n("mul", size, n("sin", angle)))


@complex_op("aten.real.default")
def real_part(n: Node, x: Complex) -> Value:
    return x.real


@complex_op("aten.imag.default")
def imaginary_part(n: Node, x: Complex) -> Value:
    return x.imaginary


@complex_op("aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default")
def conjugate(n: Node, x: Complex) -> Complex:
    return Complex(x.real, n("neg", x.imaginary))


def _square(n: Node, x: Complex) -> Value:
    """The squared absolute value."""
    return n("add", n("mul", x.real, x.real), n("mul", x.imaginary, x.imaginary))


@complex_op("aten.abs.default")
def absolute(n: Node, x: Complex) -> Value:
    return n("sqrt", _square(n, x))


@complex_op("aten.angle.default")
def angle(n: Node, x: Complex) -> Value:
    return functions.atan2(n, x.imaginary, x.real)


@complex_op("aten.exp.default")
def exponential(n: Node, x: Complex) -> Complex:
    return polar(n, n("exp", x.real), x.imaginary)


def _sum(op: str) -> Callable[..., Complex]:
    def build(n: Node, a: Either, b: Either, alpha: Number = 1) -> Complex:
        left, right = _complex(n, a), _complex(n, b)
        if alpha != 1:
            right = Complex(n("mul", right.real, alpha), n("mul", right.imaginary, alpha))
        real = n.broadcast(n(op, left.real, right.real), n.dims)
        return Complex(real, n.broadcast(n(op, left.imaginary, right.imaginary), n.dims))

    return build


complex_op("aten.add.Tensor", "aten.add.Scalar")(_sum("add"))
complex_op("aten.sub.Tensor", "aten.sub.Scalar")(_sum("sub"))


def _product(n: Node, op: str, a: Complex, b: Complex) -> Complex:
    real = n("sub", n(op, a.real, b.real), n(op, a.imaginary, b.imaginary))
    return Complex(real, n("add", n(op, a.real, b.imaginary), n(op, a.imaginary, b.real)))


@complex_op("aten.mul.Tensor", "aten.mul.Scalar")
def multiply(n: Node, a: Either, b: Either) -> Complex:
    if isinstance(a, Complex) and isinstance(b, Complex):
        return _product(n, "mul", a, b)
    whole, factor = (a, b) if isinstance(a, Complex) else (b, a)
    assert isinstance(whole, Complex) and not isinstance(factor, Complex)
    return Complex(n("mul", whole.real, factor), n("mul", whole.imaginary, factor))


@complex_op("aten.mm.default", "aten.bmm.default", "aten.matmul.default")
def matrix_product(n: Node, a: Complex, b: Complex) -> Complex:
    return _product(n, "matmul", a, b)


@complex_op("aten.div.Tensor", "aten.div.Scalar")
def divide(n: Node, a: Either, b: Either) -> Complex:
    if not isinstance(b, Complex):
        assert isinstance(a, Complex)
        return Complex(n("div", a.real, b), n("div", a.imaginary, b))
    made = _product(n, "mul", _complex(n, a), conjugate(n, b))
    below = _square(n, b)
    return Complex(n("div", made.real, below), n("div", made.imaginary, below))


@complex_op("aten.pow.Tensor_Scalar")
def power(n: Node, x: Complex, exponent: Number) -> Complex:
    if exponent != 2:
        raise UnsupportedNodeError("a power of complex numbers other than 2 is not supported")
    return _product(n, "mul", x, x)


# Fourier transforms

_NONE, _ROOT, _WHOLE = range(3)  # by what is divided


def _scaled(n: Node, x: Value, length: Dim, mode: int, *, is_inverse: bool) -> Value:
    """A transform scaled as torch's mode says; our inverse divides by its length."""
    if not isinstance(length, int):
        if mode == (_WHOLE if is_inverse else _NONE):
            return x
        number = n.value(length, x.type.dtype)
        number = n("sqrt", number) if mode == _ROOT else number
        return n("mul" if is_inverse else "div", x, number)
    factor = float(length) if is_inverse else 1.0
    factor /= {_NONE: 1.0, _ROOT: math.sqrt(length), _WHOLE: float(length)}[mode]
    return x if factor == 1 else n("mul", x, factor)


def _along(
    n: Node, x: Value, axis: int, mode: int, is_inverse: bool, length: Dim | None = None
) -> Value:
    """The transform of interleaved complex numbers over one dim; one-sided if a length is given, or
    for real numbers."""
    whole = x.type.dims[axis] if length is None else length
    made = fourier.dft(n, x, axis, whole, is_inverse=is_inverse, is_onesided=length is not None)
    return _scaled(n, made, whole, mode, is_inverse=is_inverse)


@complex_op("aten._fft_r2c.default")
def real_transform(n: Node, x: Value, axes: Sequence[int], mode: int, onesided: bool) -> Complex:
    *others, last = (n.axis(a, x.type.rank) for a in axes)
    spread = n.reshape(x, (*x.type.dims, 1))
    made = _along(n, spread, last, mode, False, x.type.dims[last] if onesided else None)
    for axis in others:
        made = _along(n, made, axis, mode, False)
    return _separate(n, made)


@complex_op("aten._fft_c2c.default")
def transform(n: Node, x: Complex, axes: Sequence[int], mode: int, is_forward: bool) -> Complex:
    made = _interleaved(n, x)
    for axis in axes:
        made = _along(n, made, n.axis(axis, x.real.type.rank), mode, not is_forward)
    return _separate(n, made)


@complex_op("aten._fft_c2r.default")
def inverse_to_real(n: Node, x: Complex, axes: Sequence[int], mode: int, length: Dim) -> Value:
    *others, last = (n.axis(a, x.real.type.rank) for a in axes)
    made = _interleaved(n, x)
    for axis in others:
        made = _along(n, made, axis, mode, True)
    made = _along(n, made, last, mode, True, length)
    return n.reshape(made, made.type.dims[:-1])


@complex_op("aten.stft.default")
def short_time_transform(
    n: Node,
    x: Value,
    length: int,
    step: int | None,
    window_length: int | None,
    window: Value | None,
    is_normalised: bool,
    onesided: bool | None,
    returns_complex: bool | None,
    *more: Any,
) -> Any:
    step = length // 4 if step is None else step
    count = length if window_length is None else window_length
    left = (length - count) // 2
    if window is None and count < length:
        window = n.constant(np.ones(count, x.type.dtype.numpy))
    if window is not None and count < length:
        pads = (left, length - count - left)
        window = n.emit("pad", window, pads=pads, mode="constant", value=0.0)
    signal = n.reshape(x, (*([1] if x.type.rank == 1 else []), *x.type.dims, 1))
    made = fourier.stft(n, signal, window, step, length, is_onesided=onesided is not False)
    if is_normalised:
        made = n("mul", made, 1 / math.sqrt(length))
    made = n.emit("transpose", made, perm=(0, 2, 1, 3))
    if x.type.rank == 1:
        made = n.reshape(made, made.type.dims[1:])
    return _separate(n, made) if returns_complex else made
