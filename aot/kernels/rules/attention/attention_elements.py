"""The elements that attention kernels load and store: of the operands, the scores and the result.

Owns how the ops around an attention become part of its expressions: transposes and masks of the
loads, epilogues and transposes of the stores. Chooses no loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from aot.analysis.renaming import permutation_of
from aot.errors import InternalError, UnsupportedError
from aot.ir import dims, expr
from aot.ir.bounds import bounds_of
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Param, Var
from aot.ir.graph import Function, Value
from aot.ir.record import Kind, call_of
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, If, Scratch, Space, Stmt, Store
from aot.kernels.nest.inline import Inliner, flat_index
from aot.kernels.nest.nest import Axis
from aot.kernels.rules.rule import OpWork
from aot.ops.attention import BIAS, KEEP, K, Q, V, heads_a_group

Values = Mapping[Var, Expr]


class Elements(ABC):
    """The operands, scores and result of an attention executable as scalar expressions.

    Attributes:
        depth, width: of a query or key, and of a value.
        keys: keys of a tile.
        multiple: what `keys` and any other size of tiles divide; None where that is not known.
        row, key, d, e: variables that stand for a query, a key, and places in depth and width.
    """

    def __init__(self, work: OpWork) -> None:
        op, function = work.op, work.function
        (result,) = work.outputs
        self.nest, self.op, self.plan = work.nest, op, work.plan
        self.call = call_of(op)
        *lead, self.queries, depth = self.call.operand(Q).dims
        self.all_keys = self.call.operand(K).dims[-2]
        self.depth = self._number(depth, "queries")
        self.width = self._number(self.call.operand(V).dims[-1], "values")
        self.wide = op.result.type.dtype.accumulator
        self.known = bounds_of(function.assumptions)
        self.keys = self.tile_keys()
        self.multiple: Dim | None = self.keys
        self.axes = [Axis(Var(f"b{n}"), extent) for n, extent in enumerate(lead) if extent != 1]
        axes = iter(self.axes)
        self.lead = [expr.index(0) if extent == 1 else next(axes).var for extent in lead]
        self.row, self.key, self.d, self.e = (Var(name) for name in ("row", "key", "d", "e"))
        # the op's result in the expressions of what stands after it
        self._mixed = _placeholder(op.result.type.dtype)
        self._inliner = Inliner(function, {**work.buffers, op.result: self._mixed})
        self._bind_operands()
        self._bind_result(function, result)

    def _number(self, extent: Dim, what: str) -> int:
        if isinstance(extent, int):
            return extent
        raise UnsupportedError(
            "attention needs its depths as numbers; bind the dims that they depend on:",
            [f"the depth of the {what} is {extent}"],
        )

    @abstractmethod
    def tile_keys(self) -> int: ...

    @abstractmethod
    def build(self) -> tuple[Stmt, ...]: ...

    # elements

    def _bind_operands(self) -> None:
        group, head = heads_a_group(self.call), self.lead[-1]
        theirs = self.call.operand(K).dims[-3]
        shared = expr.index(0)
        if theirs != 1:
            shared = expr.binary("floordiv", head, expr.index(group))
        lead = [*self.lead[:-1], shared]
        self._q = self._operand(Q, [*self.lead, self.row, self.d])
        self._k = self._operand(K, [*lead, self.key, self.d])
        self._v_at: list[Expr] = [*lead, self.key, self.e]
        self._v = self._operand(V, self._v_at)
        scores = [*self.lead, self.row, self.key]
        self._bias = self._broadcast(BIAS, scores)
        self._keep = self._broadcast(KEEP, scores)

    def _operand(self, number: int, indices: Sequence[Expr], guard: Expr | None = None) -> Expr:
        value = self.op.operands[number]
        assert value is not None
        return expr.cast(self._inliner.element(value, indices, guard), self.wide)

    def _broadcast(self, number: int, indices: Sequence[Expr]) -> Expr | None:
        if not self.call.has(number):
            return None
        value, extents = self.op.operands[number], self.call.operand(number).dims
        assert value is not None
        tail = indices[len(indices) - len(extents) :]
        at = [expr.index(0) if n == 1 else i for n, i in zip(extents, tail, strict=True)]
        return self._inliner.element(value, at)

    def _bind_result(self, function: Function, result: Buffer) -> None:
        """Follows the op's result through epilogues and transposes to the executable's result."""
        (value,) = function.results
        at: list[Expr] = [*self.lead, self.row, self.e]
        known: dict[Value, list[Expr]] = {self.op.result: at}
        for op in function.block:
            source = next((known[v] for v in op.operands if v is not None and v in known), None)
            if source is None or op.record.is_terminator:
                continue
            order = permutation_of(op)
            if order is not None:
                known[op.result] = [source[d] for d in order]
            elif op.record.kind is Kind.ELEMENTWISE:
                known[op.result] = source
            else:
                raise InternalError(f"{op} can't follow {self.op} in executable {function.name}")
        self._result = result
        self._address = flat_index(value.type, known[value])
        self._value = self._inliner.element(value, known[value])

    def query(self, values: Values, row: Expr, d: Expr) -> Expr:
        return expr.substitute(self._q, {**values, self.row: row, self.d: d})

    def scaled_query(self, values: Values, row: Expr, d: Expr) -> Expr:
        return self._scaled(self.query(values, row, d))

    def padded_query(self, values: Values, row: Expr, d: Expr) -> Expr:
        """An element of a scaled query; 0 beyond the query's depth."""
        inside = expr.binary("lt", self.d, expr.index(self.depth))
        padded = self._operand(Q, [*self.lead, self.row, self.d], inside)
        return self._scaled(expr.substitute(padded, {**values, self.row: row, self.d: d}))

    def _scaled(self, query: Expr) -> Expr:
        scale = self.call.float("scale")
        return query if scale == 1 else expr.mul(query, self.const(scale))

    def key_element(self, values: Values, key: Expr, d: Expr) -> Expr:
        return expr.substitute(self._k, {**values, self.key: self._there(key), self.d: d})

    def value_element(self, values: Values, key: Expr, e: Expr) -> Expr:
        return expr.substitute(self._v, {**values, self.key: self._there(key), self.e: e})

    def split_key(
        self, values: Values, key: Expr, d: Expr, *, is_there: bool = False
    ) -> tuple[Expr, Expr | None]:
        """(element of a key, scale common to the key's elements or None). With `is_there` the key
        is known to be in bounds.
        """
        parts = _factored(self._k, self.d)
        at = key if is_there else self._there(key)
        return self._split(parts, {**values, self.key: at, self.d: d})

    def split_value(self, values: Values, key: Expr, e: Expr) -> tuple[Expr, Expr | None]:
        """(factor, other factor) of a value's element, as `split_key` gives them of a key."""
        parts = _factored(self._v, self.e)
        return self._split(parts, {**values, self.key: self._there(key), self.e: e})

    def _split(self, parts: tuple[Expr, Expr | None], here: Values) -> tuple[Expr, Expr | None]:
        element, factor = parts
        return expr.substitute(element, here), factor and expr.substitute(factor, here)

    def padded_value(self, values: Values, key: Expr, e: Expr) -> Expr:
        """An element of a value; 0 beyond the value's width."""
        inside = expr.binary("lt", self.e, expr.index(self.width))
        padded = self._operand(V, self._v_at, inside)
        return expr.substitute(padded, {**values, self.key: self._there(key), self.e: e})

    def has_whole_queries(self) -> bool:
        """Whether a query's elements are contiguous in memory and need no other operand."""
        return _is_contiguous(self._q, self.d)

    def has_whole_keys(self) -> bool:
        """Whether a key's elements are contiguous in memory, so that they load as vectors."""
        return _is_contiguous(self._k, self.d)

    def has_keys_abreast(self) -> bool:
        """Whether the same element of neighbouring keys is contiguous in memory, with equally large
        tiles of keys or a single tile.
        """
        is_one = isinstance(self.all_keys, int) and self.all_keys <= self.keys
        return (is_one or self._has_whole_tiles) and _is_contiguous(self._k, self.key)

    def has_whole_values(self) -> bool:
        """Whether a value's elements are contiguous in memory, so that they load as vectors."""
        return _is_contiguous(self._v, self.e)

    def has_plain_keys(self) -> bool:
        """Whether keys are plain loads, with nothing computed of them."""
        return isinstance(self._k, Load)

    def has_plain_values(self) -> bool:
        """Whether values are plain loads, with nothing computed of them."""
        return isinstance(self._v, Load)

    def _there(self, key: Expr) -> Expr:
        """`key`, clamped to the last key where tiles may pass the end."""
        if self._has_whole_tiles:
            return key
        return expr.binary("min", key, expr.index(dims.add(self.all_keys, -1)))

    def real_row(self, row: Expr, count: int) -> Expr:
        """`row`, clamped to the last query where blocks of `count` may pass the end."""
        if dims.modulo(self.queries, count) == 0:
            return row
        return expr.binary("min", row, expr.index(dims.add(self.queries, -1)))

    def has_row(self, row: Expr, count: int, body: Sequence[Stmt]) -> list[Stmt]:
        """`body` under the condition that query `row` exists; without the condition if the number
        of queries is a multiple of `count`.
        """
        if dims.modulo(self.queries, count) == 0:
            return list(body)
        return [If(expr.binary("lt", row, expr.index(self.queries)), tuple(body))]

    @property
    def has_plain_scores(self) -> bool:
        """Whether scores are the scaled products alone, at all positions: without bias, mask,
        offset or cap.
        """
        rest = (self._bias, self._keep, self.call.attrs["offset"])
        is_capped = self.call.float("softcap") != 0
        return self._has_whole_tiles and not is_capped and all(x is None for x in rest)

    @property
    def _has_whole_tiles(self) -> bool:
        return self.multiple is not None and dims.modulo(self.all_keys, self.multiple) == 0

    def score(
        self, values: Values, row: Expr, key: Expr, product: Expr, place: Expr | None = None
    ) -> Expr:
        """The score of a query and a key; -inf where masked.

        `place` is the row before it was held to those that are there: lanes of queries compare it
        with a key at once, and what queries past the last one see, nobody asks.
        """
        here = {**values, self.row: row, self.key: self._there(key)}
        cap = self.call.float("softcap")
        if cap:
            share = expr.unary("tanh", expr.mul(product, self.const(1 / cap)))
            product = expr.mul(share, self.const(cap))
        if self._bias is not None:
            bias = expr.cast(expr.substitute(self._bias, here), self.wide)
            product = expr.add(product, bias)
        if self._keep is not None:
            keep = expr.substitute(self._keep, here)
            product = expr.select(keep, product, self.const(self.call.float("fill")))
        conditions: list[Expr] = []
        if not self._has_whole_tiles:
            conditions.append(expr.binary("lt", key, expr.index(self.all_keys)))
        last = self.last_key(row if place is None else place)
        if last is not None:
            conditions.append(expr.binary("le", key, last))
        counts = expr.all_of(conditions)
        return product if counts is None else expr.select(counts, product, self.const(-np.inf))

    def last_key(self, row: Expr) -> Expr | None:
        """The last key that a causal mask leaves to a query; None where it sees all."""
        offset = self.call.attrs["offset"]
        return None if offset is None else expr.add(row, expr.index(offset))  # type: ignore[arg-type]

    def reached(self, row: Expr, key: Expr, body: Sequence[Stmt]) -> list[Stmt]:
        """`body`, under the condition that a causal mask leaves `key` or a later key to the
        query."""
        last = self.last_key(row)
        return list(body) if last is None else [If(expr.binary("le", key, last), tuple(body))]

    def share(self, total: Expr) -> Expr:
        """The factor that normalises the weighted sum of values, given the `total` of its weights;
        0 if that is 0.
        """
        zero, one = self.const(0), self.const(1)
        inverse = expr.binary("div", one, total)
        return expr.select(expr.binary("eq", total, zero), zero, inverse)

    def store(self, values: Values, row: Expr, e: Expr, mixed: Expr, share: Expr) -> Stmt:
        """The store of one normalised element, through the executable's epilogue."""
        result = expr.cast(expr.mul(mixed, share), self._mixed.dtype)
        here = {**values, self.row: row, self.e: e}

        def rewrite(x: Expr) -> Expr | None:
            if isinstance(x, Load) and x.source is self._mixed:
                return result
            return here.get(x) if isinstance(x, Var) else None

        address, value = (expr.transform(x, rewrite) for x in (self._address, self._value))
        return Store(self._result, (address,), value)

    # small things

    def const(self, value: float) -> Expr:
        return expr.const(value, self.wide)

    @property
    def lowest(self) -> Expr:
        return self.const(float(np.finfo(self.wide.numpy).min))

    def larger(self, a: Expr, b: Expr) -> Expr:
        """The larger of two numbers; `a` where `b` is NaN, since NaN then appears in its weight."""
        return expr.select(expr.binary("lt", a, b), b, a)

    def scratch(self, name: str, *shape: int, space: Space = Space.WORKGROUP) -> Scratch:
        return self.nest.builder.scratch(name, self.wide, shape, space)


def load(source: Scratch, *indices: Expr) -> Load:
    """The load of one element of scratch."""
    return Load(source, indices, source.dtype)


def _is_contiguous(e: Expr, var: Var) -> bool:
    """Whether `e` has a single load that varies along `var`, with stride 1."""
    steps = [expr.coefficient(x.indices[0], var) for x in expr.loads(e)]
    return [step for step in steps if step != 0] == [1]


def _factored(e: Expr, var: Var) -> tuple[Expr, Expr | None]:
    """(factor, other factor) of `e`, the second independent of `var`, such as a row's scale; None
    means 1.
    """
    if isinstance(e, Binary) and e.op == "mul":
        for factor, rest in ((e.a, e.b), (e.b, e.a)):
            if var not in expr.free_vars(factor):
                return rest, factor
    return e, None


def _placeholder(dtype: DType) -> Buffer:
    offset = Param("mixed_offset", DType.INDEX)
    return Buffer("mixed", dtype, BufferClass.ARENA, offset, (1,), (1,))
