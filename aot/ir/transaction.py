"""Several edits of a function that become true together, or not at all.

Replacing two operands one after the other may pass through a state that no shape rule accepts;
here nothing is checked in between. Owns the order of committing; the edits are the Rewriter's.
"""

from __future__ import annotations

from types import TracebackType

from aot.errors import CompileError, InternalError
from aot.ir.graph import Assumption, Attr, Op, Value
from aot.ir.index_map import IndexMap
from aot.ir.rewriter import Rewriter
from aot.ir.types import TensorType


class Transaction:
    """Edits are noted, and made when the `with` block ends without an error.

        with rewriter.transaction() as edit:
            edit.set_operand(add, 0, wide_x)
            edit.set_operand(add, 1, wide_y)

    Each touched op's shape rule then runs once, in program order. Where a result's type changes,
    its users see the old type through a pending change; a user for which the same transaction set
    that operand sees the new one. If a rule fails nothing is changed.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._operands: dict[tuple[Op, int], Value | None] = {}
        self._attrs: dict[Op, dict[str, Attr]] = {}
        self._replaced: dict[Value, tuple[Value, IndexMap]] = {}
        self._maps: dict[Value, IndexMap] = {}

    def set_operand(self, op: Op, index: int, value: Value | None) -> None:
        """Rewires one operand, to a value of any type."""
        if not 0 <= index < len(op.operands):
            raise InternalError(f"{op} has no operand {index}")
        self._operands[op, index] = value

    def set_attr(self, op: Op, name: str, value: Attr) -> None:
        """Changes an attribute, the results' types with it."""
        self._attrs.setdefault(op, {})[name] = value

    def replace(self, old: Value, fresh: Value, map: IndexMap = IndexMap()) -> None:  # noqa: B008
        """Lets users of `old` see `fresh` through `map`, but for operands that are set here."""
        self._replaced[old] = fresh, map

    def see_through(self, value: Value, map: IndexMap) -> None:
        """Users of a touched op's result see the old one as the new one through `map`; without
        this its dims must stay."""
        self._maps[value] = map

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()

    def commit(self) -> None:
        """Makes the edits.

        Raises:
            InternalError: names the op whose rule refuses; nothing is changed.
        """
        types: dict[Value, TensorType] = {}
        assumptions: list[Assumption] = []
        attrs: dict[Op, dict[str, Attr]] = {}
        for op in self._touched():
            attrs[op] = self._check(op, types, assumptions)
        self._check_replaced(types)
        self._rewriter.function.assumptions.update(dict.fromkeys(assumptions))
        for op, complete in attrs.items():
            for name, attr in complete.items():
                if op.attrs.get(name) is not attr:
                    self._rewriter.set_attr(op, name, attr)
        for value, type in types.items():
            self._rewriter.retype(value, type, self._maps.get(value, IndexMap()))
        for old, (fresh, map) in self._replaced.items():
            self._rewriter.replace_lazily(old, fresh, map)
        for (op, index), fresh_operand in self._operands.items():
            self._rewriter.rewire(op, index, fresh_operand)

    def _touched(self) -> list[Op]:
        """Ops with set operands or attributes, in program order."""
        touched = {op: None for op, _ in self._operands} | dict.fromkeys(self._attrs)
        blocks = dict.fromkeys(op.parent for op in touched)
        if None in blocks:
            raise InternalError("a transaction touches an op that is in no block")
        if len(touched) == 1:
            return list(touched)
        return [op for op in self._rewriter.function.walk() if op in touched]

    def _check(
        self, op: Op, types: dict[Value, TensorType], assumptions: list[Assumption]
    ) -> dict[str, Attr]:
        """Asks the op's shape rule; notes which results change their types."""
        operands: list[TensorType | None] = []
        for index, value in enumerate(op.operands):
            if (op, index) in self._operands:
                fresh = self._operands[op, index]
                operands.append(None if fresh is None else types.get(fresh, fresh.type))
            else:  # what the op sees of a value that changes is the old one
                operands.append(None if value is None else value.type)
        if op.record.results_from != "rule":
            raise self._refused(op, "its results do not come from a shape rule")
        try:
            call = op.record.call(operands, {**op.attrs, **self._attrs.get(op, {})}, op.origin)
        except CompileError as error:
            raise self._refused(op, str(error)) from None
        if len(call.result_types) != len(op.results):
            raise self._refused(op, f"it would have {len(call.result_types)} results")
        assumptions += call.assumptions
        for value, ruled in zip(op.results, call.result_types, strict=True):
            type = ruled
            if ruled.layout is None and (ruled.dtype, ruled.dims) == (
                value.type.dtype,
                value.type.dims,
            ):
                type = value.type  # layouts are the passes' choice, and stay
            map = self._maps.get(value, IndexMap())
            if map.result_dims(type.dims) != value.type.dims:
                raise self._refused(
                    op,
                    f"result {value.index} would be {type}, which users do not see as "
                    f"{value.type} through {map}",
                )
            if type != value.type or not map.is_identity:
                types[value] = type
        return call.attrs

    def _check_replaced(self, types: dict[Value, TensorType]) -> None:
        for old, (fresh, map) in self._replaced.items():
            if old in types:
                raise self._refused(old.op, "its result is both changed and replaced")
            dims = types.get(fresh, fresh.type).dims
            if map.result_dims(dims) != old.type.dims:
                raise InternalError(
                    f"the transaction is undone: no {map} leads from {fresh.type} to {old.type}"
                )

    def _refused(self, op: Op | None, why: str) -> InternalError:
        return InternalError(f"the transaction is undone: {op}: {why}")
