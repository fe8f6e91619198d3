"""Effects of ops on memory: which operands a result may alias, and what the op reads and writes.

Read from the op's record and used by the alias database; knows no op by its name. An op that by
definition is a view (a reshape, a tuple, a state variable) reads nothing, so it could be on either
side of a write. A slice or a transpose is defined as a copy, even if its types let it be a view: it
reads its operand, and may alias it as well.
"""

from __future__ import annotations

from aot.analysis.memory.views import is_view
from aot.base.records import dataclass
from aot.ir.graph import Block, Function, Op, Value
from aot.ir.record import Kind


@dataclass(frozen=True)
class Origin:
    """The origin of a value's memory.

    Attributes:
        sources: values that it may be the memory of, in any of them.
        kept: values that it keeps as a container does; it has no memory itself.
        is_opened: it may also be what `sources` keep.
        is_unknown: it may be any memory that others see.
        state: the state variable that it is.
    """

    sources: tuple[Value, ...] = ()
    kept: tuple[Value, ...] = ()
    is_opened: bool = False
    is_unknown: bool = False
    state: str = ""


FRESH = Origin()  # memory of its own, which only values that come from it are as well


def origin(value: Value) -> Origin:
    """The origin of a value's memory: from the op that defines it, or the block whose argument it
    is.
    """
    owner = value.owner
    if isinstance(owner, Op):
        return _origin_of_result(owner, value.index)
    if isinstance(owner.owner, Function):
        return Origin(is_unknown=True)
    return _origin_of_argument(owner, value.index)


def _origin_of_argument(block: Block, number: int) -> Origin:
    op = block.owner
    body = op.record.body if isinstance(op, Op) else None
    if body is None or not isinstance(op, Op):
        return Origin(is_unknown=True)
    entering = body.entering(op, number)
    return Origin(tuple(entering)) if entering else FRESH


def _origin_of_result(op: Op, number: int) -> Origin:
    record = op.record
    if record.has_unknown_effects:
        return Origin(_present(op), is_opened=True, is_unknown=True)
    if record.is_state:
        return Origin(state=str(op.attrs["variable"]))
    if record.container == "holds":
        return Origin(kept=_present(op))
    if record.body is not None:
        leaving = record.body.leaving(op, number)
        return Origin(tuple(leaving)) if leaving else FRESH
    shown = aliased_operands(op)
    sources = tuple(v for n in shown if (v := op.operands[n]) is not None)
    return Origin(sources, is_opened=record.container == "opens") if sources else FRESH


def _present(op: Op) -> tuple[Value, ...]:
    return tuple(v for v in op.operands if v is not None)


def aliased_operands(op: Op) -> tuple[int, ...]:
    """Numbers of the operands that the result aliases, by the op's definition or by the types'
    layouts.
    """
    is_laid_so = op.record.index_map is not None and op.record.view_of is None and is_view(op)
    return (0,) if is_laid_so else _aliased_by_meaning(op)


def _aliased_by_meaning(op: Op) -> tuple[int, ...]:
    """Operands that the result aliases by the op's definition, whatever the types."""
    if op.record.container == "joins":
        return tuple(range(len(op.operands)))
    return () if op.record.view_of is None else (op.record.view_of,)


def written_operands(op: Op) -> tuple[Value, ...]:
    """Operands that `op` itself writes, apart from its blocks; all of them for an op with unknown
    effects."""
    if op.record.has_unknown_effects:
        return _present(op)
    return tuple(v for n in op.record.writes if (v := op.operands[n]) is not None)


def read_operands(op: Op) -> tuple[Value, ...]:
    """Operands whose elements `op` itself reads, apart from its blocks."""
    record = op.record
    if record.kind is Kind.SHAPE or record.container == "holds":
        return ()
    hidden = {*_aliased_by_meaning(op), *record.writes, *_handed_on(op)}
    return tuple(v for n, v in enumerate(op.operands) if v is not None and n not in hidden)


def _handed_on(op: Op) -> range:
    """The operands that an op passes to or from blocks unchanged. Others, such as conditions and
    stacked values, are read; a region reads all of its operands.
    """
    body = op.record.body
    if body is not None:
        return range(0) if body.is_isolated else range(body.first, len(op.operands))
    outer = op.parent.owner if op.parent is not None else None
    body = outer.record.body if isinstance(outer, Op) else None
    if not op.record.is_terminator or body is None or body.is_isolated:
        return range(0)
    assert isinstance(outer, Op)
    count = len(outer.operands) - body.first if body.is_loop else len(outer.results)
    return range(len(body.steering), len(body.steering) + count)


def has_derived_origin(op: Op) -> bool:
    """Whether some value's origin may depend on the operands of `op`."""
    record = op.record
    return bool(
        record.body is not None
        or record.view_of is not None
        or record.index_map is not None
        or record.container
        or record.has_unknown_effects
        or (record.is_terminator and op.parent is not None and isinstance(op.parent.owner, Op))
    )


def dependents_of_operand(op: Op, index: int) -> list[Value]:
    """Values whose origin names operand `index` of `op`."""
    if not has_derived_origin(op):
        return []
    if op.record.body is not None:
        return _carried(op, index - op.record.body.first)
    outer = op.parent.owner if op.parent is not None else None
    if op.record.is_terminator and isinstance(outer, Op) and outer.record.body is not None:
        return _carried(outer, index - len(outer.record.body.steering))
    return op.results


def _carried(op: Op, number: int) -> list[Value]:
    """The block arguments and the result that loop-carried (or yielded) value `number` becomes."""
    body = op.record.body
    assert body is not None
    if number < 0:
        return []
    found = [b.args[n] for b in op.blocks if (n := number + len(body.given)) < len(b.args)]
    return [*found, *op.results[number : number + 1]]
