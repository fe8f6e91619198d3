"""place-views: concats and slices that move nothing.

A slice whose users read any layout is a view into what it slices. A concat whose parts are made by
ops that write any layout is only the memory that they write to: it becomes `assemble`, and each
part is made in its place.
    concat(a, b) -> assemble(a, b), where a and b have the strides of the whole

Requires: layouts are assigned and nothing is pending; no regions yet.
Ensures: what became a view has a type under which its elements are where the whole has them.
Never: places a value twice or one that a caller gave or gets, turns a view that is free into a copy
    elsewhere, or adds a dispatch: at most one part is copied to its place, where the concat itself
    would have been a dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aot.analysis.views import is_view, view_type
from aot.ir.core import Function, Module, Op, Rewriter, Value
from aot.ir.dims import Dim, add
from aot.ir.index_map import IndexMap, Slice, make_map
from aot.ir.types import Layout, TensorType
from aot.ops import movement, selection
from aot.ops.record import Kind, call_of
from aot.ops.structure import CONSTANT
from aot.passes.base import Pass, PassContext

Types = dict[Value, TensorType]


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        placer = _Placer(function)
        # what is assembled last has the say on where its parts are
        for op in reversed(list(function.block)):
            if op.record is selection.CONCAT and placer.assemble(op):
                context.count("place-views", "assembled")
        for op in list(function.block):
            if op.record is movement.SLICE and placer.view(op):
                context.count("place-views", "slices")


@dataclass
class _Placer:
    """What has a place in something larger already."""

    function: Function
    placed: set[Value] = field(default_factory=set)

    def assemble(self, op: Op) -> bool:
        """Makes `op` an `assemble`, if at most one of its parts must be copied for it."""
        types: Types = {}
        roots: dict[Value, None] = {}
        copied: list[int] = []
        for number, (part, place) in enumerate(zip(op.operands, _places(op), strict=True)):
            assert part is not None
            found = self._placed_types(part, place) if place is not None else None
            if found is None or found[0] in roots or part in op.operands[:number]:
                copied.append(number)
            else:
                roots[found[0]] = None
                types.update(found[1])
        if len(copied) > 1 or not roots:
            return False
        rewriter = Rewriter(self.function)
        for value, type in types.items():
            rewriter.set_type(value, type)
        for number in copied:
            self._copy_part(op, number)
        self.placed.update(roots)
        fresh = Op(selection.ASSEMBLE, op.operands, op.attrs, [op.result.type], (), op.origin)
        rewriter.at(op).insert(fresh)
        if op.result in self.placed:
            self.placed.add(fresh.result)
        rewriter.replace_op(op, fresh.results)
        return True

    def _copy_part(self, op: Op, number: int) -> None:
        place, part = _places(op)[number], op.operands[number]
        assert place is not None and part is not None
        rewriter = Rewriter(self.function).at(op)
        attrs = {"layout": place.layout or Layout()}
        copy = rewriter.create(movement.COPY, [part], attrs, op.origin)
        rewriter.set_type(copy.result, part.type)  # the concat has not heard of the place yet
        rewriter.set_operand(op, number, copy.result)
        rewriter.set_type(copy.result, place)
        self.placed.add(copy.result)

    def _placed_types(self, part: Value, place: TensorType) -> tuple[Value, Types] | None:
        """The value whose memory `part` is, and all types that change if `part` is at `place`."""
        root, type = part, place
        while root.op is not None and is_view(root.op):
            source, back = _seen_back(root.op)
            moved = None if back is None else view_type(back, type)
            if source is None or moved is None:
                return None
            root, type = source, moved
        op = root.op
        if op is None or op.record.compute is None or root in self.placed:
            return None
        types: Types = {}
        return (root, types) if _retype(root, type, types) else None

    def view(self, op: Op) -> bool:
        """Gives a slice the type of a view, if that spares a copy and its users can read it."""
        source = op.operands[0]
        assert source is not None
        maker = source.op
        if maker is not None and (maker.record is CONSTANT or _joins_its_only_user(source)):
            return False
        map = _map_of(op)
        type = None if map is None else view_type(map, source.type)
        types: Types = {}
        if type is None or not _retype(op.result, type, types):
            return False
        for value, fresh in types.items():
            Rewriter(self.function).set_type(value, fresh)
        return True


def _joins_its_only_user(value: Value) -> bool:
    """Whether fusion would compute just the elements that the value's one user takes."""
    light = (Kind.ELEMENTWISE, Kind.MOVEMENT)
    return len(value.uses) == 1 and value.op is not None and value.op.record.kind in light


def _retype(value: Value, type: TensorType, types: Types) -> bool:
    """Collects the types that change if `value` gets `type`; whether all users can take it."""
    types[value] = type
    for user in value.users:
        if user.record.is_terminator or user.record is selection.ASSEMBLE:
            return False  # memory of its own is wanted, or has a place already
        if type == value.type:
            continue
        if user.record.compute is None:
            return False
        if is_view(user):
            map = _map_of(user)
            moved = None if map is None else view_type(map, type)
            if moved is None or not _retype(user.result, moved, types):
                return False
    return True


def _places(op: Op) -> list[TensorType | None]:
    """The types under which the parts of a concat would lie in its memory."""
    whole, axis = op.result.type, op.attrs["axis"]
    assert isinstance(axis, int)
    found: list[TensorType | None] = []
    begin: Dim = 0
    for part in op.operands:
        assert part is not None
        end = add(begin, part.type.dims[axis])
        starts = tuple(begin if d == axis else 0 for d in range(whole.rank))
        stops = tuple(end if d == axis else n for d, n in enumerate(whole.dims))
        steps = make_map([Slice(starts, stops, (1,) * whole.rank)], whole.dims)
        place = view_type(steps, whole)
        found.append(place and TensorType(place.dtype, part.type.dims, place.layout))
        begin = end
    return found


def _map_of(op: Op) -> IndexMap | None:
    """What the op's result is as a map of its only operand."""
    return None if op.record.index_map is None else op.record.index_map(call_of(op))


def _seen_back(op: Op) -> tuple[Value | None, IndexMap | None]:
    """What a view is a view of, and the map from the view to that."""
    source, map = op.operands[0], _map_of(op)
    if source is None or map is None:
        return source, None
    return source, map.inverse(source.type.dims)


PLACE_VIEWS = Pass("place-views", run, __doc__)
