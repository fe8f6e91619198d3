"""TFLite's Fourier transform, and operators on complex numbers.

A tensor of complex numbers is a value of pairs in one dim more, real parts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.frontends.lib import fourier, functions
from aot.frontends.tflite.table import TABLE, Node, UnsupportedNodeError, tflite_op
from aot.ir.graph import Value
from aot.ir.types import DType

_TAKING = ("COMPLEX_ABS", "IMAG", "REAL")
# operators that move whole numbers, so that they move the real and imaginary parts alike
_MOVING = ("EXPAND_DIMS", "RESHAPE", "SQUEEZE")


def on_complex(n: Node) -> Sequence[Value | None]:
    """The results of an operator with a complex operand.

    Raises:
        UnsupportedNodeError: it is none of those that we have for them.
    """
    if n.op not in (*_MOVING, *_TAKING):
        raise UnsupportedNodeError("it is not supported of complex numbers")
    if n.output().is_complex != (n.op in _MOVING):
        raise n.error(f"{n.output().label} has elements of {n.output().kind}")
    if n.op in _TAKING:
        made = TABLE[n.op](n)
        return [made] if isinstance(made, Value) else list(made)
    parts = []
    for part in range(2):
        items = [_part(n, part), *n.items[1:]]
        made = TABLE[n.op](replace(n, items=items))
        assert isinstance(made, Value)
        parts.append(n.reshape(made, (*made.type.dims, 1)))
    return [n.emit("concat", *parts, axis=parts[0].type.rank - 1)]


def _part(n: Node, number: int) -> Value:
    """The real or imaginary parts of the first operand."""
    x = n.input(0)
    if not n.tensor(0).is_complex:
        raise n.error(f"operand 0 has elements of {n.tensor(0).kind}, expected COMPLEX64")
    rank, dims = x.type.rank, x.type.dims[:-1]
    starts, stops = (*[0] * (rank - 1), number), (*dims, number + 1)
    made = n.emit("slice", x, starts=starts, stops=stops, steps=(1,) * rank)
    return n.reshape(made, dims)


@tflite_op("RFFT2D")
def rfft2d(n: Node) -> Value:
    """RFFT2D: a one-sided transform over the last dim, then a full one over the dim before, each
    cut or padded with zeros."""
    x, lengths = n.input(0), n.ints(1)
    if x.type.dtype is not DType.F32 or x.type.rank < 2 or len(lengths) != 2 or min(lengths) < 1:
        raise n.error(f"x is {x.type} and the lengths are {lengths}, expected two of an image")
    rank = x.type.rank
    pairs = n.reshape(x, (*x.type.dims, 1))
    made = fourier.dft(n, pairs, rank - 1, lengths[1], is_inverse=False, is_onesided=True)
    if x.type.dims[-2] == lengths[0] == 1:
        return made
    return fourier.dft(n, made, rank - 2, lengths[0], is_inverse=False, is_onesided=False)


@tflite_op("REAL")
def real(n: Node) -> Value:
    return _part(n, 0)


@tflite_op("IMAG")
def imaginary(n: Node) -> Value:
    return _part(n, 1)


@tflite_op("COMPLEX_ABS")
def absolute(n: Node) -> Value:
    return functions.hypot(n, _part(n, 0), _part(n, 1))
