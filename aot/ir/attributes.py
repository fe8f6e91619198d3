"""Typed access to an op's attributes, by the type that its record declares."""

from __future__ import annotations

import builtins
from typing import Any

from aot.ir.dims import Dim, DimExpr


class Attributed:
    """The base of objects with an op's attributes: ops of a graph, and calls of their records'
    rules.

    The verifier has compared each attribute's type with the record's when a rule or a pass reads
    it, so that another type is an internal error.
    """

    __slots__ = ()

    attrs: dict[str, Any]

    def int(self, name: str) -> int:
        """An attribute that is a known integer."""
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def float(self, name: str) -> float:
        """An attribute that is a number, as a float."""
        value = self.attrs[name]
        assert isinstance(value, (int, float))
        return float(value)

    def ints(self, name: str) -> tuple[builtins.int, ...]:
        """The known integers of an attribute that is a tuple."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def dim(self, name: str) -> Dim:
        """An attribute that is an extent, known or symbolic."""
        value = self.attrs[name]
        assert isinstance(value, (int, DimExpr))
        return value

    def dims(self, name: str) -> tuple[Dim, ...]:
        """The extents of an attribute that is a tuple of them."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, (int, DimExpr)))
