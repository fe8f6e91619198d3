"""Decides how each op treats the pending changes of its operands, in one walk in program order.

Owns the decisions (fold, push, materialise) and their costs, by the ops' `propagate` rules; changes
nothing. resolve-shapes applies them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import block_of
from aot.analysis.memory.views import canonical, map_of, memory_order, view_type
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir.builtin import CONSTANT, PENDING, pending_map
from aot.ir.graph import Assumption, Attr, Function, Op, Value, casts_as_one
from aot.ir.index_map import IndexMap
from aot.ir.mapped_operand import IDENTITY, MappedOperand, Propagated
from aot.ir.record import Call, Kind, call_of, contraction_of
from aot.ir.types import Layout, TensorType
from aot.ops.layout_rules import cost, permutation
from aot.ops.movement import COPY


@dataclass(frozen=True)
class Decision:
    """The decision about an op some of whose operands have pending changes.

    Attributes:
        propagated: how the op runs on the sources; None if it stays and the changes are
            materialised.
        casts: operands whose source is cast to the dtype of the operand.
        attrs: of the rebuilt op.
        types: results of the rebuilt op.
        results: each old result as a map of the new one; None where nothing about it changes.
        assumptions: of the shape rule.
        is_in_place: whether a pending change is materialised where it is, because its memory, or
            the memory that it is a view of, is written.
    """

    propagated: Propagated | None = None
    casts: frozenset[int] = frozenset()
    attrs: dict[str, Attr] = field(default_factory=dict)
    types: tuple[TensorType, ...] = ()
    results: tuple[MappedOperand | None, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    is_in_place: bool = False

    @property
    def is_pushed(self) -> bool:
        return any(mapped is not None for mapped in self.results)


STAYS = Decision()


class Sweep:
    """The decisions of one walk over a function; each op is decided once.

    Args:
        deferred: ops that are an index map and count as pending changes themselves.
        asks_rules: result types come from shape rules, which check them; else from the maps alone.

    Attributes:
        changed: values that will be had otherwise, and how.
        decisions: by op; ops that are not here see no change.
        has_asked: a shape rule was called.
    """

    def __init__(
        self, function: Function, deferred: Collection[Op] = (), *, asks_rules: bool = True
    ) -> None:
        self.function = function
        self.deferred = deferred
        self.asks_rules = asks_rules
        self.changed: dict[Value, MappedOperand] = {}
        self.decisions: dict[Op, Decision] = {}
        self.has_asked = False
        self._db = AliasDb.where_written(function)

    def run(self) -> Sweep:
        for op in self.function.walk():
            if self.concerns(op):
                self.take(op, self.decide(op))
        self._retreat()
        return self

    def concerns(self, op: Op) -> bool:
        """Whether `op` is a pending change or has a changed operand."""
        return (
            op.record is PENDING
            or any(v in self.changed for v in op.operands if v is not None)
            or op in self.deferred
        )

    def take(self, op: Op, decision: Decision) -> bool:
        """Records a decision; returns whether it changes the results' mapping."""
        self.decisions[op] = decision
        is_news = False
        for number, value in enumerate(op.results):
            mapped = decision.results[number] if decision.results else None
            is_news |= mapped != self.changed.get(value)
            if mapped is None:
                self.changed.pop(value, None)
            else:
                self.changed[value] = mapped
        return is_news

    def operand(self, op: Op, value: Value | None) -> MappedOperand | None:
        """The mapped operand that `op` sees for a value; values captured from an enclosing block
        never change."""
        if value is None:
            return None
        if value in self.changed and block_of(value) is op.parent:
            return self.changed[value]
        is_constant = value.op is not None and value.op.record is CONSTANT
        return MappedOperand(value.type, IDENTITY, is_constant)

    def operands(self, op: Op) -> list[MappedOperand | None]:
        return [self.operand(op, value) for value in op.operands]

    def decide(self, op: Op) -> Decision:
        """The decision for `op`, given the index maps of its operands."""
        operands = self.operands(op)
        if op.record is PENDING or op in self.deferred:
            return self._change(op, operands[0])
        if _is_boundary(op) or not any(_is_changed(op, n, s) for n, s in enumerate(operands)):
            return STAYS
        if any(self._is_written(value) for value in op.results):
            return STAYS
        return (
            self._relaid(op, operands)
            if _lies_otherwise(op, operands)
            else (self._propagated(op, operands))
        )

    def _is_written(self, value: Value) -> bool:
        """Whether a value's memory may be written, so that the time of a read matters."""
        return self._db is not None and self._db.has_writers(value)

    # changes themselves

    def _change(self, op: Op, mapped: MappedOperand | None) -> Decision:
        value = op.operands[0]
        assert mapped is not None and value is not None
        call = call_of(op)
        if op.record is PENDING:
            map = pending_map(call)
        else:
            assert op.record.index_map is not None
            map = op.record.index_map(call)
        if self._is_written(value) or self._is_written(op.result):
            return Decision(is_in_place=True) if op.record is PENDING else STAYS
        source, between, to = mapped.type.dtype, value.type.dtype, op.result.type.dtype
        is_cast = source is not between and to is not between
        is_cast = is_cast and not casts_as_one(source, between, to)
        whole = mapped.map.then(map, mapped.type.dims)
        answer = Propagated((IDENTITY,), (whole,), is_removed=True)
        return self._removed(op, mapped, answer, frozenset([0] if is_cast else []))

    def _removed(
        self, op: Op, mapped: MappedOperand, answer: Propagated, casts: frozenset[int]
    ) -> Decision:
        value = op.operands[0]
        assert value is not None
        type = mapped.type.with_dtype(value.type.dtype) if casts else mapped.type
        return self._decided(op, answer, casts, dict(op.attrs), (type,), (), mapped.is_constant)

    def _decided(
        self,
        op: Op,
        answer: Propagated,
        casts: frozenset[int],
        attrs: dict[str, Attr],
        types: tuple[TensorType, ...],
        assumptions: tuple[Assumption, ...] = (),
        is_constant: bool = False,
    ) -> Decision:
        """The decision, if the index maps lead from the new results to the old ones."""
        mapped: list[MappedOperand | None] = []
        for value, type, map in zip(op.results, types, answer.results, strict=True):
            if map.result_dims(type.dims) != value.type.dims:
                return STAYS
            same = map.is_identity and type == value.type
            mapped.append(None if same else MappedOperand(type, map, is_constant))
        return Decision(answer, casts, attrs, types, tuple(mapped), assumptions)

    # where only the layout differs

    def _relaid(self, op: Op, operands: Sequence[MappedOperand | None]) -> Decision:
        """The decision for an op whose operands keep their index maps and dtypes: the shape rule's
        answer stays the same.
        """
        record = op.record
        maps = (IDENTITY,) * len(op.results)
        answer = Propagated((IDENTITY,) * len(operands), maps)
        if record is COPY:
            assert operands[0] is not None
            return self._removed(op, operands[0], replace(answer, is_removed=True), frozenset())
        if record.compute is None or record.kind.has_handwritten_kernel:
            return STAYS
        types = tuple(v.type for v in op.results)
        if record.index_map is not None:
            assert operands[0] is not None
            free = _free_view(op, operands[0].type)
            if free is not None and not _parts_columns(op.result, free):
                types = (free,)
            elif record.kind is Kind.VIEW and types[0].layout is None:
                return STAYS  # its operand's maker may write dense memory as well
        elif record.kind is Kind.ELEMENTWISE:
            types = (_taken_over(op, [None if s is None else s.type for s in operands], types[0]),)
        return self._decided(op, answer, frozenset(), dict(op.attrs), types)

    # where elements move or are converted

    def _propagated(self, op: Op, operands: Sequence[MappedOperand | None]) -> Decision:
        call = call_of(op)
        answer = op.record.propagate(call, operands) if op.record.propagate is not None else None
        if answer is None or not _pays(answer, operands):
            return STAYS
        casts = _casts(call, operands, answer)
        if answer.is_removed:
            assert operands[0] is not None
            return self._removed(op, operands[0], answer, casts)
        sources = [
            None if mapped is None else _read(op, number, mapped, answer, number in casts)
            for number, mapped in enumerate(operands)
        ]
        attrs = {**op.attrs, **answer.attrs}
        made = self._types(op, sources, attrs, answer)
        if made is None:
            return STAYS
        types = [
            canonical(TensorType(t.dtype, t.dims, _carried_layout(v.type, map)))
            for t, v, map in zip(made.result_types, op.results, answer.results, strict=True)
        ]
        if any(t and t.layout and _is_changed(op, n, operands[n]) for n, t in enumerate(sources)):
            if op.record.kind is Kind.ELEMENTWISE:
                types[0] = _taken_over(op, sources, types[0])
            elif op.record.compute is None or op.record.kind.has_handwritten_kernel:
                return STAYS
            elif op.record.kind is Kind.VIEW:
                free = None
                if op.record.index_map is not None and sources[0] is not None:
                    free = view_type(op.record.index_map(made), sources[0])
                if free is None or (free.layout and free.layout.strides):
                    return STAYS
                types[0] = free
        return self._decided(op, answer, casts, attrs, tuple(types), tuple(made.assumptions))

    def _types(
        self,
        op: Op,
        sources: Sequence[TensorType | None],
        attrs: dict[str, Attr],
        answer: Propagated,
    ) -> Call | None:
        """The call of the recreated op; None if it would be invalid."""
        if all(map.is_identity for map in answer.results) and _have_dims(op, sources):
            dtype = sources[0].dtype if answer.moves and sources[0] is not None else None
            types = [v.type if dtype is None else v.type.with_dtype(dtype) for v in op.results]
            return Call(op.record, tuple(sources), attrs, op.origin, result_types=tuple(types))
        if not self.asks_rules:
            found = [
                _before(v.type, m, self.operands(op), op.record.kind is Kind.ELEMENTWISE)
                for v, m in zip(op.results, answer.results, strict=True)
            ]
            known = tuple(t for t in found if t is not None)
            if len(known) == len(found):
                return Call(op.record, tuple(sources), attrs, op.origin, result_types=known)
        self.has_asked = True
        try:
            return op.record.call(sources, attrs, op.origin)
        except CompileError:
            return None

    # what gained nothing

    def _retreat(self) -> None:
        """Moves materialisations back to where they are cheapest.

        From the last op on: one that was pushed through, and whose results are all materialised
        again, stays as it was where bringing its operands into place costs no more. So a change
        that nothing takes in stays where it was made.

        A place between two elementwise ops is never the cheapest, however narrow the value there:
        it would part what runs as one.
        """
        least: dict[Value, int] = {}
        order = {op: n for n, op in enumerate(self.function.walk()) if op in self.decisions}
        for op in reversed(order):
            decision = self.decisions[op]
            if not decision.is_pushed or op.record is PENDING or op in self.deferred:
                continue
            changed = [v for v in op.results if v in self.changed]
            if not all(self.is_materialised(user, v) for v in changed for user in v.users):
                continue
            if all(_is_layout(v.type, self.changed[v]) for v in changed):
                # whatever the layouts that it reads, the op can write the old one
                if op.record.kind is not Kind.VIEW and not _is_removed(decision):
                    types = tuple(v.type for v in op.results)
                    self.take(op, replace(decision, types=types, results=(None,) * len(types)))
                continue
            if all(_is_narrower(v.type, self.changed[v]) for v in changed):
                continue  # less is moved than before
            now = sum(
                max(cost(self.changed[v], self.changed[v].map), least.get(v, 0)) for v in changed
            )
            if self._cost_of_staying(op, decision) <= now:
                if op.record.kind is Kind.ELEMENTWISE:
                    between = (v for v in op.operands if v in self.changed and _is_elementwise(v))
                    least.update(dict.fromkeys(filter(None, between), now))
                self.take(op, STAYS)

    def is_materialised(self, user: Op, value: Value) -> bool:
        """Whether `user` reads a changed value in its old form."""
        decision = self.decisions.get(user)
        return decision is None or decision.propagated is None or block_of(value) is not user.parent

    def _cost_of_staying(self, op: Op, decision: Decision) -> int:
        """The additional cost of changing the operands back to their old form, compared with
        running the op on their sources; the results' costs are not counted.
        """
        total = 0
        assert decision.propagated is not None
        for number, value in enumerate(dict.fromkeys(op.operands)):
            mapped = self.operand(op, value)
            if value is None or mapped is None or not _is_changed(op, number, mapped, value):
                continue
            if any(u is not op and self.is_materialised(u, value) for u in value.users):
                continue  # it is there anyway
            total += cost(mapped, mapped.map)
        for mapped, map in zip(self.operands(op), decision.propagated.operands, strict=True):
            total -= 0 if mapped is None else cost(mapped, map)
        return total


def _is_elementwise(value: Value | None) -> bool:
    return value is not None and (value.op is not None and value.op.record.kind is Kind.ELEMENTWISE)


def _is_boundary(op: Op) -> bool:
    """Whether the op needs its operands in their declared form: returns, blocks, writes, calls."""
    record = op.record
    return (
        record.is_terminator
        or bool(op.blocks)
        or record.results_from != "rule"
        or bool(record.writes)
        or record.has_side_effects
    )


def _is_changed(
    op: Op, number: int, mapped: MappedOperand | None, value: Value | None = None
) -> bool:
    value = value if value is not None else op.operands[number]
    return (
        mapped is not None
        and value is not None
        and not (mapped.map.is_identity and mapped.type == value.type)
    )


def _is_layout(old: TensorType, mapped: MappedOperand) -> bool:
    """Whether only a value's layout changes."""
    return mapped.map.is_identity and mapped.type.dtype is old.dtype


def _is_narrower(old: TensorType, mapped: MappedOperand) -> bool:
    """Whether only the dtype changes, to one with no more bytes."""
    return mapped.map.is_identity and mapped.type.dtype.bytes <= old.dtype.bytes


def _lies_otherwise(op: Op, operands: Sequence[MappedOperand | None]) -> bool:
    return all(
        mapped is None or value is None or _is_layout(value.type, mapped)
        for mapped, value in zip(operands, op.operands, strict=True)
    )


def _is_removed(decision: Decision) -> bool:
    return decision.propagated is not None and decision.propagated.is_removed


def _pays(answer: Propagated, operands: Sequence[MappedOperand | None]) -> bool:
    """Whether absorbing the maps costs no more than materialising every operand.

    Where it costs the same it may still meet something; `_retreat` undoes what met nothing.
    """
    there = [s for s in operands if s is not None]
    if answer.is_removed:
        return True
    ours = sum(
        cost(s, map) for s, map in zip(operands, answer.operands, strict=True) if s is not None
    )
    return ours <= sum(cost(s, s.map) for s in there)


def _casts(
    call: Call, operands: Sequence[MappedOperand | None], answer: Propagated
) -> frozenset[int]:
    """Operands whose source must be cast first: those of another dtype, unless the op only moves
    elements and all operands of that dtype change alike."""
    found = [
        number
        for number, (mapped, type) in enumerate(zip(operands, call.operands, strict=True))
        if mapped is not None and type is not None and mapped.type.dtype is not type.dtype
    ]
    if not answer.moves:
        return frozenset(found)
    values = [n for n, mapped in enumerate(operands) if mapped is not None and _is_value(call, n)]
    dtypes = {mapped.type.dtype for n in values if (mapped := operands[n]) is not None}
    return frozenset(n for n in found if n not in values or len(dtypes) > 1)


def _is_value(call: Call, number: int) -> bool:
    """Whether an operand must have the dtype of the first one."""
    specs = call.record.operands
    spec = specs[min(number, len(specs) - 1)]
    return spec is specs[0] or spec.same_as == specs[0].name


def _read(
    op: Op, number: int, mapped: MappedOperand, answer: Propagated, is_cast: bool
) -> TensorType:
    """The type of an operand of the recreated op."""
    value, map = op.operands[number], answer.operands[number]
    assert value is not None
    type = mapped.type.with_dtype(value.type.dtype) if is_cast else mapped.type
    return type if map.is_identity else type.with_dims(map.result_dims(type.dims))


def _have_dims(op: Op, sources: Sequence[TensorType | None]) -> bool:
    """Whether all operands keep their dims."""
    return all(
        type is None or value is None or type.dims == value.type.dims
        for type, value in zip(sources, op.operands, strict=True)
    )


def _before(
    type: TensorType, map: IndexMap, operands: Sequence[MappedOperand | None], is_elementwise: bool
) -> TensorType | None:
    """The type that `map` maps to `type`, for permutations, or where an operand of an elementwise
    op has the same map; else None.
    """
    perm = permutation(map, type.rank)
    if perm is None:
        alike = [s for s in operands if s is not None and s.map == map]
        return type.with_dims(alike[0].type.dims) if is_elementwise and alike else None
    dims = list(type.dims)
    for dim, at in enumerate(perm):
        dims[at] = type.dims[dim]
    return type.with_dims(tuple(dims))


# layouts


def _free_view(op: Op, operand: TensorType) -> TensorType | None:
    """The result type with which a movement op is a free view; None if there is none. Views with
    gaps are left to passes that place memory."""
    map = map_of(op)
    assert map is not None
    found = view_type(map, operand)
    return None if found is None or (found.layout and found.layout.strides) else found


def _parts_columns(value: Value, type: TensorType) -> bool:
    """Whether a product would gather non-contiguous columns if `value` had the layout of `type`."""
    for user, number in value.uses:
        contraction = contraction_of(user)
        if contraction is None or contraction.windows or contraction.right.operand != number:
            continue
        own = contraction.right.own
        if memory_order(value.type)[-1:] == own and memory_order(type)[-1:] != own:
            return True
    return False


def _taken_over(op: Op, sources: Sequence[TensorType | None], result: TensorType) -> TensorType:
    """`result` in the memory order of the full operands, where they have one; constants don't
    count.

    An op whose result did not lie as its operands did was given its layout on purpose, and keeps
    it.
    """
    layouts, before = set(), set()
    for type, value in zip(sources, op.operands, strict=True):
        if type is None or value is None or type.dims != result.dims:
            continue
        if value.op is None or value.op.record is not CONSTANT:
            layouts.add(dense_order(type))
            before.add(dense_order(value.type))
    if len(layouts) != 1 or before != {dense_order(op.result.type)}:
        return result
    return TensorType(result.dtype, result.dims, layouts.pop())


def dense_order(type: TensorType) -> Layout | None:
    """The dense layout with the order of `type`."""
    layout = type.layout
    if layout is None:
        return None
    made = Layout((), memory_order(type)) if layout.strides else layout
    return canonical(TensorType(type.dtype, type.dims, made)).layout


def _carried_layout(old: TensorType, map: IndexMap) -> Layout | None:
    """The layout of a value before `map` that keeps the memory order of `old`, if `map` is a
    permutation; else None."""
    layout, perm = old.layout, permutation(map, old.rank)
    if layout is None or perm is None:
        return None
    rank, inner = old.rank, len(layout.splits)
    whole = (*perm, *range(rank, rank + inner))  # physical dims: old to new
    order = tuple(whole[dim] for dim in (layout.order or range(rank + inner)))
    strides = list(layout.strides)
    for dim, stride in enumerate(layout.strides):
        strides[whole[dim]] = stride
    splits = tuple((perm[dim], factor) for dim, factor in layout.splits)
    return Layout(splits, order, tuple(strides))
