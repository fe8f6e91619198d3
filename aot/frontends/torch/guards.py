"""Converts an exported program's guards on its inputs' shapes to assumptions.

torch writes its guards as Python expressions over `L['x'].size()[0]`. Those that say of a size that
it is not 1, or at least 2, are left out, as they are where torch checks inputs: sizes of 0 and 1
differ in how torch strides tensors, and in nothing that is computed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.torch.dims import Sizes
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Assumption

LEAST_CHECKED = 2
MOST_TEXT = 1 << 12  # characters of a guard in a file: Python's parser has its own stack


class _UnknownError(Exception):
    """An expression that cannot be converted to a dim."""


def guard_assumptions(
    guards: Sequence[str], placeholders: Mapping[str, Any], sizes: Sizes
) -> Iterator[Assumption]:
    """Assumptions from guards that are equalities or bounds of dims and not already implied."""
    for guard in guards:
        try:
            left, sign, right = _comparison(guard, placeholders, sizes)
        except (_UnknownError, UnsupportedNodeError, SyntaxError, ZeroDivisionError):
            continue
        pair = _equality(left, sign, right)
        if pair is None or pair[0] == pair[1]:
            continue
        reason = f"the module was exported for shapes with {left} {sign} {right}"
        yield Assumption(*pair, reason)


def _equality(left: Dim, sign: str, right: Dim) -> tuple[Dim, Dim] | None:
    """The two dims that a comparison requires to be equal; None if nothing needs a check."""
    if sign == "==":
        return left, right
    if sign in (">", ">="):
        left, right = right, left
    low = dims.add(left, 1) if sign in ("<", ">") else left
    if isinstance(low, int) and low <= LEAST_CHECKED:
        return None
    return dims.maximum(low, right), right


_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def _comparison(guard: str, placeholders: Mapping[str, Any], sizes: Sizes) -> tuple[Dim, str, Dim]:
    tree = ast.parse(guard.strip(), mode="eval").body
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        raise _UnknownError
    sign = _SIGNS.get(type(tree.ops[0]))
    if sign is None:
        raise _UnknownError
    reader = _Reader(placeholders, sizes)
    left, right = reader.dim(tree.left), reader.dim(tree.comparators[0])
    if not isinstance(left, DimExpr) and not isinstance(right, DimExpr):
        raise _UnknownError
    return left, sign, right


_PLAIN = (
    *(ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Subscript, ast.Load),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.And, ast.Or, ast.Not, ast.USub),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
)


def plain_guards(guards: Iterable[str]) -> list[str]:
    """The guards that only compare and compute input sizes, rewritten. torch executes guards as
    Python code, so that those from a file must do nothing else.
    """
    return [text for guard in guards if (text := _plain(guard))]


def _plain(guard: str) -> str:
    """A guard as Python code; "" if it might do anything else."""
    if len(guard) > MOST_TEXT:
        return ""
    try:
        tree = ast.parse(guard.strip(), mode="eval").body
        return ast.unparse(tree) if all(map(_is_plain, ast.walk(tree))) else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # as `ast` says of a deep text
        return ""


def _is_plain(tree: ast.AST) -> bool:
    match tree:
        case ast.Constant(bool() | None):
            return True
        case ast.Constant(int(value)):
            return abs(value) < 1 << 63
        case ast.Constant(str(text)):
            return text.isprintable() and not set(text) & set("\"'\\")
        case ast.Call(ast.Name("min" | "max"), _, []) | ast.Call(ast.Attribute(_, "size"), [], []):
            return True
        case ast.Name("L" | "min" | "max") | ast.Attribute(_, "size"):
            return True
    return isinstance(tree, _PLAIN)


class _Reader:
    """Converts the parts of a guard to dims."""

    def __init__(self, placeholders: Mapping[str, Any], sizes: Sizes) -> None:
        self.placeholders, self.sizes = placeholders, sizes

    def dim(self, tree: ast.expr) -> Dim:
        match tree:
            case ast.Constant(int(value)):
                return value
            case ast.UnaryOp(ast.USub(), operand):
                return dims.multiply(self.dim(operand), -1)
            case ast.BinOp(left, op, right):
                return self._binary(op, self.dim(left), self.dim(right))
            case ast.Call(ast.Name("min" | "max" as name), args):
                choose = dims.minimum if name == "min" else dims.maximum
                return choose(*(self.dim(a) for a in args))
            case ast.Subscript(ast.Call(ast.Attribute(source, "size")), ast.Constant(int(axis))):
                return self._size(source, axis)
        raise _UnknownError

    def _binary(self, op: ast.operator, a: Dim, b: Dim) -> Dim:
        match op:
            case ast.Add():
                return dims.add(a, b)
            case ast.Sub():
                return dims.add(a, dims.multiply(b, -1))
            case ast.Mult():
                return dims.multiply(a, b)
            case ast.FloorDiv():
                return dims.floor_divide(a, b)
            case ast.Mod():
                return dims.modulo(a, b)
        raise _UnknownError

    def _size(self, source: ast.expr, axis: int) -> Dim:
        """The size of an input, which is identified by its path."""
        keys: list[str] = []
        while isinstance(source, ast.Subscript) and isinstance(source.slice, ast.Constant):
            keys.insert(0, str(source.slice.value))
            source = source.value
        node = self.placeholders.get("_".join(keys))
        if node is None or not hasattr(node.meta.get("val"), "shape"):
            raise _UnknownError
        return self.sizes.dim(node.meta["val"].shape[axis])
