"""Decides which values that several passes over a row need are stored in scratch rather than
recomputed.

A softmax goes over its row three times: for the largest element, for the sum, and for the results.
What all passes compute of an element is done by the first of them, and loaded by the others, where
that costs less than doing it again. Owns that choice and the scratch; the passes are a schedule's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from aot.analysis.cost.recompute import is_kept, operation_cost
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Const, Expr, Load, Param, Reduce, Size, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Space
from aot.kernels.nest.nest import Axis, Kept, Nest, Output

APART = 4  # what loading elements that are no neighbours costs, in loads of neighbours
ELEMENT_BYTES = 4


@dataclass(eq=False)
class _Pass:
    """One pass over a row: a reduction, or the pass that stores the results.

    Attributes:
        roots: what it computes for each element, other passes' results in it as `Reduce`.
        axes: the loops over the row.
        keys: numbers of the expressions; equal ones of two passes have one number.
    """

    roots: Sequence[Expr]
    axes: Sequence[tuple[Var, dims.Dim]]
    keys: dict[Expr, int] = field(default_factory=dict)


class KeptRows:
    """The values that earlier passes over a row store in scratch for later ones.

    Args:
        reduces: the reductions, in their order.
        free: the result's axes along the row.
        lanes: rows that are done side by side, each in a lane; 1 where lanes go along the row.
        are_apart: whether each of them has its elements side by side, instead of those of all rows.
    """

    def __init__(
        self,
        nest: Nest,
        output: Output,
        reduces: Sequence[Reduce],
        free: Sequence[Axis],
        lanes: int = 1,
        *,
        are_apart: bool = False,
    ) -> None:
        self.lanes, self.are_apart = lanes, are_apart
        self.elements = 1
        self.passes: dict[Reduce | None, _Pass] = {r: _Pass([r.body], r.axes) for r in reduces}
        self.passes[None] = _Pass(output.values, [(a.var, a.extent) for a in free])
        self._numbers: dict[object, int] = {}
        self._scratch: dict[int, Scratch] = {}
        self._first: dict[Reduce | None, dict[int, Expr]] = {}
        extents = {tuple(n for _, n in made.axes) for made in self.passes.values()}
        (row,) = extents if len(extents) == 1 else ((),)
        if nest.is_gpu or not row or not all(isinstance(n, int) for n in row):
            return
        self.elements = prod(n for n in row if isinstance(n, int))
        bytes = self.elements * lanes * ELEMENT_BYTES
        for made in self.passes.values():
            self._number(made)
        self._choose(nest, bytes)

    def body(
        self, reduce: Reduce, done: Mapping[Expr, Expr], lane: Expr | None = None
    ) -> tuple[Expr, list[Kept]]:
        """(element that a reduction's pass reduces, values that it stores for later passes), given
        reductions that are `done`.
        """
        known = {**done, **self.loaded(reduce, lane)}
        memo: dict[Expr, Expr] = {}
        body = expr.transform(reduce.body, known.get, memo)
        place = _place(self.passes[reduce])
        return body, [
            Kept(expr.transform(e, known.get, memo), self._scratch[key], self._address(place, lane))
            for key, e in self._first.get(reduce, {}).items()
        ]

    def loaded(self, reduce: Reduce | None, lane: Expr | None = None) -> dict[Expr, Expr]:
        """Loads of stored values, keyed by the expressions they replace, for a reduction's pass, or
        with None for the pass that stores results.
        """
        made, own = self.passes[reduce], self._first.get(reduce, {})
        where = self._address(_place(made), lane)
        return {
            e: Load(self._scratch[key], (where,), e.dtype)
            for e, key in made.keys.items()
            if key in self._scratch and key not in own
        }

    def _address(self, place: Expr, lane: Expr | None) -> Expr:
        """The index of element `place` of a row in scratch."""
        if self.lanes == 1:
            return place
        slot = expr.index(0) if lane is None else lane
        if self.are_apart:
            return expr.add(expr.mul(slot, expr.index(self.elements)), place)
        return expr.add(expr.mul(place, expr.index(self.lanes)), slot)

    # What is equal

    def _number(self, made: _Pass) -> None:
        rows = {var: n for n, (var, _) in enumerate(made.axes)}
        stack = [(root, False) for root in made.roots]
        while stack:
            e, is_done = stack.pop()
            if e in made.keys:
                continue
            inner = () if isinstance(e, Reduce) else expr.children(e)
            if not is_done:
                stack.append((e, True))
                stack.extend((child, False) for child in inner)
                continue
            key: object
            match e:
                case Var():
                    key = ("row", rows[e]) if e in rows else e
                case Const():
                    key = ("const", e.dtype, repr(e.value))
                case Size() | Param():
                    key = (type(e), str(expr.dim_of(e) if isinstance(e, Size) else e.name))
                case Reduce():
                    key = e
                case _:
                    op = getattr(e, "op", "")
                    source = e.source if isinstance(e, Load) else None
                    has = (e.guard is not None, e.other is not None) if isinstance(e, Load) else ()
                    key = (type(e), op, e.dtype, source, has, *(made.keys[c] for c in inner))
            made.keys[e] = self._numbers.setdefault(key, len(self._numbers))

    # What is worth it

    def _choose(self, nest: Nest, bytes: int) -> None:
        left = nest.target.scratch_bytes
        ordered = list(self.passes)
        for number, reduce in enumerate(ordered[:-1]):
            made = self.passes[reduce]
            later = [set(self.passes[other].keys.values()) for other in ordered[number + 1 :]]
            rows = {var for var, _ in made.axes}
            stack, seen = list(made.roots), set[Expr]()
            while stack:
                e = stack.pop(0)
                key = made.keys.get(e)
                if key is None or e in seen or key in self._scratch or isinstance(e, Reduce):
                    continue
                seen.add(e)
                again = sum(key in keys for keys in later)
                fits = bytes <= left and e.dtype.bytes == ELEMENT_BYTES
                if not rows & expr.free_vars(e) or e.dtype is DType.INDEX:
                    continue
                if not fits or not is_kept(_cost(e, made.axes), again):
                    stack.extend(() if isinstance(e, Load) else expr.children(e))
                    continue
                extent = bytes // ELEMENT_BYTES
                self._scratch[key] = nest.builder.scratch(
                    *("row", e.dtype, (extent,), Space.WORKGROUP)
                )
                self._first.setdefault(reduce, {})[key] = e
                left -= bytes


def _place(made: _Pass) -> Expr:
    """The index of a row's element, in the pass's own loop variables."""
    place: Expr = expr.index(0)
    for var, extent in made.axes:
        place = expr.add(expr.mul(place, expr.index(extent)), var)
    return place


def _cost(e: Expr, axes: Sequence[tuple[Var, dims.Dim]]) -> int:
    """The cost of one element, without subexpressions that are constant along the row."""
    rows = {var for var, _ in axes}
    inner = next((var for var, extent in reversed(axes) if extent != 1), None)
    seen: set[Expr] = set()
    stack, total = [e], 0
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Reduce) or not rows & expr.free_vars(node):
            continue
        seen.add(node)
        if isinstance(node, Load):
            step = 1 if inner is None else expr.coefficient(node.indices[0], inner)
            total += 1 if step == 1 else APART
            continue
        total += operation_cost(node)
        stack.extend(expr.children(node))
    return total
