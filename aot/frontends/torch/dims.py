"""Converts torch's symbolic sizes, which are sympy expressions, to dims.

Expressions are told by the names of their classes, so that neither torch nor sympy is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.lib.scaled_extents import scaled_extent
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.types import DType

_Ratio = tuple[Dim, int]  # a numerator, and a denominator that is positive
_MOST_DENOMINATOR = 1 << 12  # of a float whose product is not rounded


class Sizes:
    """Converts sizes of one exported program to dims.

    Args:
        names: names of dims by the names of torch's symbols.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self._given: dict[str, Dim] = {}
        self._known: dict[Any, Dim] = {}

    def dim(self, size: Any) -> Dim:
        """The dim of a size: a number or a torch.SymInt.

        Raises:
            UnsupportedNodeError: it depends on data, or there are no dims of its kind.
        """
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._known:
            self._known[expression] = self.of(expression)
        return self._known[expression]

    def of(self, expression: Any) -> Dim:
        """The dim of a sympy expression."""
        numerator, denominator = self._ratio(expression)
        if denominator != 1:
            raise UnsupportedNodeError(f"size {expression} is no whole number")
        return numerator

    def _ratio(self, e: Any) -> _Ratio:
        kind = type(e).__name__
        if e.is_Integer:
            return int(e), 1
        if e.is_Rational:
            return int(e.p), int(e.q)
        if e.is_Float:
            exact = Fraction(float(e))
            if exact.denominator > _MOST_DENOMINATOR:
                raise UnsupportedNodeError(f"size {e} is not supported")
            return exact.numerator, exact.denominator
        if e.is_Symbol:
            return self._symbol(str(e)), 1
        if kind in ("floor", "FloorToInt", "TruncToInt"):
            scaled = self._scaled(e.args[0])
            if scaled is not None:
                return scaled, 1
        build = _FUNCTIONS.get(kind)
        if build is None:
            raise UnsupportedNodeError(f"size {e} is not supported")
        return build([self._ratio(a) for a in e.args], e)

    def _scaled(self, e: Any) -> Dim | None:
        """The floor of a product of one float and integers, as floats compute it; None for other
        expressions."""
        floats = [a for a in e.args if a.is_Float] if type(e).__name__ == "Mul" else []
        if len(floats) != 1 or float(floats[0]) <= 0:
            return None
        others = [self._ratio(a) for a in e.args if a is not floats[0]]
        if any(denominator != 1 for _, denominator in others):
            return None
        whole = dims.product([numerator for numerator, _ in others])
        return scaled_extent(whole, float(floats[0]), DType.F64)

    def give(self, size: Any, dim: Dim) -> str | None:
        """Binds `dim` to a size that is a new, data-dependent symbol; returns torch's name of the
        symbol, None for other sizes."""
        if isinstance(size, int) or not size.node.expr.is_Symbol:
            return None
        name = str(size.node.expr)
        if name in self.names or name in self._given:
            return None
        self._given[name] = dim
        return name

    def _symbol(self, name: str) -> Dim:
        if name in self._given:
            return self._given[name]
        if name not in self.names:
            raise UnsupportedNodeError(
                f"size {name} depends on the elements of a tensor in a way that is not supported"
            )
        return dims.symbol(self.names[name])


def _whole(ratio: _Ratio, e: Any) -> Dim:
    if ratio[1] != 1:
        raise UnsupportedNodeError(f"size {e} is not supported")
    return ratio[0]


def _reduced(numerator: Dim, denominator: int) -> _Ratio:
    if denominator != 1:
        quotient = dims.floor_divide(numerator, denominator)
        if dims.multiply(quotient, denominator) == numerator:
            return quotient, 1
    return numerator, denominator


def _add(args: list[_Ratio], e: Any) -> _Ratio:
    top, bottom = args[0]
    for numerator, denominator in args[1:]:
        top = dims.add(dims.multiply(top, denominator), dims.multiply(numerator, bottom))
        bottom *= denominator
    return _reduced(top, bottom)


def _multiply(args: list[_Ratio], e: Any) -> _Ratio:
    top: Dim = 1
    bottom = 1
    for numerator, denominator in args:
        top, bottom = dims.multiply(top, numerator), bottom * denominator
    return _reduced(top, bottom)


def _power(args: list[_Ratio], e: Any) -> _Ratio:
    base, exponent = args[0], _whole(args[1], e)
    if isinstance(exponent, DimExpr):
        raise UnsupportedNodeError(f"size {e} is not supported")
    if exponent < 0:
        top, bottom = base
        if isinstance(top, DimExpr) or top == 0:
            raise UnsupportedNodeError(f"size {e} is not supported")
        sign = 1 if top > 0 else -1
        base, exponent = (sign * bottom, abs(top)), -exponent
    return _multiply([base] * exponent or [(1, 1)], e)


def _divided(args: list[_Ratio], e: Any) -> _Ratio:
    """The exact quotient of two symbolic sizes, as a ratio."""
    (top, bottom), (by, under) = args
    if isinstance(by, DimExpr):
        quotient = dims.floor_divide(dims.multiply(top, under), dims.multiply(by, bottom))
        if dims.multiply(quotient, dims.multiply(by, bottom)) != dims.multiply(top, under):
            raise UnsupportedNodeError(f"size {e} is not supported")
        return quotient, 1
    if by < 0:
        by, under = -by, -under
    return _reduced(dims.multiply(top, under), bottom * by)


def _floor(args: list[_Ratio], e: Any) -> _Ratio:
    top, bottom = args[0]
    return dims.floor_divide(top, bottom), 1


def _ceil(args: list[_Ratio], e: Any) -> _Ratio:
    top, bottom = args[0]
    return dims.floor_divide(dims.add(top, bottom - 1), bottom), 1


def _floor_divide(args: list[_Ratio], e: Any) -> _Ratio:
    return dims.floor_divide(_whole(args[0], e), _whole(args[1], e)), 1


def _ceil_divide(args: list[_Ratio], e: Any) -> _Ratio:
    return dims.ceil_divide(_whole(args[0], e), _whole(args[1], e)), 1


def _modulo(args: list[_Ratio], e: Any) -> _Ratio:
    return dims.modulo(_whole(args[0], e), _whole(args[1], e)), 1


def _modular_index(args: list[_Ratio], e: Any) -> _Ratio:
    base, divisor, modulus = (_whole(a, e) for a in args)
    return dims.modulo(dims.floor_divide(base, divisor), modulus), 1


def _extremum(choose: Callable[..., Dim]) -> Callable[[list[_Ratio], Any], _Ratio]:
    def build(args: list[_Ratio], e: Any) -> _Ratio:
        common = 1
        for _, denominator in args:
            common *= denominator
        return _reduced(choose(*(dims.multiply(n, common // d) for n, d in args)), common)

    return build


def _same(args: list[_Ratio], e: Any) -> _Ratio:
    return args[0]


_FUNCTIONS: dict[str, Callable[[list[_Ratio], Any], _Ratio]] = {
    "Add": _add,
    "Mul": _multiply,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _floor_divide,
    "CleanDiv": _floor_divide,
    "CeilDiv": _ceil_divide,
    "Mod": _modulo,
    "PythonMod": _modulo,
    "ModularIndexing": _modular_index,
    "Max": _extremum(dims.maximum),
    "Min": _extremum(dims.minimum),
    "IntTrueDiv": _divided,
    "FloatTrueDiv": _divided,
    "ToFloat": _same,
    "Identity": _same,
    "floor": _floor,
    "FloorToInt": _floor,
    "TruncToInt": _floor,  # sizes are not negative
    "ceiling": _ceil,
    "CeilToInt": _ceil,
}
