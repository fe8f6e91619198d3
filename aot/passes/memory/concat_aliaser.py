"""Places values inside larger ones: finds types with which an op's result is stored in a concat's
memory, and checks that all readers can take them.

Part of alias-concat, which decides what is placed. Never places a value twice.
"""

from __future__ import annotations

from dataclasses import field

from aot.analysis.alias.database import AliasDb
from aot.analysis.memory.views import is_view, map_of, view_type
from aot.base.records import dataclass
from aot.ir.builtin import CONSTANT
from aot.ir.data_dims import extents_of
from aot.ir.dims import Dim, add, symbols
from aot.ir.graph import Function, Op, Value
from aot.ir.index_map import IndexMap, Slice, make_map
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout, TensorType
from aot.ops import movement, selection
from aot.target.model import Target

Types = dict[Value, TensorType]


@dataclass
class ConcatAliaser:
    """Places the parts of concats inside the concat's memory.

    Attributes:
        db: None where nothing is written.
        placed: values that have a place in a larger one.
        wholes: concats without copies, with their positions in the program.
    """

    function: Function
    target: Target | None
    db: AliasDb | None
    placed: set[Value] = field(default_factory=set)
    wholes: dict[Op, int] = field(default_factory=dict)
    given: set[str] = field(init=False)  # symbols that values give

    def __post_init__(self) -> None:
        self.given = set(extents_of(self.function))

    def is_known(self, type: TensorType, begin: Dim = 0) -> bool:
        """Whether a place inside a larger value is known at the point where the part is
        computed."""
        if not self.given:
            return True
        own = {name for dim in type.dims for name in symbols(dim)}
        strides = type.layout.strides if type.layout is not None else ()
        named = {name for dim in (begin, *strides) for name in symbols(dim)}
        return (named & self.given) <= own

    def is_written(self, *values: Value | None) -> bool:
        """Whether anything may write the memory of one of the values."""
        return self.db is not None and any(self.db.has_writers(v) for v in values)

    def users_types(self, value: Value, type: TensorType, but: Op) -> Types | None:
        """All types that change if `value` gets `type`; None if a user other than `but` cannot take
        it."""
        types: Types = {}
        return types if _retype(value, type, types, but) else None

    def concat_alias(self, op: Op, position: int) -> bool:
        """Turns a concat into a `concat_alias`, if at most one of its parts must be copied."""
        if self.is_written(op.result):
            return False
        types: Types = {}
        roots: dict[Value, None] = {}
        copied: list[int] = []
        places = places_of(op, op.result.type)
        begins = part_begins(op)
        for number, (part, place) in enumerate(zip(op.operands, places, strict=True)):
            if part is None or place is None or not self.is_known(place, begins[number]):
                return False
            found = self.placed_types(op, part, place)
            if found is None or found[0] in roots or part in op.operands[:number]:
                copied.append(number)
            else:
                roots[found[0]] = None
                types.update(found[1])
        if len(copied) > 1 or not roots or not all(map(self.is_known, types.values())):
            return False
        rewriter = Rewriter(self.function)
        self.set_types(types)
        for number in copied:
            self._copy_part(op, number)
        self.placed.update(roots)
        fresh = Op(selection.CONCAT_ALIAS, op.operands, op.attrs, [op.result.type], (), op.origin)
        rewriter.at(op).insert(fresh)
        if op.result in self.placed:
            self.placed.add(fresh.result)
        rewriter.replace_op(op, fresh.results)
        self.wholes[fresh] = position
        return True

    def share_parts(self, op: Op, position: int) -> bool:
        """Makes a concat a part of a later, already placed concat that contains all its parts
        consecutively.

            concat(a, b), concat_alias(a, b, c) -> concat_alias(a, b) = d, concat_alias(d, c)
        """
        axis, count = op.int("axis"), len(op.operands)
        if count < 2 or op.result in self.placed or self.is_written(op.result):
            return False
        for whole, later in self.wholes.items():
            first = _run_in(whole, op)
            if first is None or op.parent is not whole.parent or position > later:
                continue
            begin = part_begins(whole)[first]
            type = place_of(op.result, whole.result.type, axis, begin)
            types = None if type is None else self.users_types(op.result, type, whole)
            if type is None or types is None or not all(map(self.is_known, types.values())):
                continue
            if not self.is_known(type, begin):
                continue
            self.set_types(types)
            rewriter = Rewriter(self.function)
            made = Op(selection.CONCAT_ALIAS, op.operands, op.attrs, [type], (), op.origin)
            rewriter.at(op).insert(made)
            rewriter.replace_op(op, made.results)
            self.placed.add(made.result)
            parts = [*whole.operands[:first], made.result, *whole.operands[first + count :]]
            fresh = Op(
                selection.CONCAT_ALIAS, parts, whole.attrs, [whole.result.type], (), whole.origin
            )
            rewriter.at(whole).insert(fresh)
            if whole.result in self.placed:
                self.placed.add(fresh.result)
            rewriter.replace_op(whole, fresh.results)
            del self.wholes[whole]
            self.wholes |= {fresh: later, made: position}
            return True
        return False

    def _copy_part(self, op: Op, number: int) -> None:
        place, part = places_of(op, op.result.type)[number], op.operands[number]
        assert place is not None and part is not None
        rewriter = Rewriter(self.function).at(op)
        attrs = {"layout": place.layout or Layout()}
        copy = rewriter.create(movement.COPY, [part], attrs, op.origin)
        rewriter.rewire(op, number, copy.result)  # the op is about to be made anew
        self.placed.add(copy.result)

    def placed_types(self, op: Op, part: Value, place: TensorType) -> tuple[Value, Types] | None:
        """(value whose memory `part` is, all types that change) if `part` is stored at `place`;
        None if it cannot be."""
        root, type = part, place
        while root.op is not None and is_view(root.op):
            source, back = _seen_back(root.op)
            moved = None if back is None else view_type(back, type)
            if source is None or moved is None:
                return None
            root, type = source, moved
        if root.op is None or not _stores_anywhere(root.op) or root in self.placed:
            return None
        if root.op.parent is not op.parent:
            return None  # the memory would have to be there around the block
        if self.is_written(root):
            return None
        if _could_be_view(root.op):
            return None  # making it in its place is a copy that is not needed for itself
        types: Types = {}
        return (root, types) if _retype(root, type, types) else None

    def store_moved(self, op: Op) -> bool:
        """Lets the producer of a reshape that needs a copy store elements at their final addresses,
        if nothing else reads them: a channel shuffle becomes address arithmetic.

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
        if self.is_written(op.result, source):
            return False
        if is_view(op) or maker is None or not _stores_anywhere(maker) or source in self.placed:
            return False
        is_serial = self.target is not None and not self.target.has_workgroups
        if is_serial and _has_contraction(maker):
            return False
        if not all(map(self.is_known, types.values())):
            return False
        old = {value: value.type for value in types}
        self.set_types(types)
        if is_view(op):
            return True
        self.set_types(old)
        return False

    def set_types(self, types: Types) -> None:
        for value, type in types.items():
            Rewriter(self.function).set_type(value, type)

    def view(self, op: Op) -> bool:
        """Makes a slice a view, if that saves a copy and its users can read a view."""
        source = op.operands[0]
        assert source is not None
        maker = source.op
        if maker is not None and (maker.record is CONSTANT or _joins_its_only_user(source)):
            return False
        if self.is_written(source, op.result):
            return False
        map = map_of(op)
        type = None if map is None else view_type(map, source.type)
        types: Types = {}
        if type is None or not _retype(op.result, type, types):
            return False
        self.set_types(types)
        return True


def _run_in(whole: Op, op: Op) -> int | None:
    """The position in `whole`'s operands at which `op`'s operands occur consecutively; None if they
    do not.
    """
    count = len(op.operands)
    if whole.attrs["axis"] != op.attrs["axis"] or count >= len(whole.operands):
        return None
    starts = range(len(whole.operands) - count + 1)
    return next((n for n in starts if whole.operands[n : n + count] == op.operands), None)


def _has_contraction(op: Op | None, depth: int = 16) -> bool:
    """Whether the op's dispatch computes a contraction: the op itself, or one whose epilogue it
    is."""
    if op is None or depth == 0:
        return False
    if op.record.kind is not Kind.ELEMENTWISE:
        return op.record.kind is Kind.CONTRACTION
    return any(_has_contraction(v.op, depth - 1) for v in op.operands if v is not None)


def _could_be_view(op: Op) -> bool:
    """Whether the op's result could share its operand's memory under some type."""
    map, source = map_of(op), op.operands[0] if op.operands else None
    return map is not None and source is not None and view_type(map, source.type) is not None


def _stores_anywhere(op: Op) -> bool:
    """Whether the op's kernel can store its result in any layout."""
    return op.record.compute is not None and op.record is not CONSTANT


def _joins_its_only_user(value: Value) -> bool:
    """Whether fusion would compute only those elements that the value's single user takes."""
    light = (Kind.ELEMENTWISE, Kind.MOVEMENT)
    return len(value.uses) == 1 and value.op is not None and value.op.record.kind in light


def _retype(value: Value, type: TensorType, types: Types, but: Op | None = None) -> bool:
    """Collects in `types` the types that change if `value` gets `type`; returns whether all users
    can take it."""
    types[value] = type
    for user in value.users:
        if user is but:
            continue
        if user.record.is_terminator or user.record is selection.CONCAT_ALIAS:
            return False  # memory of its own is wanted, or has a place already
        if type == value.type:
            continue
        if user.record.compute is None and user.record.kind is not Kind.ATTENTION:
            return False  # a kernel of its own that reads dense memory
        if is_view(user):
            map = map_of(user)
            moved = None if map is None else view_type(map, type)
            if moved is None or not _retype(user.result, moved, types):
                return False
    return True


def places_of(op: Op, whole: TensorType) -> list[TensorType | None]:
    """The types of a concat's parts as views into memory of type `whole`; None for parts that
    cannot be views.
    """
    axis = op.int("axis")
    return [
        place_of(part, whole, axis, begin)
        for part, begin in zip(op.operands, part_begins(op), strict=True)
        if part is not None
    ]


def place_of(part: Value, whole: TensorType, axis: int, begin: Dim) -> TensorType | None:
    """The type of a part as a view of memory of type `whole`, `begin` along `axis`; None if it
    can't be.
    """
    end = add(begin, part.type.dims[axis])
    starts = tuple(begin if d == axis else 0 for d in range(whole.rank))
    stops = tuple(end if d == axis else n for d, n in enumerate(whole.dims))
    steps = make_map([Slice(starts, stops, (1,) * whole.rank)], whole.dims)
    place = view_type(steps, whole)
    return place and TensorType(place.dtype, part.type.dims, place.layout)


def part_begins(op: Op) -> list[Dim]:
    """The start of each part of a concat along its axis."""
    axis = op.int("axis")
    found: list[Dim] = [0]
    for part in op.operands[:-1]:
        assert part is not None
        found.append(add(found[-1], part.type.dims[axis]))
    return found


def _seen_back(op: Op) -> tuple[Value | None, IndexMap | None]:
    """(source of a view, index map from the view to the source); None where there is none."""
    source, map = op.operands[0], map_of(op)
    if source is None or map is None:
        return source, None
    return source, map.inverse(source.type.dims)
