"""Finds the slots of an executable: extents, strides and attributes that may become parameters.

Owns which numbers these are, the key of all else, and how columns of their values in several
executables become dims of one. Decides nothing: despecialise.py says which executables merge.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import combinations_with_replacement
from typing import NamedTuple

from aot.analysis.cost.plan import Plan
from aot.analysis.cost.tile_costs import is_window
from aot.analysis.memory.storage import CONSTANTS
from aot.analysis.memory.views import memory_order
from aot.analysis.resized import resizes_planes
from aot.base.records import dataclass
from aot.ir.clone import clone_op
from aot.ir.compare import attr_key
from aot.ir.dims import (
    Dim,
    DimExpr,
    floor_divide,
    maximum,
    modulo,
    multiply,
    product,
    substitute,
    symbol,
)
from aot.ir.graph import Assumption, Attr, Block, Function, Op, Value
from aot.ir.record import Kind, contraction_of
from aot.ir.rewriter import Rewriter
from aot.ir.schedule import Schedule
from aot.ir.types import Layout, TensorType

# numbers below it in attributes and in a convolution's kernel are kernels, strides, pads
SMALL = 8
MAX_FACTOR = 64  # of what a parameter is known to be a multiple


class Place(NamedTuple):
    """A number with its slot index; -1 if it has none."""

    value: Dim
    slot: int = -1


class Slot(NamedTuple):
    """A number that may become a parameter.

    Attributes:
        inner: for a stride: that of the next dim in, and its extent. Their product is this one
            where the dims lie without a gap.
        is_count: for an attribute that is one number, such as that of groups: kernels must know
            which part of an extent belongs to each.
    """

    value: Dim
    inner: tuple[Place, Place] | None = None
    is_count: bool = False


@dataclass
class _Walk:
    """Visits the numbers of an executable in a fixed order, to find its slots or to rebuild it.

    Attributes:
        fresh: a dim for each slot, to rebuild with; None to see which slots there are.
        loose: how many of a type's innermost dims may lie with or without a gap.
    """

    fresh: Sequence[Dim] | None = None
    loose: int = 0
    found: list[Slot] = field(default_factory=list)

    def place(
        self,
        dim: Dim,
        least: int = 2,
        inner: tuple[Place, Place] | None = None,
        *,
        is_count: bool = False,
    ) -> Place:
        """The place of a number, with a new slot if it is at least `least`."""
        if isinstance(dim, int) and dim < least:
            return Place(dim)
        self.found.append(Slot(dim, inner, is_count))
        return Place(dim, len(self.found) - 1)

    def dim(self, place: Place) -> Dim:
        """The dim at a place: its constant, its replacement from `fresh`, or -1 in a key."""
        if place.slot < 0:
            return place.value
        return -1 if self.fresh is None else self.fresh[place.slot]

    def type(self, type: TensorType, kernel_from: int) -> tuple[Hashable, TensorType]:
        """The type's key, and the type with its slots' dims; from dim `kernel_from` on extents are
        a convolution's kernel.

        Strides are slots of what is dense, too, so that the same kernel can serve what is part of
        something larger; which dims a loop can walk as one is part of the key.
        """
        layout = type.layout or Layout()
        extents = [self.place(d, SMALL if n >= kernel_from else 2) for n, d in enumerate(type.dims)]
        made = tuple(map(self.dim, extents))
        if layout.splits:
            splits = tuple((dim, self.dim(self.place(f))) for dim, f in layout.splits)
            inside_out = [self.dim(self.place(s)) for s in reversed(layout.strides)]
            fresh = Layout(splits, layout.order, tuple(reversed(inside_out)))
            return (type.dtype, made, fresh), TensorType(type.dtype, made, fresh)
        strides, gaps = self._strides(type, extents)
        key = (type.dtype, made, layout.order, gaps)
        plain = TensorType(type.dtype, made, Layout((), layout.order) if layout.order else None)
        wide = [d for d in range(type.rank) if type.dims[d] != 1]
        if self.fresh is None or all(strides[d] == plain.strides[d] for d in wide):
            return key, plain
        return key, TensorType(type.dtype, made, Layout((), layout.order, strides))

    def _strides(
        self, type: TensorType, extents: Sequence[Place]
    ) -> tuple[tuple[Dim, ...], Hashable]:
        """(strides, key). The key has the strides that are no slots, such as the 1 of contiguous
        elements, and tells which dims have a gap to the next inner one. Inner strides become slots
        first.
        """
        made: list[Dim] = [1] * type.rank
        gaps: list[bool] = []
        fixed: list[Dim] = []
        inner: tuple[Place, Place] | None = None
        for d in reversed(memory_order(type)):
            if type.dims[d] == 1:
                continue
            stride = type.strides[d]
            if inner is not None:
                gaps.append(stride != multiply(inner[0].value, inner[1].value))
            place = self.place(stride, 2, inner)
            made[d] = self.dim(place)
            fixed.append(-1 if place.slot >= 0 else stride)
            inner = place, extents[d]
        return tuple(made), (tuple(fixed), tuple(gaps[self.loose :]))

    def attrs(self, op: Op) -> dict[str, Attr]:
        """The op's attributes with slots in place of declared dims."""
        kinds = {a.name: a.type for a in op.record.attributes}
        made: dict[str, Attr] = {}
        for name, value in op.attrs.items():
            is_dims, is_count = kinds.get(name) in ("dim", "dims"), kinds.get(name) == "dim"
            # what repeats the result's extents has the slots that they have
            is_shape = bool(op.results) and value == op.results[0].type.dims
            least = 2 if is_shape else SMALL
            made[name] = self.attr(value, least, is_count=is_count) if is_dims else value
        return made

    def attr(self, value: Attr, least: int, *, is_count: bool) -> Attr:
        if isinstance(value, tuple):
            return tuple(self.attr(v, least, is_count=is_count) for v in value)
        if isinstance(value, DimExpr) or (isinstance(value, int) and not isinstance(value, bool)):
            return self.dim(self.place(value, least, is_count=is_count))
        return value


_TILED = (Schedule.CONTRACTION, Schedule.PLANES, Schedule.WINOGRAD)


class KnownExtents(NamedTuple):
    """Extents that a handwritten kernel must know at compile time.

    Attributes:
        kernels: what it is a kernel of.
        what: what the extents are of it.
        value: whose they are.
    """

    kernels: str
    what: str
    value: str
    dims: tuple[Dim, ...]


class Family(NamedTuple):
    """The properties that executables must share to be merged.

    Attributes:
        key: all of the body but its slots' values, and `classes`.
        classes: of the buffers, as far as kernels have them compiled in.
        schedules: of its stages: which, whether as tiles of neighbours by channels, and by how many
            lanes a sum is shared, and how many of its terms are staged at a time.
        word_sums: the extents of the sums of packed words, whose rows' scratch is as large as they
            are.
        known: the extents that handwritten kernels must know: depths of attentions, units of
            recurrent layers, planes that are resampled along both axes at once.
        is_row_a_query: on a GPU, of each attention.
    """

    key: Hashable
    classes: tuple[int | str | bool, ...]
    schedules: tuple[tuple[Schedule, bool, tuple[int, int]], ...]
    word_sums: tuple[tuple[Dim, ...], ...]
    known: tuple[KnownExtents, ...] = ()
    is_row_a_query: tuple[bool, ...] = ()


def family_of(
    function: Function, plans: Sequence[Plan], *, has_classes: bool
) -> tuple[Family, list[Slot]]:
    """(family, slots) of an executable with the plans of its stages.

    Where kernels have their buffers' classes compiled in (`has_classes`), these are of the family.
    """
    schedules = tuple((p.schedule, is_window(p), (p.shares, p.staged)) for p in plans)
    # tiles of rows and columns have loops for both, be there a gap between them or none
    is_tiled = all(schedule in _TILED or window for schedule, window, _ in schedules)
    key, slots = slots_of(function, loose=1 if is_tiled else 0)
    classes = tuple(b if has_classes else b == CONSTANTS for b in function.bindings)
    rows = next((p.rows for p in plans if p.schedule is Schedule.ATTENTION), 0)
    attentions = [op for op in function.block if op.record.kind is Kind.ATTENTION]
    return Family(
        (key, classes),
        classes,
        schedules,
        _word_sums(function),
        _known_extents(function),
        tuple(is_row_a_query(op, rows) for op in attentions) if has_classes else (),
    ), slots


def is_row_a_query(op: Op, rows: int) -> bool:
    """Whether a GPU's workgroup of `rows` has one row for each query of an attention; if not,
    several rows share a query's keys.
    """
    queries = _queries(op)
    return isinstance(queries, int) and 2 * queries > rows


def _queries(op: Op) -> Dim:
    (asked, *_) = op.operands
    assert asked is not None
    return asked.type.dims[-2]


def assume_queries(made: Function, members: Sequence[Function], rows: int) -> None:
    """Adds an assumption to the merged executable: the least number of queries that attention has
    in `members`. Its kernel then knows that each member has one of `rows`."""
    for number, op in enumerate(made.block):
        if op.record.kind is Kind.ATTENTION:
            own = [list(f.block)[number] for f in members]
            queries = _queries(op)
            if isinstance(queries, DimExpr) and all(is_row_a_query(o, rows) for o in own):
                least = rows // 2 + 1
                text = f"queries must be at least {least}"
                made.assumptions[Assumption(maximum(queries, least), queries, text)] = None


# By kind: what its kernels know, as operands and the dim of each.
_KNOWN = {Kind.ATTENTION: ("depth", ((0, -1), (2, -1))), Kind.RECURRENCE: ("units", ((2, 2),))}
_RESAMPLED = "planes resampled along both axes"


def _known_extents(function: Function) -> tuple[KnownExtents, ...]:
    found = []
    if resizes_planes(function):  # in scratch for lines of known lengths
        planes = [("input", v) for v in function.inputs]
        planes += [(op.name, v) for op in function.block for v in op.results]
        found += [KnownExtents(_RESAMPLED, "extents", n, v.type.dims[-2:]) for n, v in planes]
    for op in function.block:
        what, places = _KNOWN.get(op.record.kind, ("", ()))
        values = [(op.operands[n], dim) for n, dim in places]
        if values:
            extents = tuple(v.type.dims[dim] for v, dim in values if v is not None)
            found.append(KnownExtents(op.name, what, op.name, extents))
    return tuple(found)


def _word_sums(function: Function) -> tuple[tuple[Dim, ...], ...]:
    rights = [
        made.right
        for op in function.block
        if (made := contraction_of(op)) is not None and made.is_in_words
    ]
    return tuple(tuple(r.type.dims[d] for d in (r.summed, *r.taps)) for r in rights)


def slots_of(function: Function, *, loose: int) -> tuple[Hashable, list[Slot]]:
    """(key of everything except the slots' values, slots) of an executable.

    With `loose` innermost dims may lie with or without a gap to the next: what tiles of rows and
    columns have loops for anyway.
    """
    walk = _Walk(loose=loose)
    kernels = _kernels(function)
    numbers: dict[Value, int] = {arg: n for n, arg in enumerate(function.inputs)}
    types = [walk.type(arg.type, kernels.get(arg, arg.type.rank))[0] for arg in function.inputs]
    ops: list[Hashable] = []
    for op in function.block:
        operands = tuple(-1 if v is None else numbers[v] for v in op.operands)
        attrs = walk.attrs(op)
        results = [walk.type(v.type, v.type.rank)[0] for v in op.results]
        for result in op.results:
            numbers[result] = len(numbers)
        named = tuple(sorted((name, attr_key(value)) for name, value in attrs.items()))
        ops.append((op.name, operands, named, tuple(results)))
    return (tuple(types), tuple(ops)), walk.found


def rebuilt(function: Function, fresh: Sequence[Dim]) -> Function:
    """A copy of an executable in which each slot has its dim from `fresh`."""
    walk = _Walk(fresh)
    kernels = _kernels(function)
    body = Block([walk.type(a.type, kernels.get(a, a.type.rank))[1] for a in function.inputs])
    made = Function(function.name, body, function.result_names, "executable")
    values: dict[Value, Value] = dict(zip(function.inputs, body.args, strict=True))
    into = Rewriter(made, body)
    for op in function.block:
        attrs = walk.attrs(op)
        copy = clone_op(op, values, into, lambda type: walk.type(type, type.rank)[1])
        copy.attrs = attrs
    return made


def shared_bindings(
    functions: Sequence[Function], values: dict[str, list[Dim]]
) -> tuple[int | str, ...]:
    """The buffer classes of the merged executable's operands: a class where all members agree, else
    the name of a parameter, whose value in each member is added to `values`.
    """
    known: dict[tuple[int | str, ...], str] = {}
    made: list[int | str] = []
    for column in zip(*(f.bindings for f in functions), strict=True):
        if len(set(column)) == 1:
            made.append(column[0])
            continue
        if column not in known:
            known[column] = f"d{len(values)}"
            values[known[column]] = [b for b in column if isinstance(b, int)]
        made.append(known[column])
    return tuple(made)


def _kernels(function: Function) -> Mapping[Value, int]:
    """The filters of windowed contractions, each with the first of its dims that count taps."""
    found = {}
    for op in function.block:
        contraction = contraction_of(op)
        if contraction is not None and contraction.windows:
            weight = op.operands[contraction.right.operand]
            assert weight is not None
            found[weight] = min(contraction.right.taps)
    return found


class Groups(NamedTuple):
    """The groups of a contraction, which tiles must not straddle, or along which lanes run.

    Attributes:
        number: how many there are.
        columns: of each.
        is_depthwise: whether lanes go along groups, so that neighbours read neighbours only where
            the number of columns is known.
    """

    number: Dim
    columns: Dim
    is_depthwise: bool = False


def groups_of(function: Function) -> tuple[Groups, ...]:
    """The groups of each grouped contraction of an executable."""
    found = []
    for op in function.block:
        made = contraction_of(op)
        if made is not None and made.groups != 1:
            found.append(Groups(made.groups, made.n, made.is_depthwise))
    return tuple(found)


def have_common_groups(members: Iterable[tuple[Groups, ...]]) -> bool:
    """Whether one kernel can compute group boundaries for all `members` of a family: each
    contraction has the same number of columns per group in all, or the same number of groups, from
    which the columns per group follow.
    """
    for groups in zip(*members, strict=True):
        counts = {g.number for g in groups}
        is_told = all(n >= SMALL or n & (n - 1) == 0 for n in counts if isinstance(n, int))
        is_told = is_told and not any(g.is_depthwise for g in groups)
        if len({g.columns for g in groups}) != 1 and not (len(counts) == 1 and is_told):
            return False
    return True


def parameters(slots: Sequence[Sequence[Slot]]) -> tuple[list[Dim], dict[str, list[Dim]]]:
    """(dim of each slot in the merged executable, each parameter's values by member).

    What is equal in all stays a number, what differs alike is one parameter, and a product of
    others is that product. A count that divides another number alike in all is a part of that, or
    that several of the count, and of what one number of groups divides in all that is known.
    """
    columns = [tuple(slot.value for slot in column) for column in zip(*slots, strict=True)]
    counts = [c for c, slot in zip(columns, slots[0], strict=True) if slot.is_count]
    fresh: list[Dim] = []
    known: dict[tuple[Dim, ...], Dim] = {}
    values: dict[str, list[Dim]] = {}
    for column in zip(*slots, strict=True):
        numbers = tuple(slot.value for slot in column)
        inner = column[0].inner
        if inner is not None and all(_is_joined(slot) for slot in column):
            made = multiply(*(_dim(place, fresh) for place in inner))
            known.setdefault(numbers, made)
        elif numbers in known:
            made = known[numbers]
        else:
            part = _part_of(numbers, known) if column[0].is_count else None
            made = _parameter(numbers, known, values, counts) if part is None else part
            known[numbers] = made
        fresh.append(made)
    return _without_products(fresh, values)


def _without_products(
    fresh: list[Dim], values: dict[str, list[Dim]]
) -> tuple[list[Dim], dict[str, list[Dim]]]:
    """`fresh` and `values` without parameters that are products of other parameters in every
    member, such as the row of a reduction that a later slot splits into planes and channels.
    """
    left = dict(values)
    made: dict[str, Dim] = {}
    for name, own in values.items():
        others = {other: column for other, column in left.items() if other != name}
        found = _several_of(own, others)
        if found is not None:
            left = others
            made = {known: substitute(dim, {name: found}) for known, dim in made.items()}
            made[name] = found
    renamed = {name: symbol(f"d{number}") for number, name in enumerate(left)}
    made = {name: substitute(dim, renamed) for name, dim in made.items()}
    dims = [substitute(dim, {**renamed, **made}) for dim in fresh]
    return dims, {f"d{number}": column for number, column in enumerate(left.values())}


def _several_of(column: Sequence[Dim], others: Mapping[str, Sequence[Dim]]) -> Dim | None:
    """The column (one value per member) as a constant times two or three other parameters; None if
    no such product equals it in every member."""
    first = column[0]
    if not isinstance(first, int):
        return None

    def divides(start: Dim) -> bool:
        return isinstance(start, int) and start != 0 and first % start == 0

    # factors divide in the first member, too, which few others do
    fit = [name for name, other in others.items() if divides(other[0])]
    for count in (2, 3):
        for names in combinations_with_replacement(fit, count):
            products = [product(factors) for factors in zip(*(others[n] for n in names))]
            ratio = _ratio(tuple(column), tuple(products))
            if ratio:
                return product([ratio, *map(symbol, names)])
    return None


def _is_joined(slot: Slot) -> bool:
    """Whether a stride equals the inner dim's stride times its extent, so that there is no gap."""
    assert slot.inner is not None
    return slot.value == multiply(slot.inner[0].value, slot.inner[1].value)


def _dim(place: Place, fresh: Sequence[Dim]) -> Dim:
    return place.value if place.slot < 0 else fresh[place.slot]


def _parameter(
    column: tuple[Dim, ...],
    known: Mapping[tuple[Dim, ...], Dim],
    values: dict[str, list[Dim]],
    counts: Sequence[tuple[Dim, ...]],
) -> Dim:
    """The dim of one slot, given its value in each member: a number, a product of dims that have
    parameters, or a new parameter. The new one is made divisible by the `counts` that divide every
    value.
    """
    first = column[0]
    if isinstance(first, int) and all(value == first for value in column):
        return first
    made = _product_of(column, known)
    if made is None:
        made = _several_of_a_count(column, known, counts)
    if made is not None:
        return made
    factor = 1
    if all(isinstance(value, int) for value in column):
        common = math.gcd(*(int(v) for v in column))
        factor = min(common & -common, MAX_FACTOR)
        factor = math.lcm(factor, *(_granule(column, c, common) for c in counts))
    name = f"d{len(values)}"
    values[name] = [v // factor for v in column]
    return multiply(symbol(name), factor)


def _several_of_a_count(
    column: tuple[Dim, ...],
    known: Mapping[tuple[Dim, ...], Dim],
    counts: Sequence[tuple[Dim, ...]],
) -> Dim | None:
    """The column (one value per member) as a constant times a known count, as with several filters
    per depthwise channel; None if no count fits every member."""
    for count in counts:
        dim, ratio = known.get(count), _ratio(column, count)
        if isinstance(dim, DimExpr) and ratio:
            return multiply(dim, ratio)
    return None


def _granule(column: tuple[Dim, ...], count: tuple[Dim, ...], common: int) -> int:
    """The number that a parameter for `column` must be a multiple of, so that its quotient by
    `count` is an integer dim; 1 where there is no such quotient.
    """
    first = count[0]
    if isinstance(first, int) and all(n == first for n in count):
        return first if common % first == 0 else 1
    return _ratio(column, count) or 1


def _ratio(column: tuple[Dim, ...], part: tuple[Dim, ...]) -> int | None:
    """The constant ratio of `column` to `part` over all members; None if it varies."""
    first, other = column[0], part[0]
    if not isinstance(first, int) or not isinstance(other, int) or other == 0 or first % other:
        return None
    found = first // other
    is_one = all(multiply(found, y) == x for x, y in zip(column, part, strict=True))
    return found if is_one else None


def _part_of(column: tuple[Dim, ...], known: Mapping[tuple[Dim, ...], Dim]) -> Dim | None:
    """The column as a known column divided by a constant, in every member; None otherwise."""
    for whole, dim in known.items():
        ratio = _ratio(whole, column) if isinstance(dim, DimExpr) else None
        if ratio and modulo(dim, ratio) == 0:
            return floor_divide(dim, ratio)
    return None


def _product_of(column: tuple[Dim, ...], known: Mapping[tuple[Dim, ...], Dim]) -> Dim | None:
    """The column (one value per member) as a product of two known columns; None if no product
    equals it in every member."""
    varying = [(c, d) for c, d in known.items() if isinstance(d, DimExpr)]
    for a, dim_a in varying:
        for b, dim_b in varying:
            if all(multiply(x, y) == z for x, y, z in zip(a, b, column, strict=True)):
                return multiply(dim_a, dim_b)
    return None
