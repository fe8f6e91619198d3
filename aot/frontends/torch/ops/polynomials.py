"""PyTorch's orthogonal polynomials, whose degrees are tensor elements: recurrences as loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.frontends.torch.control import repeated
from aot.frontends.torch.table import Node, Operand, torch_op
from aot.ir.graph import Value
from aot.ir.types import DType

F64, I32, I64 = DType.F64, DType.I32, DType.I64
# of x, k and the polynomials of the degrees k - 1 and k, that of the degree k + 1
_Next = Callable[[Node, Value, Value, Value, Value], Value]


def _chebyshev(n: Node, x: Value, k: Value, before: Value, last: Value) -> Value:
    return n("sub", n("mul", n("mul", x, 2.0), last), before)


def _hermite(n: Node, x: Value, k: Value, before: Value, last: Value) -> Value:
    return n("mul", n("sub", n("mul", x, last), n("mul", k, before)), 2.0)


def _hermite_of_probability(n: Node, x: Value, k: Value, before: Value, last: Value) -> Value:
    return n("sub", n("mul", x, last), n("mul", k, before))


def _laguerre(n: Node, x: Value, k: Value, before: Value, last: Value) -> Value:
    factor = n("sub", n("add", n("mul", k, 2.0), 1.0), x)
    return n("div", n("sub", n("mul", factor, last), n("mul", k, before)), n("add", k, 1.0))


def _legendre(n: Node, x: Value, k: Value, before: Value, last: Value) -> Value:
    factor = n("mul", n("add", n("mul", k, 2.0), 1.0), x)
    return n("div", n("sub", n("mul", factor, last), n("mul", k, before)), n("add", k, 1.0))


# the recurrence, and the polynomial of degree 1: its slope and what it is at 0
_POLYNOMIALS: dict[str, tuple[_Next, float, float]] = {
    "chebyshev_polynomial_t": (_chebyshev, 1.0, 0.0),
    "chebyshev_polynomial_u": (_chebyshev, 2.0, 0.0),
    "chebyshev_polynomial_v": (_chebyshev, 2.0, -1.0),
    "chebyshev_polynomial_w": (_chebyshev, 2.0, 1.0),
    "hermite_polynomial_h": (_hermite, 2.0, 0.0),
    "hermite_polynomial_he": (_hermite_of_probability, 1.0, 0.0),
    "laguerre_polynomial_l": (_laguerre, -1.0, 1.0),
    "legendre_polynomial_p": (_legendre, 1.0, 0.0),
}


def _polynomial(
    following: _Next, slope: float, start: float, *, is_shifted: bool
) -> Callable[[Node, Operand, Operand], Value]:
    """An entry for a kind of polynomial; shifted ones are evaluated at 2 x - 1. Computed in double
    precision, and 0 for negative degrees."""

    def build(n: Node, given: Operand, degrees: Operand) -> Value:
        x = n.broadcast(n.value(given, F64), n.dims)
        degree = n.broadcast(n.cast(n.value(degrees), I64), n.dims)
        if is_shifted:
            x = n("sub", n("mul", x, 2.0), 1.0)
        one = n.broadcast(n.scalar(1.0, F64), n.dims)
        line = n("add", n("mul", x, slope), start)

        def goes_on(place: Node, k: Value) -> Value:
            is_left = place.cast(place.emit("less", k, degree), I32)
            axes = tuple(range(is_left.type.rank))
            some = is_left
            if axes:
                some = place.emit("reduce_max", is_left, axes=axes, keepdims=False)
            return place("less", 0, some)

        def step(inside: Node, number: Value, carried: Sequence[Value]) -> list[Value]:
            before, last = carried
            k = inside("add", number, 1)
            made = following(inside, x, inside.cast(k, F64), before, last)
            is_left = inside.emit("less", k, degree)
            after = (
                inside.emit("where", is_left, last, before),
                inside.emit("where", is_left, made, last),
            )
            return [goes_on(inside, inside("add", k, 1)), *after]

        first = goes_on(n, n.scalar(1, I64))
        _, found = repeated(n, (one, line), step, first=first)
        found = n.emit("where", n("equal", degree, 0), one, found)
        return n.cast(n("where", n("less", degree, 0), 0.0, found), n.dtype)

    return build


for _name, _how in _POLYNOMIALS.items():
    for _shift in ("", "shifted_") if _name.startswith("chebyshev") else ("",):
        _build = _polynomial(*_how, is_shifted=bool(_shift))
        for _overload in ("default", "n_scalar", "x_scalar"):
            torch_op(f"aten.special_{_shift}{_name}.{_overload}")(_build)
