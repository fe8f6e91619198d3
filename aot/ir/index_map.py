"""Index maps: for each element of a tensor, the corresponding element of another one.

A map is a short list of steps from operand to result, each what one movement op does; neighbours
that can be one step are one. Owns their composition, inverses and meaning in numpy; knows no ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from aot.base.records import dataclass
from aot.ir import dims as d
from aot.ir.dims import Dim, DimExpr


@dataclass(frozen=True)
class Transpose:
    """A step in which result dim i is operand dim perm[i]."""

    perm: tuple[int, ...]


@dataclass(frozen=True)
class Reshape:
    """A step that keeps the elements in row-major order under other dims."""

    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Slice:
    """A step that takes every step-th element from start up to, not including, stop, in each
    dim."""

    starts: tuple[Dim, ...]
    stops: tuple[Dim, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Broadcast:
    """A step that repeats dims of extent 1, and adds leading ones, up to `dims`."""

    dims: tuple[Dim, ...]


Step = Union[Transpose, Reshape, Slice, Broadcast]

_NAMES: dict[str, type[Any]] = {
    "transpose": Transpose,
    "reshape": Reshape,
    "slice": Slice,
    "broadcast": Broadcast,
}
_FIELDS = {
    Transpose: ("perm",),
    Reshape: ("dims",),
    Slice: ("starts", "stops", "steps"),
    Broadcast: ("dims",),
}


@dataclass(frozen=True)
class IndexMap:
    """A map from the elements of a result to those of an operand.

    Attributes:
        steps: from the operand to the result; none is the identity.
    """

    steps: tuple[Step, ...] = ()

    @property
    def is_identity(self) -> bool:
        return not self.steps

    @property
    def perm(self) -> tuple[int, ...] | None:
        """The permutation that the map is, if it is one and not the identity; else None."""
        if len(self.steps) != 1 or not isinstance(self.steps[0], Transpose):
            return None
        return self.steps[0].perm

    def then(self, other: IndexMap, operand: Sequence[Dim]) -> IndexMap:
        """This map, then `other`, for an operand of dims `operand`."""
        return make_map((*self.steps, *other.steps), operand)

    def result_dims(self, operand: Sequence[Dim]) -> tuple[Dim, ...]:
        """The dims of the map's result, given the operand's."""
        found = tuple(operand)
        for step in self.steps:
            found = step_dims(step, found)
        return found

    def inverse(self, operand: Sequence[Dim]) -> IndexMap | None:
        """The map from result to operand; None where elements are lost or repeated."""
        made: list[Step] = []
        found = tuple(operand)
        for step in self.steps:
            if isinstance(step, Transpose):
                made.insert(0, Transpose(inverse_permutation(step.perm)))
            elif isinstance(step, Reshape):
                made.insert(0, Reshape(found))
            else:
                return None
            found = step_dims(step, found)
        return make_map(made, found)

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The result's elements, given the operand's; all dims of the map must be numbers."""
        for step in self.steps:
            array = _apply(step, array)
        return array

    def to_attr(self) -> tuple[Any, ...]:
        """The map as an attribute: a list of `[name, fields...]`."""
        return tuple(
            (
                next(n for n, kind in _NAMES.items() if isinstance(step, kind)),
                *(getattr(step, f) for f in _FIELDS[type(step)]),
            )
            for step in self.steps
        )

    @staticmethod
    def of_attr(value: object) -> IndexMap:
        """The map that `to_attr` wrote.

        Raises:
            ValueError: `value` is no index map.
        """
        if not isinstance(value, tuple):
            raise ValueError(f"{value!r} is no list of steps")
        return IndexMap(tuple(_step_of(item) for item in value))


def transposed(perm: Sequence[int]) -> IndexMap:
    """The map of a transpose."""
    return IndexMap() if list(perm) == sorted(perm) else IndexMap((Transpose(tuple(perm)),))


def make_map(steps: Sequence[Step], operand: Sequence[Dim]) -> IndexMap:
    """The index map of `steps` in normal form: without identities, and with neighbouring steps of a
    kind combined.
    """
    found = _joined(steps, operand)
    first, dims = 0, tuple(operand)
    while first < len(found):
        last, after = first, dims
        while last < len(found) and isinstance(found[last], (Transpose, Reshape)):
            after = step_dims(found[last], after)
            last += 1
        run = found[first:last]
        if sum(isinstance(step, Transpose) for step in run) > 1:
            fewer = _with_one_transpose(run, dims)
            if fewer is not None:
                return make_map((*found[:first], *fewer, *found[last:]), operand)
        if last < len(found):
            after = step_dims(found[last], after)
        first, dims = last + 1, after
    return IndexMap(tuple(found))


def _joined(steps: Sequence[Step], operand: Sequence[Dim]) -> list[Step]:
    made: list[tuple[Step, tuple[Dim, ...]]] = []  # with the dims that the step is given
    for step in steps:
        before = tuple(operand) if not made else step_dims(*made[-1])
        if _does_nothing(step, before):
            continue
        joined = _join(made[-1][0], step) if made else None
        if joined is None:
            made.append((step, before))
            continue
        _, before = made.pop()
        if not _does_nothing(joined, before):
            made.append((joined, before))
    return [step for step, _ in made]


def _with_one_transpose(steps: Sequence[Step], operand: Sequence[Dim]) -> list[Step] | None:
    """Transposes and reshapes combined into steps with a single transpose, of the pieces into which
    they split dims.

    None where a reshape takes pieces of pieces that don't divide.
    """
    pieces = dict(enumerate(operand))
    order = list(pieces)  # as they lie in the operand, where they are split further and further
    axes = [[n] for n in order]
    for step in steps:
        if isinstance(step, Transpose):
            axes = [axes[p] for p in step.perm]
        elif isinstance(step, Reshape):
            regrouped = _regrouped([p for axis in axes for p in axis], step.dims, pieces, order)
            if regrouped is None:
                return None
            axes = regrouped
    result: Sequence[Dim] = operand
    for step in steps:
        result = step_dims(step, tuple(result))
    place = {piece: n for n, piece in enumerate(order)}
    flat = [place[p] for axis in axes for p in axis if pieces[p] != 1]
    return _transposing(flat, [pieces[p] for p in order], operand, tuple(result))


def _regrouped(
    flat: list[int], dims: Sequence[Dim], pieces: dict[int, Dim], order: list[int]
) -> list[list[int]] | None:
    """The pieces `flat`, in row-major order, regrouped into axes of `dims`; splits pieces where
    necessary."""
    axes: list[list[int]] = []
    rest = [p for p in flat if pieces[p] != 1]
    for extent in dims:
        axis: list[int] = []
        while extent != 1:
            if not rest:
                return None
            piece = rest.pop(0)
            left = _quotient(extent, pieces[piece])
            if left is None:
                inner = _quotient(pieces[piece], extent)
                if inner is None:
                    return None
                rest.insert(0, _split(piece, extent, inner, pieces, order))
                left = 1
            axis.append(piece)
            extent = left
        axes.append(axis)
    return axes if not rest else None


def _split(piece: int, outer: Dim, inner: Dim, pieces: dict[int, Dim], order: list[int]) -> int:
    """Splits `piece` into an outer part, which keeps its number, and an inner part after it;
    returns the inner one's number."""
    made = len(pieces)
    pieces[piece], pieces[made] = outer, inner
    order.insert(order.index(piece) + 1, made)
    return made


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """`a / b` if that is known to be an integer; else None."""
    if b == 0:
        return None
    found = d.floor_divide(a, b)
    return found if d.multiply(found, b) == a else None


def _transposing(
    flat: Sequence[int], extents: Sequence[Dim], operand: Sequence[Dim], result: tuple[Dim, ...]
) -> list[Step]:
    """Steps that permute pieces of the operand, numbered in its order, into the order `flat`."""
    if list(flat) == sorted(flat):
        return [Reshape(result)]
    runs: list[list[int]] = []  # pieces that stay neighbours need not be told apart
    present = sorted(flat)
    following = dict(itertools.pairwise(present))
    for piece in flat:
        if runs and following.get(runs[-1][-1]) == piece:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    whole = [extent for extent in operand if extent != 1]
    if len(whole) == len(present) == len(operand) and [extents[p] for p in present] == whole:
        runs = [[piece] for piece in flat]  # dims as they are
    starts = sorted(run[0] for run in runs)
    by_start = {run[0]: d.product([extents[p] for p in run]) for run in runs}
    perm = tuple(starts.index(run[0]) for run in runs)
    return [Reshape(tuple(by_start[s] for s in starts)), Transpose(perm), Reshape(result)]


def step_dims(step: Step, operand: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The dims of a step's result."""
    if isinstance(step, Transpose):
        return tuple(operand[p] for p in step.perm)
    if isinstance(step, Slice):
        items = zip(step.starts, step.stops, step.steps, operand, strict=True)
        return tuple(slice_extent(*item) for item in items)
    return step.dims


def inverse_permutation(perm: Sequence[int]) -> tuple[int, ...]:
    """The inverse of permutation `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def slice_extent(start: Dim, stop: Dim, step: int, extent: Dim | None = None) -> Dim:
    """The number of elements of start, start + step, ... before `stop`.

    `extent`, the dim that is sliced, is not negative, whatever its symbols' bounds say.
    """
    if step < 0:
        start, stop, step = d.multiply(start, -1), d.multiply(stop, -1), -step
    # stop - min(a, b) is max(stop - a, stop - b), which keeps x[2:] at max(0, n - 2)
    starts = [start]
    if isinstance(start, DimExpr) and len(start.terms) == 1 and not start.constant:
        ((monomial, coefficient),) = start.terms
        if (
            coefficient == 1
            and len(monomial) == 1
            and isinstance(monomial[0], d.Extremum)
            and not monomial[0].is_max
        ):
            starts = list(monomial[0].args)
    spans = [d.add(stop, d.multiply(s, -1)) for s in starts]
    span = spans[0] if spans == [extent] else d.maximum(0, *spans)
    return d.floor_divide(d.add(span, step - 1), step)


def _does_nothing(step: Step, operand: tuple[Dim, ...]) -> bool:
    if isinstance(step, Transpose):
        return list(step.perm) == sorted(step.perm)
    if isinstance(step, Slice):
        return all(s == 0 for s in step.starts) and (
            step.stops == operand and all(s == 1 for s in step.steps)
        )
    return step.dims == operand


def _join(first: Step, second: Step) -> Step | None:
    """One step that combines two; None if there is none."""
    if isinstance(first, Transpose) and isinstance(second, Transpose):
        return Transpose(tuple(first.perm[p] for p in second.perm))
    if isinstance(first, Reshape) and isinstance(second, Reshape):
        return second
    if isinstance(first, Broadcast) and isinstance(second, Broadcast):
        return second
    return None


def _apply(step: Step, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(step, Transpose):
        return array.transpose(step.perm)
    if isinstance(step, Slice):
        return array[
            tuple(
                slice(_known(start), None if stop == -1 and by < 0 else _known(stop), by)
                for start, stop, by in zip(step.starts, step.stops, step.steps, strict=True)
            )
        ]
    shape = tuple(map(_known, step.dims))
    return array.reshape(shape) if isinstance(step, Reshape) else np.broadcast_to(array, shape)


def _known(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise ValueError(f"dim {dim} is not known")
    return dim


def _step_of(item: object) -> Step:
    if not isinstance(item, tuple) or not item or item[0] not in _NAMES:
        raise ValueError(f"{item!r} is no step: expected one of {', '.join(_NAMES)}")
    kind = _NAMES[str(item[0])]
    fields = item[1:]
    if len(fields) != len(_FIELDS[kind]) or not all(isinstance(f, tuple) for f in fields):
        raise ValueError(f"{item[0]} takes {' and '.join(_FIELDS[kind])}")
    made: Step = kind(*fields)
    return made
