"""Expressions with Python operators, for writing formulas, and helpers that all formulas use.

Owns no function of its own; `float32` and its neighbours are written in these.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir.expr import Bitcast, Const, Expr, Fma, binary, select, unary
from aot.ir.types import DType

# of a single-precision number
SIGN = 0x80000000


@dataclass(frozen=True)
class V:
    """An expression with Python operators; numbers on the right take its dtype."""

    e: Expr

    def of(self, other: V | float) -> Expr:
        return other.e if isinstance(other, V) else Const(self.e.dtype, other)

    def op(self, name: str, other: V | float) -> V:
        return V(binary(name, self.e, self.of(other)))

    def __add__(self, other: V | float) -> V:
        return self.op("add", other)

    def __sub__(self, other: V | float) -> V:
        return self.op("sub", other)

    def __mul__(self, other: V | float) -> V:
        return self.op("mul", other)

    def __truediv__(self, other: V | float) -> V:
        return self.op("div", other)

    def __and__(self, other: V | int) -> V:
        return self.op("and", other)

    def __or__(self, other: V | int) -> V:
        return self.op("or", other)

    def __xor__(self, other: V | int) -> V:
        return self.op("xor", other)

    def __lshift__(self, other: V | int) -> V:
        return self.op("shl", other)

    def __rshift__(self, other: V | int) -> V:
        return self.op("shr", other)

    def __lt__(self, other: V | float) -> V:
        return self.op("lt", other)

    def __gt__(self, other: V | float) -> V:
        return self.op("gt", other)

    def __ge__(self, other: V | float) -> V:
        return self.op("ge", other)

    def equals(self, other: V | float) -> V:
        return self.op("eq", other)

    def differs(self, other: V | float) -> V:
        return self.op("ne", other)

    def abs(self) -> V:
        return V(unary("abs", self.e))

    def fma(self, b: V | float, c: V | float) -> V:
        """`self * b + c`."""
        return V(Fma(self.e, self.of(b), self.of(c), self.e.dtype))

    def bits(self, dtype: DType = DType.I32) -> V:
        return V(Bitcast(self.e, dtype))

    def float_bits(self) -> V:
        return V(Bitcast(self.e, DType.F32))

    def choose(self, a: V | float, b: V | float) -> V:
        """`self ? a : b`; at least one of a and b is an expression."""
        typed = a if isinstance(a, V) else b
        assert isinstance(typed, V)
        return V(select(self.e, typed.of(a), typed.of(b)))


def polynomial(x: V, coefficients: tuple[float, ...]) -> V:
    """The value of a polynomial at x by Horner's rule, constant coefficient first."""
    result = x.fma(coefficients[-1], coefficients[-2])
    for c in reversed(coefficients[:-2]):
        result = result.fma(x, c)
    return result


def at_least(x: V, low: float) -> V:
    """max(x, low) that keeps NaN: one instruction, where `min` with its NaN rule is several."""
    return (x < low).choose(low, x)


def at_most(x: V, high: float) -> V:
    return (x > high).choose(high, x)


def with_sign(magnitude: V, x: V) -> V:
    """`magnitude`, which must not be negative, with the sign of `x`."""
    return (magnitude.bits(DType.U32) | (x.bits(DType.U32) & 0x80000000)).float_bits()


def any_of(*conditions: V) -> V:
    """Whether any of the conditions holds."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = result | condition
    return result


def head12(x: V) -> V:
    """The first 12 bits of `x`: a product of two heads is exact."""
    return (x.bits(DType.U32) & 0xFFFFF000).float_bits()
