"""resolve-shapes: applies pending shape changes to all users of the changed values.

One sweep in order: each user of a pending change folds it, pushes it to its results, or gets it
materialised (a transpose, reshape, cast or copy). A change that no op absorbs is materialised where
that is cheapest.

Requires: regions are not formed yet, or nothing pending reaches one.
Ensures: no `pending_shape_change` is left; types are those that shape rules compute. Results of a
    function, operands of ops with blocks, captured and written values have their old types.
Never: calls an op's shape rule more than once, or at all where only layouts change; visits users of
    an op whose result types stay. Rounds, computes an element twice, or changes a rounding.
"""

from __future__ import annotations

from aot.analysis.control import block_of
from aot.errors import InternalError
from aot.ir.builtin import PENDING, pending_map
from aot.ir.graph import Attr, Block, Function, Module, Op, Value
from aot.ir.index_map import Broadcast, IndexMap, Slice, Step, Transpose, step_dims
from aot.ir.mapped_operand import IDENTITY
from aot.ir.record import OpRecord, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout, TensorType
from aot.ops.elementwise import CAST
from aot.ops.layout_rules import is_free
from aot.ops.movement import BROADCAST_TO, COPY, RESHAPE, SLICE, TRANSPOSE
from aot.passes.base import Pass, PassContext
from aot.passes.layout.eager_shapes import following
from aot.passes.layout.shape_sweep import Decision, Sweep

NAME = "resolve-shapes"


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        for key, amount in resolve(function).items():
            context.count(NAME, key, amount)


def resolve(function: Function) -> dict[str, int]:
    """Resolves a function's pending changes; returns counts of ops folded, of ops that changes were
    pushed through, and of ops made to materialise changes."""
    follower = following(function)
    sweep = Sweep(function).run() if follower is None else follower.finish()
    counts = carry_out(sweep)
    left = next((op for op in function.walk() if op.record is PENDING), None)
    if left is not None:
        raise InternalError(f"{left} is still pending")
    return counts


def carry_out(sweep: Sweep) -> dict[str, int]:
    """Applies the decisions of `sweep` to its function, and returns statistics."""
    return _Resolver(sweep).run()


class _Resolver:
    """Applies the decisions of a sweep over pending shape changes.

    Attributes:
        sources: the source of each changed value.
        made: materialised values: (source, map, type, block) -> value.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.function = sweep.function
        self.sources: dict[Value, Value] = {}
        self.made: dict[tuple[Value, IndexMap, TensorType, Block | None], Value] = {}
        self.counts = {"folded": 0, "pushed": 0, "materialised": 0}

    def run(self) -> dict[str, int]:
        dead: list[Op] = []
        for op in [op for op in self.function.walk() if op in self.sweep.decisions]:
            decision = self.sweep.decisions[op]
            if decision.is_in_place:
                self.in_place(op)
                dead.append(op)
                continue
            if decision.propagated is None:
                self.leave(op)
                continue
            rebuild = self.removed if decision.propagated.is_removed else self.rebuilt
            fresh = rebuild(op, decision)
            for old, value, mapped in zip(op.results, fresh, decision.results, strict=True):
                if mapped is not None:
                    self.sources[old] = value
                else:
                    Rewriter(self.function).replace(old, value)
            dead.append(op)
        for op in reversed(dead):
            Rewriter(self.function).erase(op)
        return self.counts

    def in_place(self, op: Op) -> None:
        """Materialises a pending change at its own place, for all users."""
        if not op.result.uses:
            return
        self.leave(op)
        (source,) = op.operands
        assert source is not None
        at, type = Rewriter(self.function).at(op), op.result.type
        made = materialise(source, pending_map(call_of(op)), type, at, op.origin)
        self.counts["materialised"] += 1
        if made is source:  # written memory is never shared by chance
            made = _make(COPY, source, {"layout": type.layout or Layout()}, type, at, op.origin)
        Rewriter(self.function).replace(op.result, made)

    def leave(self, op: Op) -> None:
        """Gives an op its operands with their old shapes."""
        for number, value in enumerate(op.operands):
            if value is not None and value in self.sources:
                Rewriter(self.function).set_operand(op, number, self.materialised(value, op))

    def removed(self, op: Op, decision: Decision) -> list[Value]:
        """The source that replaces the result of a removed op."""
        self.count(op, is_pushed=False)
        return [self.source(op, 0, decision)]

    def rebuilt(self, op: Op, decision: Decision) -> list[Value]:
        """The results of `op` rebuilt on the sources of its operands."""
        assert decision.propagated is not None
        operands: list[Value | None] = []
        for number, map in enumerate(decision.propagated.operands):
            if op.operands[number] is None:
                operands.append(None)
                continue
            source = self.source(op, number, decision)
            if not map.is_identity:
                type = source.type.with_dims(map.result_dims(source.type.dims))
                source = self.through(source, map, type, op)
            operands.append(source)
        self.count(op, is_pushed=decision.is_pushed)
        types = [
            value.type if mapped is None else type
            for value, mapped, type in zip(
                op.results, decision.results, decision.types, strict=True
            )
        ]
        self.function.assumptions.update(dict.fromkeys(decision.assumptions))
        made = Op(op.record, operands, decision.attrs, types, (), op.origin)
        return Rewriter(self.function).at(op).insert(made).results

    def count(self, op: Op, *, is_pushed: bool) -> None:
        if op.record is not PENDING:
            self.counts["pushed" if is_pushed else "folded"] += 1

    def source(self, op: Op, number: int, decision: Decision) -> Value:
        """The value that the new op reads in place of operand `number`."""
        value = op.operands[number]
        assert value is not None
        if value not in self.sources:
            return value
        if block_of(value) is not op.parent:
            return self.materialised(value, op)
        source = self.sources[value]
        if number not in decision.casts:
            return source
        return self.through(source, IDENTITY, source.type.with_dtype(value.type.dtype), op)

    def materialised(self, value: Value, user: Op) -> Value:
        """`value` materialised with its old shape, for its user."""
        return self.through(
            self.sources[value], self.sweep.changed[value].map, value.type, user, value
        )

    def through(
        self, source: Value, map: IndexMap, type: TensorType, user: Op, old: Value | None = None
    ) -> Value:
        """`source` mapped by `map` to `type`, materialised where `user` first needs it."""
        block = block_of(old or source)
        key = (source, map, type, block)
        if key not in self.made:
            at = Rewriter(self.function).at(_ancestor(user, block))
            made = materialise(source, map, type, at, user.origin)
            self.counts["materialised"] += made is not source
            if old is not None and old.name and not made.name and made is not source:
                made.name = old.name
            self.made[key] = made
        return self.made[key]


def _ancestor(op: Op, block: Block | None) -> Op:
    """The op in `block` that is, or contains, `op`."""
    while op.parent is not block:
        assert op.parent is not None and isinstance(op.parent.owner, Op)
        op = op.parent.owner
    return op


# materialising


def materialise(
    source: Value, map: IndexMap, type: TensorType, at: Rewriter, origin: str = ""
) -> Value:
    """Materialises `source` mapped by `map` as `type`: movement steps, then a cast, then a layout
    change, as needed.

    No shape rule is asked: a map says what it gives.
    """
    value = source
    for number, step in enumerate(map.steps):
        last = number == len(map.steps) - 1 and type.dtype is value.type.dtype
        dims = step_dims(step, value.type.dims)
        layout = type.layout if last else None
        if is_free(IndexMap((step,)), value.type.dims):
            value = _dense(value, at, origin)
            made = TensorType(value.type.dtype, dims)
            value = _make(RESHAPE, value, {"shape": dims}, made, at, origin)
        else:
            record, attrs = _STEPS[step.__class__.__name__](step)
            made = TensorType(value.type.dtype, dims, layout)
            value = _make(record, value, attrs, made, at, origin)
    if value.type.dtype is not type.dtype:
        value = _make(CAST, value, {"to": type.dtype}, type, at, origin)
    if value.type.layout != type.layout:
        value = _make(COPY, value, {"layout": type.layout or Layout()}, type, at, origin)
    return value


def _dense(value: Value, at: Rewriter, origin: str) -> Value:
    if value.type.layout is None:
        return value
    type = value.type.with_dims(value.type.dims)
    return _make(COPY, value, {"layout": Layout()}, type, at, origin)


def _make(
    record: OpRecord,
    value: Value,
    attrs: dict[str, Attr],
    type: TensorType,
    at: Rewriter,
    origin: str,
) -> Value:
    call = record.check([value.type], attrs, origin)
    at.function.assumptions.update(dict.fromkeys(call.assumptions))
    return at.insert(Op(record, [value], call.attrs, [type], (), origin)).result


def _transpose(step: Step) -> tuple[OpRecord, dict[str, Attr]]:
    assert isinstance(step, Transpose)
    return TRANSPOSE, {"perm": step.perm}


def _slice(step: Step) -> tuple[OpRecord, dict[str, Attr]]:
    assert isinstance(step, Slice)
    return SLICE, {"starts": step.starts, "stops": step.stops, "steps": step.steps}


def _broadcast(step: Step) -> tuple[OpRecord, dict[str, Attr]]:
    assert isinstance(step, Broadcast)
    return BROADCAST_TO, {"shape": step.dims}


_STEPS = {"Transpose": _transpose, "Slice": _slice, "Broadcast": _broadcast}

RESOLVE_SHAPES = Pass(NAME, run, __doc__, is_resolving=True)
