"""Layout propagation rules: how each op runs on the sources of its mapped operands.

A rule gets one call and its operands as index maps of their sources. It returns new attributes, the
maps that operands must still go through, and the old results as maps of the new ones; None where
the maps must be materialised as ops. This file owns the rules, by family; records name them as
`propagate`. Whether an answer pays is the caller's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aot.ir import dims as d
from aot.ir.assumed_extents import LAYOUT
from aot.ir.dims import Dim
from aot.ir.graph import Attr, casts_as_one, is_kept
from aot.ir.index_map import (
    Broadcast,
    IndexMap,
    Reshape,
    Slice,
    Step,
    Transpose,
    inverse_permutation,
    make_map,
    step_dims,
    transposed,
)
from aot.ir.mapped_operand import IDENTITY, MappedOperand, Operands, Propagated
from aot.ir.record import Call
from aot.ir.types import DType

LAUNCH_BYTES = 4 << 10  # what a movement of its own costs, however small


# costs


def estimated(dim: Dim) -> int:
    """A dim as a number, for cost comparisons."""
    if isinstance(dim, int):
        return dim
    found = d.substitute(dim, dict.fromkeys(d.symbols(dim), LAYOUT))
    return found if isinstance(found, int) else LAYOUT


def is_free(map: IndexMap, operand: Sequence[Dim]) -> bool:
    """Whether the mapped tensor has the same bytes as the dense operand."""
    found = tuple(operand)
    for step in map.steps:
        if not isinstance(step, Reshape) and not _moves_ones_only(step, found):
            return False
        found = step_dims(step, found)
    return True


def cost(mapped: MappedOperand, map: IndexMap) -> int:
    """The cost of applying `map` to the source of `mapped`: about the number of bytes written."""
    if mapped.is_constant:
        return 0
    total, found = 0, mapped.type.dims
    for step in map.steps:
        moves = not is_free(IndexMap((step,)), found)
        found = step_dims(step, found)
        if moves:
            count = 1
            for extent in found:
                count *= max(1, estimated(extent))
            total += LAUNCH_BYTES + mapped.type.dtype.storage_bytes(count)
    return total


def moves(mapped: MappedOperand, map: IndexMap) -> int:
    """The number of steps of the map that write memory for `mapped`'s source."""
    found, count = mapped.type.dims, 0
    for step in map.steps:
        count += not mapped.is_constant and not is_free(IndexMap((step,)), found)
        found = step_dims(step, found)
    return count


def _moves_ones_only(step: Step, operand: Sequence[Dim]) -> bool:
    if not isinstance(step, Transpose):
        return False
    moved = [p for p in step.perm if operand[p] != 1]
    return moved == sorted(moved)


# permutations


def permutation(map: IndexMap, rank: int) -> tuple[int, ...] | None:
    """The permutation that the map is, the identity included: operand dim i is the source's
    dim perm[i]."""
    return tuple(range(rank)) if map.is_identity else map.perm


def _perm_of(operands: Operands, number: int = 0) -> tuple[int, ...] | None:
    mapped = operands[number]
    return None if mapped is None else permutation(mapped.map, mapped.rank)


def _permuted(values: Sequence[Attr], perm: Sequence[int]) -> tuple[Attr, ...]:
    """A list with one item per old dim, reordered for the source's dims."""
    back = inverse_permutation(perm)
    return tuple(values[back[dim]] for dim in range(len(perm)))


def _own_maps(operands: Operands, unmapped: Iterable[int]) -> tuple[IndexMap, ...]:
    """The map of each operand; the identity for operands that the op takes unmapped."""
    free = set(unmapped)
    return tuple(
        IDENTITY if mapped is None or number in free else mapped.map
        for number, mapped in enumerate(operands)
    )


def _as_it_is(operands: Operands, results: int, *, moves: bool = False) -> Propagated | None:
    """The unchanged op, if no operand has a map; else None."""
    if any(mapped is not None and not mapped.map.is_identity for mapped in operands):
        return None
    return Propagated((IDENTITY,) * len(operands), (IDENTITY,) * results, moves=moves)


def _tidy(steps: Sequence[Step], operand: Sequence[Dim]) -> IndexMap:
    """The map of `steps`, with transposes that only move extents of 1 written as reshapes."""
    found, made = tuple(operand), []
    for step in steps:
        after = step_dims(step, found)
        made.append(Reshape(after) if _moves_ones_only(step, found) else step)
        found = after
    return make_map(made, operand)


def aligned(mapped: MappedOperand, rank: int, perm: Sequence[int]) -> IndexMap:
    """The map from an operand's source to a value that broadcasts with sources that have `perm` as
    their map, for results of `rank` dims."""
    found = mapped.dims
    if all(extent == 1 for extent in found) or list(perm) == sorted(perm):
        return mapped.map
    padded: tuple[Dim, ...] = (*(1,) * (rank - len(found)), *found)
    back = Transpose(inverse_permutation(perm))
    last = step_dims(back, padded)
    if len(found) < rank:  # as short as it can be, like the operand was
        keep = next(n for n, extent in enumerate(last) if extent != 1)
        last = last[keep:]
    steps = (*mapped.map.steps, Reshape(padded), back, Reshape(last))
    return _tidy(steps, mapped.type.dims)


def _cheapest(answers: Iterable[Propagated | None], operands: Operands) -> Propagated | None:
    """The answer with the cheapest operand maps; the first of equal ones."""

    def price(answer: Propagated) -> int:
        return sum(
            cost(mapped, map)
            for mapped, map in zip(operands, answer.operands, strict=True)
            if mapped is not None
        )

    return min((a for a in answers if a is not None), key=price, default=None)


def _targets(operands: Operands, numbers: Iterable[int]) -> list[IndexMap]:
    """The distinct maps of the operands; the identity if none has one."""
    found: dict[IndexMap, None] = {}
    for number in numbers:
        mapped = operands[number]
        if mapped is not None and not mapped.map.is_identity:
            found[mapped.map] = None
    return list(found) or [IDENTITY]


# elementwise


def elementwise(call: Call, operands: Operands) -> Propagated | None:
    """The rule of elementwise ops: run on the sources if all full operands have the same map; other
    operands get the inverse map.
    """
    rank = call.result_types[0].rank
    full = [
        number
        for number, mapped in enumerate(operands)
        if mapped is not None
        and mapped.rank == rank
        and _is_full(mapped, call.result_types[0].dims)
    ]
    alike = [n for n, mapped in enumerate(operands) if mapped is not None and mapped.rank == rank]
    targets = _targets(operands, full)
    if targets == [IDENTITY]:
        targets = [m for m in _targets(operands, alike) if permutation(m, rank) is not None]
    return _cheapest((_elementwise(operands, map, rank, full) for map in targets), operands)


def _is_full(mapped: MappedOperand, dims: Sequence[Dim]) -> bool:
    return all(a != 1 or b == 1 for a, b in zip(mapped.dims, dims, strict=True))


def _elementwise(
    operands: Operands, map: IndexMap, rank: int, full: Sequence[int]
) -> Propagated | None:
    perm = permutation(map, rank)
    if perm is not None:
        ways = tuple(
            IDENTITY
            if mapped is None or (mapped.rank == rank and mapped.map == map)
            else aligned(mapped, rank, perm)
            for mapped in operands
        )
        return Propagated(ways, (map,))
    if any(isinstance(step, Slice) for step in map.steps):
        return None  # it would compute what is cut away
    like = next(mapped for mapped in operands if mapped is not None and mapped.map == map)
    back = map.inverse(like.type.dims)
    made: list[IndexMap] = []
    for number, mapped in enumerate(operands):
        if mapped is None or (mapped.map == map and mapped.type.dims == like.type.dims):
            made.append(IDENTITY)
        elif all(extent == 1 for extent in mapped.dims):
            one = mapped.map.then(IndexMap((Reshape(()),)), mapped.type.dims)
            made.append(one if mapped.rank > like.type.rank else mapped.map)
        elif back is not None and number in full:
            made.append(mapped.map.then(back, mapped.type.dims))
        else:
            return None
    return Propagated(tuple(made), (map,))


def cast(call: Call, operands: Operands) -> Propagated | None:
    """The rule of cast: merges with a pending change of dtype, if the intermediate dtype holds all
    values or is the final one; else as elementwise."""
    (mapped,) = operands
    assert mapped is not None
    source, between, to = mapped.type.dtype, call.operand(0).dtype, call.attrs["to"]
    assert isinstance(to, DType)
    is_one = to is between or (
        casts_as_one(source, between, to) and (not call.attrs.get("clamps") or is_kept(source, to))
    )
    if source is not between and is_one:
        return Propagated((IDENTITY,), (mapped.map,), is_removed=True, moves=True)
    return elementwise(call, operands)


# movement


def transpose(call: Call, operands: Operands) -> Propagated | None:
    """The rule of transpose: becomes part of its operand's index map."""
    return _folded(call, operands, Transpose(call.ints("perm")))


def _folded(call: Call, operands: Operands, step: Step) -> Propagated | None:
    (mapped,) = operands
    assert mapped is not None
    if mapped.map.is_identity:
        return _as_it_is(operands, 1, moves=True)
    map = mapped.map.then(IndexMap((step,)), mapped.type.dims)
    return Propagated((IDENTITY,), (map,), is_removed=True, moves=True)


def reshape(call: Call, operands: Operands) -> Propagated | None:
    """The rule of reshape: stays if it joins and splits dims that are adjacent in the source, else
    becomes part of the map.
    """
    (mapped,) = operands
    assert mapped is not None
    shape = call.dims("shape")
    perm = mapped.map.perm
    swapped = None if perm is None else _reshape_before(mapped.type.dims, perm, shape)
    if swapped is None:
        return _folded(call, operands, Reshape(shape))
    before, after = swapped
    return Propagated((IDENTITY,), (transposed(after),), {"shape": before}, moves=True)


def _reshape_before(
    source: Sequence[Dim], perm: Sequence[int], shape: Sequence[Dim]
) -> tuple[tuple[Dim, ...], tuple[int, ...]] | None:
    """(dims, permutation) with which reshape-then-transpose of `source` equals transposing by
    `perm` and reshaping to `shape`; None if there are none.
    """
    groups = _groups([source[p] for p in perm], shape)
    if not groups:
        return None
    places = {dim: n for n, dim in enumerate(p for p in range(len(source)) if source[p] != 1)}
    starts: list[int] = []
    for old, _ in groups:
        at = [places[perm[dim]] for dim in old]
        if at != list(range(at[0], at[0] + len(at))):
            return None
        starts.append(at[0])
    order = sorted(range(len(groups)), key=starts.__getitem__)
    positions = [dim for number in order for dim in groups[number][1]]
    after = inverse_permutation(positions)
    return tuple(shape[dim] for dim in positions), after


def _groups(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """The shortest groups of old and new dims with equal products, in order; None where dims can't
    be proved equal. New extents of 1 belong to the group before.
    """
    groups: list[tuple[list[int], list[int]]] = []
    left = [n for n, extent in enumerate(old) if extent != 1]
    taken = 0
    while left:
        count, extent = 1, old[left[0]]
        start, found = taken, None
        made: Dim = 1
        while found is None:
            if made == extent and taken > start:
                found = (left[:count], list(range(start, taken)))
            elif count < len(left) and (taken == len(new) or _is_less(extent, made)):
                extent = d.multiply(extent, old[left[count]])
                count += 1
            elif taken < len(new):
                made = d.multiply(made, new[taken])
                taken += 1
            else:
                return None
        groups.append(found)
        left = left[count:]
    if not groups or any(extent != 1 for extent in new[taken:]):
        return None
    groups[-1][1].extend(range(taken, len(new)))
    return groups


def _is_less(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a < b


def slice_(call: Call, operands: Operands) -> Propagated | None:
    """The rule of slice: slices the source by the same positions in its dim order, so that less
    data is moved."""
    perm = _perm_of(operands)
    starts, stops, steps = call.dims("starts"), call.dims("stops"), call.ints("steps")
    if perm is None:
        return _folded(call, operands, Slice(starts, stops, steps))
    attrs: dict[str, Attr] = {
        name: _permuted(values, perm)
        for name, values in (("starts", starts), ("stops", stops), ("steps", steps))
    }
    return Propagated((IDENTITY,), (transposed(perm),), attrs, moves=True)


def broadcast_to(call: Call, operands: Operands) -> Propagated | None:
    perm, shape = _perm_of(operands), call.dims("shape")
    if perm is None:
        return _folded(call, operands, Broadcast(shape))
    lead = len(shape) - len(perm)
    made = (*shape[:lead], *_permuted(shape[lead:], perm))
    after = (*range(lead), *(lead + p for p in perm))
    return Propagated((IDENTITY,), (transposed(after),), {"shape": made}, moves=True)


def pad(call: Call, operands: Operands) -> Propagated | None:
    perm, pads = _perm_of(operands), call.dims("pads")
    if perm is None:
        return None
    begins, ends = pads[: len(perm)], pads[len(perm) :]
    moves = call.attrs["mode"] != "constant" or call.float("value") == 0
    attrs: dict[str, Attr] = {"pads": (*_permuted(begins, perm), *_permuted(ends, perm))}
    return Propagated((IDENTITY,), (transposed(perm),), attrs, moves=moves)


def copy(call: Call, operands: Operands) -> Propagated | None:
    """The rule of copy: removes the op, as the result's type determines the layout."""
    (mapped,) = operands
    assert mapped is not None
    return Propagated((IDENTITY,), (mapped.map,), is_removed=True, moves=True)


# along axes


def along_axis(call: Call, operands: Operands) -> Propagated | None:
    """The rule of an op along one axis: works on the source of a transpose, along the corresponding
    axis; other operands stay.
    """
    perm = _perm_of(operands)
    if perm is None:
        return None
    results = (transposed(perm),) * len(call.result_types)
    return Propagated(_own_maps(operands, [0]), results, {"axis": perm[call.int("axis")]})


def aligned_along_axis(call: Call, operands: Operands) -> Propagated | None:
    """The rule of ops along an axis whose operands have equal dims except along that axis."""
    moves = call.attrs.get("reduction", "none") == "none"

    def answer(map: IndexMap) -> Propagated | None:
        rank = call.result_types[0].rank
        perm = permutation(map, rank)
        if perm is None:
            return None
        ways = tuple(
            IDENTITY if mapped is None or mapped.map == map else aligned(mapped, rank, perm)
            for mapped in operands
        )
        return Propagated(ways, (map,), {"axis": perm[call.int("axis")]}, moves=moves)

    return _cheapest(map_answers(answer, operands), operands)


def map_answers(
    answer: Callable[[IndexMap], Propagated | None], operands: Operands
) -> list[Propagated | None]:
    """The results of `answer` for each distinct map of the operands."""
    return [answer(map) for map in _targets(operands, range(len(operands)))]


def reduction(call: Call, operands: Operands) -> Propagated | None:
    """The rule of reductions (`axes`) and positions of extrema (`axis`): works on the source's
    dims, and permutes the result."""
    perm = _perm_of(operands)
    if perm is None:
        return None
    attrs: dict[str, Attr]
    if "axes" in call.attrs:
        axes = [perm[axis] for axis in call.ints("axes")]
        attrs = {"axes": tuple(sorted(axes))}
    else:
        axes = [perm[call.int("axis")]]
        attrs = {"axis": axes[0]}
    kept = perm
    if not call.attrs["keepdims"]:
        left = [dim for dim in range(len(perm)) if dim not in axes]
        kept = tuple(left.index(p) for p in perm if p not in axes)
    return Propagated((IDENTITY,), (transposed(kept),) * len(call.result_types), attrs)


def gather(call: Call, operands: Operands) -> Propagated | None:
    """The rule of gather: takes the corresponding axis of the data's source; the dims of the
    positions are inserted there.
    """
    perm = _perm_of(operands)
    positions = operands[1]
    if perm is None or positions is None:
        return None
    axis, middle = call.int("axis"), list(range(len(perm), len(perm) + positions.rank))
    old = [*perm[:axis], *middle, *perm[axis + 1 :]]
    data = list(range(len(perm)))
    new = [*data[: perm[axis]], *middle, *data[perm[axis] + 1 :]]
    after = tuple(new.index(dim) for dim in old)
    return Propagated(
        _own_maps(operands, [0]), (transposed(after),), {"axis": perm[axis]}, moves=True
    )


# dims that must stay last


def _keeps_last(perm: Sequence[int], count: int) -> bool:
    last = range(len(perm) - count, len(perm))
    return all(perm[dim] == dim for dim in last)


def trilu(call: Call, operands: Operands) -> Propagated | None:
    perm = _perm_of(operands)
    if perm is None or not _keeps_last(perm, 2):
        return None
    return Propagated((IDENTITY,), (transposed(perm),), moves=True)


def layer_norm(call: Call, operands: Operands) -> Propagated | None:
    perm = _perm_of(operands)
    if perm is None or not _keeps_last(perm, len(perm) - call.int("axis")):
        return None
    return Propagated(_own_maps(operands, [0]), (transposed(perm),))


def matmul(call: Call, operands: Operands) -> Propagated | None:
    """The rule of matmul: permutes batch dims if both sides allow it, and rows if all batches share
    one right side."""
    a, b = operands[0], operands[1]
    rank = call.result_types[0].rank
    if a is None or b is None:
        return None

    def answer(map: IndexMap) -> Propagated | None:
        perm = permutation(map, rank)
        if perm is None or len(perm) != rank:
            return None
        if _keeps_last(perm, 2):
            ways = [_batch_aligned(mapped, map, rank, perm) for mapped in (a, b)]
            return Propagated(tuple(ways), (map,))
        is_one = all(extent == 1 for extent in b.dims[:-2]) and a.rank == rank
        if is_one and a.map == map and _keeps_last(perm, 1):
            return Propagated((IDENTITY, b.map), (map,))
        return None

    return _cheapest(map_answers(answer, operands), operands)


def matmul_of_rows(call: Call, operands: Operands) -> Propagated | None:
    """The rule of products by stored weights: permutes the left side's rows, as long as its last
    dim stays last."""
    mapped, rank = operands[0], call.result_types[0].rank
    perm = None if mapped is None else permutation(mapped.map, rank)
    is_alone = all(o is None or o.map.is_identity for o in operands[1:])
    if mapped is None or perm is None or not is_alone or not _keeps_last(perm, 1):
        return None
    # scales of rows would have to move with these
    if any(o is not None and not o.is_constant for o in operands[1:]):
        return _as_it_is(operands, 1)
    return Propagated((IDENTITY,) * len(operands), (mapped.map,))


def _batch_aligned(
    mapped: MappedOperand, map: IndexMap, rank: int, perm: Sequence[int]
) -> IndexMap:
    if mapped.rank == rank and mapped.map == map:
        return IDENTITY
    if all(extent == 1 for extent in mapped.dims[:-2]):
        return mapped.map
    return aligned(mapped, rank, perm)
