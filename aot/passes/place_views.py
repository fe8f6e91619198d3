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

from dataclasses import dataclass, field, replace

from aot.analysis.views import is_view, map_of, view_type
from aot.ir.core import Function, Module, Op, Rewriter, Value
from aot.ir.dims import Dim, add
from aot.ir.index_map import IndexMap, Slice, make_map
from aot.ir.types import Layout, TensorType
from aot.ops import movement, selection
from aot.ops.record import Kind
from aot.ops.structure import CONSTANT
from aot.passes.base import Pass, PassContext
from aot.target import Target

Types = dict[Value, TensorType]


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points if context.options.fusion else ():
        for op in list(function.block):
            if op.record is selection.CONCAT:
                context.count("place-views", "pushed", push_ends(function, op))
        placer = _Placer(function, context.target)
        # what is assembled last has the say on where its parts are
        for op in reversed(list(function.block)):
            if op.record is selection.CONCAT and placer.assemble(op):
                context.count("place-views", "assembled")
        for op in list(function.block):
            if op.record is movement.SLICE and placer.view(op):
                context.count("place-views", "slices")
            elif op.record is movement.RESHAPE and placer.store_moved(op):
                context.count("place-views", "stored")


def push_ends(function: Function, concat: Op) -> int:
    """Moves elementwise ops behind a concat to its parts, into the dispatches that make those.

        f(concat(a, b)) -> concat(f(a), f(b))

    Gives how many ops were moved.
    """
    pushed = 0
    while (end := _pushable(concat)) is not None:
        rewriter = Rewriter(function).at(end)
        parts: list[Value] = []
        for part in concat.operands:
            operands = [part if v is concat.result else v for v in end.operands]
            parts.append(rewriter.create(end.record, operands, end.attrs, end.origin).result)
        fresh = rewriter.create(concat.record, parts, concat.attrs, concat.origin)
        layout = end.result.type.layout
        rewriter.set_type(fresh.result, replace(fresh.result.type, layout=layout))
        for value, old in zip(parts, concat.operands, strict=True):
            assert old is not None
            rewriter.set_type(value, replace(value.type, layout=old.type.layout))
        rewriter.replace_op(end, fresh.results)
        rewriter.erase(concat)
        concat = fresh
        pushed += 1
    return pushed


_TAKES_ENDS = (Kind.CONTRACTION, Kind.REDUCTION, Kind.ELEMENTWISE)


def _pushable(concat: Op) -> Op | None:
    """The one op that uses a concat, if each part can take it where it is made."""
    if len(concat.result.uses) != 1 or any(
        part is None or part.op is None or part.op.record.kind not in _TAKES_ENDS
        for part in concat.operands
    ):
        return None
    if any(part is not None and len(part.uses) != 1 for part in concat.operands):
        return None
    (user,) = concat.result.users
    dims = concat.result.type.dims
    is_end = user.record.kind is Kind.ELEMENTWISE and user.result.type.dims == dims
    others = [v for v in user.operands if v is not None and v is not concat.result]
    return user if is_end and all(v.type.rank == 0 for v in others) else None


@dataclass
class _Placer:
    """What has a place in something larger already."""

    function: Function
    target: Target | None
    placed: set[Value] = field(default_factory=set)

    def assemble(self, op: Op) -> bool:
        """Makes `op` an `assemble`, if at most one of its parts must be copied for it."""
        types: Types = {}
        roots: dict[Value, None] = {}
        copied: list[int] = []
        for number, (part, place) in enumerate(zip(op.operands, _places(op), strict=True)):
            if part is None or place is None:
                return False
            found = self._placed_types(part, place)
            if found is None or found[0] in roots or part in op.operands[:number]:
                copied.append(number)
            else:
                roots[found[0]] = None
                types.update(found[1])
        if len(copied) > 1 or not roots:
            return False
        rewriter = Rewriter(self.function)
        self._set_types(types)
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
        rewriter.rewire(op, number, copy.result)  # the op is about to be made anew
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
        if root.op is None or not _stores_anywhere(root.op) or root in self.placed:
            return None
        if _could_be_view(root.op):
            return None  # making it in its place is a copy that is not needed for itself
        types: Types = {}
        return (root, types) if _retype(root, type, types) else None

    def store_moved(self, op: Op) -> bool:
        """Lets what makes the elements of a reshape that must move them store them where they go,
        if nothing else reads them: a channel shuffle is a matter of addresses.

        Not where a CPU's lanes would go their own ways: storing each by itself costs a contraction
        more than copying its result in order does.
        """
        type: TensorType | None = op.result.type
        at, types = op, Types()
        while True:
            source, back = _seen_back(at)
            if source is None or back is None or type is None or len(source.uses) != 1:
                return False
            type = view_type(back, type, may_split=True)
            if type is None:
                return False
            types[source] = type
            if source.op is None or not is_view(source.op):
                break
            at = source.op
        maker = source.op
        if is_view(op) or maker is None or not _stores_anywhere(maker) or source in self.placed:
            return False
        is_cpu = self.target is not None and self.target.is_cpu
        if is_cpu and _has_contraction(maker):
            return False
        old = {value: value.type for value in types}
        self._set_types(types)
        if is_view(op):
            return True
        self._set_types(old)
        return False

    def _set_types(self, types: Types) -> None:
        for value, type in types.items():
            Rewriter(self.function).set_type(value, type)

    def view(self, op: Op) -> bool:
        """Gives a slice the type of a view, if that spares a copy and its users can read it."""
        source = op.operands[0]
        assert source is not None
        maker = source.op
        if maker is not None and (maker.record is CONSTANT or _joins_its_only_user(source)):
            return False
        map = map_of(op)
        type = None if map is None else view_type(map, source.type)
        types: Types = {}
        if type is None or not _retype(op.result, type, types):
            return False
        self._set_types(types)
        return True


def _has_contraction(op: Op | None, depth: int = 16) -> bool:
    """Whether the dispatch that makes the op's result is a contraction: the op, or one before it
    whose end it is."""
    if op is None or depth == 0:
        return False
    if op.record.kind is not Kind.ELEMENTWISE:
        return op.record.kind is Kind.CONTRACTION
    return any(_has_contraction(v.op, depth - 1) for v in op.operands if v is not None)


def _could_be_view(op: Op) -> bool:
    """Whether the op's result could be its operand's memory under some type."""
    map, source = map_of(op), op.operands[0] if op.operands else None
    return map is not None and source is not None and view_type(map, source.type) is not None


def _stores_anywhere(op: Op) -> bool:
    """Whether the op's kernel can write its result under any layout."""
    return op.record.compute is not None and op.record is not CONSTANT


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
            map = map_of(user)
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


def _seen_back(op: Op) -> tuple[Value | None, IndexMap | None]:
    """What a view is a view of, and the map from the view to that."""
    source, map = op.operands[0], map_of(op)
    if source is None or map is None:
        return source, None
    return source, map.inverse(source.type.dims)


PLACE_VIEWS = Pass("place-views", run, __doc__)
