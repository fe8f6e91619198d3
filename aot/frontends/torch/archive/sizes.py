"""Converts sizes, numbers and bools of a file to torch's symbolic ones, in a separate ShapeEnv.

Owns the symbols: each has one set of assumptions, the bounds that the file gives it, and a hint,
which is its value in the example that the program was exported with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import symbolic_shapes
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from aot.frontends.torch.archive.expressions import ExpressionError, expression
from aot.frontends.torch.archive.fields import Field
from aot.frontends.torch.archive.payloads import check_layout, dtype, has_gradient

MOST_UNBACKED = 1 << 16
_UNBACKED = ("u", "zuf")  # torch's prefixes of symbols that data decide: integers and floats


class Sizes:
    """Converts the file's sizes to torch's symbolic ones, and its tensor descriptions to fake
    tensors.

    Args:
        ranges: the bounds of symbols, by their names.
    """

    def __init__(self, ranges: Field) -> None:
        self.env = symbolic_shapes.ShapeEnv(assume_static_by_default=True)
        self.mode = FakeTensorMode(
            allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=self.env
        )
        self._ranges = {name: _bounds(given) for name, given in ranges.entries()}
        self._symbols: dict[str, tuple[dict[str, bool], Any]] = {}
        self._expressions: dict[str, Any] = {}
        self.pending: set[Any] = set()  # symbols that data decide, and no node has given yet
        for name in self._ranges:
            self._reserve(name)

    def _reserve(self, name: str) -> None:
        """Advances torch's counter of data-dependent symbols past a symbol in the file."""
        for prefix, counter in zip(
            _UNBACKED, ("unbacked_symint_counter", "unbacked_symfloat_counter"), strict=True
        ):
            number = name.removeprefix(prefix)
            if number != name and number.isdecimal() and int(number[:9]) < MOST_UNBACKED:
                setattr(self.env, counter, max(getattr(self.env, counter), int(number) + 1))

    @property
    def range_constraints(self) -> Mapping[Any, Any]:
        """The bounds of symbols, and of expressions of them, in the file."""
        used = {str(found): found for found in self._expressions.values()}
        used.update({name: symbol for name, (_, symbol) in self._symbols.items()})
        return {used[name]: bounds for name, bounds in self._ranges.items() if name in used}

    def integer(self, field: Field) -> Any:
        """The size in a field, as an int or a torch.SymInt."""
        kind, value = field.union()
        if kind == "as_int":
            return value.integer()
        found, hint = self._expression(kind, value, "as_int")
        return self.env.create_symintnode(found, hint=hint)

    def number(self, field: Field) -> Any:
        """The number in a field, as a float or torch.SymFloat."""
        kind, value = field.union()
        if kind == "as_float":
            return value.number()
        found, hint = self._expression(kind, value, "as_float")
        return self.env.create_symfloatnode(found, hint=hint)

    def truth(self, field: Field) -> Any:
        """The bool in a field, as a bool or a torch.SymBool."""
        kind, value = field.union()
        if kind == "as_bool":
            return value.truth()
        found, _ = self._expression(kind, value, "as_bool")
        return self.env.create_symboolnode(found)

    def tensor(self, meta: Field) -> Any:
        """A fake tensor, without data, as torch traces programs with."""
        check_layout(meta)
        kind = dtype(meta["dtype"])
        sizes = tuple(self.integer(size) for size in meta["sizes"].items())
        strides = tuple(self.integer(stride) for stride in meta["strides"].items())
        for given in (*sizes, *strides):
            if isinstance(given, int) and given < 0:
                raise meta.error("has a negative size or stride")
        with self.mode:
            return torch.empty_strided(
                sizes, strides, dtype=kind, device="cpu", requires_grad=has_gradient(meta, kind)
            )

    def _expression(self, kind: str, value: Field, hint_kind: str) -> tuple[Any, Any]:
        """(expression, its value in the example)."""
        if kind != "as_expr":
            raise value.error(f"is {kind!r}, expected 'as_expr'")
        text = value["expr_str"].text()
        found = self._expressions.get(text)
        if found is None:
            try:
                found = expression(text, self._symbol)
            except ExpressionError as error:
                raise value["expr_str"].error(str(error)) from None
            self._expressions[text] = found
        given = value.get("hint")
        if given is None:
            return found, None
        given_kind, hint = given.union()
        if given_kind != hint_kind:
            raise hint.error(f"is {given_kind!r}, expected {hint_kind!r}")
        if hint_kind != "as_int":
            return found, hint.number()
        self._learn(found, hint.integer())
        return found, hint.value

    def _symbol(self, name: str, assumptions: dict[str, bool]) -> Any:
        known = self._symbols.get(name)
        if known is not None:
            if known[0] != assumptions:
                raise ExpressionError(f"has a symbol {name!r} of other assumptions than before")
            return known[1]
        symbol = sympy.Symbol(name, **assumptions)
        self._symbols[name] = (assumptions, symbol)
        if symbolic_shapes.symbol_is_type(
            symbol, (symbolic_shapes.SymT.UNBACKED_INT, symbolic_shapes.SymT.UNBACKED_FLOAT)
        ):
            self.pending.add(symbol)
        bounds = self._ranges.get(name)
        if bounds is not None:
            self.env.constrain_symbol_range(
                symbol, compiler_min=bounds.lower, compiler_max=bounds.upper
            )
        self.env.var_to_stack[symbol] = torch.utils._traceback.CapturedTraceback.extract()
        return symbol

    def _learn(self, found: Any, value: int) -> None:
        """Derives a symbol's example value from that of an expression linear in it."""
        known = getattr(self.env, "backed_var_to_val", None)
        if known is None:  # as it was called before torch 2.10
            known = self.env.var_to_val
        rest, term = found.as_coeff_Add()
        slope, symbol = term.as_coeff_Mul()
        is_new = symbol.is_Symbol and symbol not in known and symbol not in self.pending
        if not is_new or not (rest.is_Integer and slope.is_Integer) or (value - rest) % slope:
            return
        add = getattr(self.env, "add_backed_var_to_val", None) or self.env.add_var_to_val
        add(symbol, (value - int(rest)) // int(slope))


def _bounds(given: Field) -> Any:
    """The range of a symbol; an absent end is infinite."""
    low, high = (given.get(key) for key in ("min_val", "max_val"))
    lower = -int_oo if low is None else sympy.Integer(low.integer(-(1 << 63), 1 << 63))
    upper = int_oo if high is None else sympy.Integer(high.integer(-(1 << 63), 1 << 63))
    if low is not None and high is not None and lower > upper:
        raise given.error("is a range without a number in it")
    return ValueRanges(lower, upper)
