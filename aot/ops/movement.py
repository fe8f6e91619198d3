"""Movement ops with one operand: each result element is an operand element.

`compute` is an index map, so that a movement can become part of whatever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.bounds import one_or
from aot.ir.dim_semantics import UndecidedError
from aot.ir.dims import Dim
from aot.ir.graph import BROADCAST, Assumption, Attr
from aot.ir.index_map import Broadcast, Reshape, Slice, Step, Transpose, make_map, slice_extent
from aot.ir.mapped_operand import LayoutRule
from aot.ir.record import (
    ANY,
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, Layout, TensorType
from aot.ops import layout_rules
from aot.ops.contraction import may_be_positions
from aot.ops.elementwise import broadcast_load, result_indices

F32 = DType.F32


def static_dims(call: Call, name: str) -> tuple[int, ...]:
    """A dims attribute as ints.

    Raises:
        UndecidedError: one is symbolic.
    """
    found = call.dims(name)
    if not all(isinstance(d, int) for d in found):
        raise UndecidedError(f"{name} of {call.record.name}")
    return tuple(int(d) for d in found)


def _sample(operand: tuple[int, ...], dtype: DType = F32, **attrs: Attr) -> Sample:
    return Sample((TensorType(dtype, operand),), attrs)


def _movement(
    name: str,
    summary: str,
    attributes: tuple[Attribute, ...],
    constraints: tuple[Constraint, ...],
    infer: Callable[[Call], Sequence[TensorType]],
    reference: Callable[[Call, Array], Array],
    load: Callable[[Call, tuple[e.Var, ...]], e.Expr],
    samples: tuple[Sample, ...],
    *,
    kind: Kind = Kind.MOVEMENT,
    view_of: int | None = None,
    rule: LayoutRule | None = None,
    step: Callable[[Call], Step] | None = None,
) -> OpRecord:
    """A record of an op whose result element at some indices is `load` of its only operand.

    Args:
        rule: what becomes of an index map on the operand.
        step: what the op is as a step of an index map, for those that are one.
    """

    def compute(call: Call) -> Sequence[Compute]:
        indices = result_indices(call.result_types[0].rank)
        return [Compute(indices, load(call, indices))]

    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(Operand("x", ANY),),
            attributes=attributes,
            constraints=constraints,
            infer=infer,
            reference=lambda call, inputs: [np.array(reference(call, inputs[0]), order="C")],
            compute=compute,
            kind=kind,
            view_of=view_of,
            index_map=None
            if step is None
            else lambda call: make_map([step(call)], call.operand(0).dims),
            propagate=rule,
            is_cheap=True,
            takes_dims=True,
            samples=samples,
        )
    )


# reshape


def _same_count(call: Call) -> bool:
    return call.equal(
        call.operand(0).element_count,
        dims.product(call.dims("shape")),
        "reshape: the number of elements stays",
    )


def reshape_indices(
    old: Sequence[Dim], new: Sequence[Dim], indices: Sequence[e.Expr]
) -> tuple[e.Expr, ...]:
    """Indices in dims `old` of the element that has `indices` in dims `new`, in row-major order.

    Dims are matched in the shortest groups of equal products, so that an index of one group never
    depends on another's; dims that can't be told equal form one last group.
    """
    result: list[e.Expr] = [e.index(0)] * len(old)
    left = [d for d, extent in enumerate(old) if extent != 1]
    right = [d for d, extent in enumerate(new) if extent != 1]
    while left and right:
        a, b = shortest_group([old[d] for d in left], [new[d] for d in right])
        _map_group(
            [old[d] for d in left[:a]],
            left[:a],
            [new[d] for d in right[:b]],
            [indices[d] for d in right[:b]],
            result,
        )
        left, right = left[a:], right[b:]
    return tuple(result)


def shortest_group(old: Sequence[Dim], new: Sequence[Dim]) -> tuple[int, int]:
    """The smallest numbers of leading dims of both shapes with equal products; all dims where none
    can be proved equal.
    """
    for total in range(2, len(old) + len(new)):
        for a in range(max(1, total - len(new)), min(total - 1, len(old)) + 1):
            if dims.product(list(old[:a])) == dims.product(list(new[: total - a])):
                return a, total - a
    return len(old), len(new)


def _map_group(
    old: Sequence[Dim],
    positions: Sequence[int],
    new: Sequence[Dim],
    indices: Sequence[e.Expr],
    result: list[e.Expr],
) -> None:
    linear: e.Expr = e.index(0)
    for extent, index in zip(new, indices, strict=True):
        linear = e.add(e.mul(linear, e.index(extent)), index)
    for number in range(len(old) - 1, 0, -1):
        result[positions[number]] = e.binary("floormod", linear, e.index(old[number]))
        linear = e.binary("floordiv", linear, e.index(old[number]))
    result[positions[0]] = linear


def _reshape_load(call: Call, indices: tuple[e.Var, ...]) -> e.Expr:
    x = call.operand(0)
    return e.Load(0, reshape_indices(x.dims, call.dims("shape"), indices), x.dtype)


RESHAPE = _movement(
    "reshape",
    "The same elements in row-major order under other dims.",
    (Attribute("shape", "dims", doc="the new dims, all explicit"),),
    (Constraint("shape has as many elements as x", _same_count),),
    lambda call: [TensorType(call.operand(0).dtype, call.dims("shape"))],
    lambda call, x: np.reshape(x, static_dims(call, "shape")),
    _reshape_load,
    (
        _sample((2, 3, 4), shape=(6, 4)),
        _sample((2, 12, 5), shape=(2, 3, 4, 5)),
        _sample((1, 7, 1, 3), shape=(7, 3)),
        _sample((4, 6), shape=(3, 8)),
        _sample((5,), shape=(1, 5, 1)),
        _sample((1, 1), shape=()),
        _sample((6, 10), shape=(4, 15), dtype=DType.I64),
    ),
    kind=Kind.VIEW,
    view_of=0,
    rule=layout_rules.reshape,
    step=lambda call: Reshape(call.dims("shape")),
)


# transpose


def _is_permutation(call: Call) -> bool:
    return sorted(call.ints("perm")) == list(range(call.operand(0).rank))


def _transpose_load(call: Call, indices: tuple[e.Var, ...]) -> e.Expr:
    at = dict(zip(call.ints("perm"), indices, strict=True))
    return e.Load(0, tuple(at[d] for d in range(len(indices))), call.operand(0).dtype)


TRANSPOSE = _movement(
    "transpose",
    "Dims in another order: result dim i is x's dim perm[i].",
    (Attribute("perm", "ints"),),
    (Constraint("perm is a permutation of x's dims", _is_permutation),),
    lambda call: [
        TensorType(call.operand(0).dtype, tuple(call.operand(0).dims[d] for d in call.ints("perm")))
    ],
    lambda call, x: np.transpose(x, call.ints("perm")),
    _transpose_load,
    (
        _sample((2, 3, 5), perm=(0, 2, 1)),
        _sample((2, 3, 4, 5), perm=(2, 0, 3, 1)),
        _sample((7, 3), perm=(1, 0)),
        _sample((), perm=()),
    ),
    rule=layout_rules.transpose,
    step=lambda call: Transpose(call.ints("perm")),
)


# broadcast_to


def _broadcasts(call: Call) -> bool:
    old, new = call.operand(0).dims, call.dims("shape")
    if len(old) > len(new):
        return False
    return all(
        a == 1 or call.equal(a, b, f"broadcast_to: {BROADCAST}")
        for a, b in zip(old, new[len(new) - len(old) :], strict=True)
    )


BROADCAST_TO = _movement(
    "broadcast_to",
    "Dims of extent 1, and new ones in front, repeat up to shape.",
    (Attribute("shape", "dims", doc="the result's dims"),),
    (Constraint("x broadcasts to shape as in numpy", _broadcasts),),
    lambda call: [TensorType(call.operand(0).dtype, call.dims("shape"))],
    lambda call, x: np.broadcast_to(x, static_dims(call, "shape")),
    lambda call, indices: broadcast_load(call, 0, indices),
    (
        _sample((3, 1), shape=(2, 3, 4)),
        _sample((), shape=(3, 5)),
        _sample((1, 5), shape=(7, 5)),
        _sample((2, 1, 3), shape=(2, 4, 3), dtype=DType.I64),
    ),
    rule=layout_rules.broadcast_to,
    step=lambda call: Broadcast(call.dims("shape")),
)


# spread


def _spreads(call: Call) -> bool:
    """Whether x's dims may be 1 or those of shape; dynamic ones are checked at each run."""
    old, new = call.operand(0).dims, call.dims("shape")
    if len(old) > len(new):
        return False
    for a, b in zip(old, new[len(new) - len(old) :], strict=True):
        if a in (1, b):
            continue
        if isinstance(a, int) and isinstance(b, int):
            return False
        call.assumptions += (
            one_or(a, b, BROADCAST),
            Assumption(dims.maximum(a, dims.minimum(b, 1)), a, BROADCAST),
        )
    return True


def _spread_load(call: Call, indices: tuple[e.Var, ...]) -> e.Expr:
    x, shape = call.operand(0), call.dims("shape")
    tail = len(shape) - x.rank
    at = tuple(
        e.index(0)
        if extent == 1
        else i
        if extent == wanted
        else e.binary("min", i, e.index(dims.add(extent, -1)))
        for extent, wanted, i in zip(x.dims, shape[tail:], indices[tail:], strict=True)
    )
    return e.Load(0, at, x.dtype)


SPREAD = _movement(
    "spread",
    "Dims repeat up to shape where a run has 1 of them, and stay where it has as many as shape.",
    (Attribute("shape", "dims", doc="the result's dims"),),
    (Constraint("dims of x are 1 or those of shape", _spreads),),
    lambda call: [TensorType(call.operand(0).dtype, call.dims("shape"))],
    lambda call, x: np.broadcast_to(x, static_dims(call, "shape")),
    _spread_load,
    (
        _sample((3, 1), shape=(2, 3, 4)),
        _sample((1, 5), shape=(7, 5)),
        _sample((2, 1, 3), shape=(2, 4, 3), dtype=DType.I64),
    ),
)


# slice


def _slice_lengths(call: Call) -> bool:
    rank = call.operand(0).rank
    return all(
        len(items) == rank
        for items in (call.dims("starts"), call.dims("stops"), call.ints("steps"))
    ) and 0 not in call.ints("steps")


def _slice_in_range(call: Call) -> bool:
    for extent, start, stop, step in zip(
        call.operand(0).dims,
        call.dims("starts"),
        call.dims("stops"),
        call.ints("steps"),
        strict=True,
    ):
        low, high = (start, stop) if step > 0 else (dims.add(stop, 1), dims.add(start, 1))
        room = dims.add(extent, dims.multiply(high, -1))
        if not may_be_positions([low, room]):
            return False
    return True


def _slice_type(call: Call) -> Sequence[TensorType]:
    x = call.operand(0)
    items = zip(call.dims("starts"), call.dims("stops"), call.ints("steps"), x.dims, strict=True)
    return [TensorType(x.dtype, tuple(slice_extent(*item) for item in items))]


def _slice_reference(call: Call, x: Array) -> Array:
    items = zip(
        static_dims(call, "starts"), static_dims(call, "stops"), call.ints("steps"), strict=True
    )
    return np.asarray(
        x[tuple(slice(start, None if stop < 0 else stop, step) for start, stop, step in items)]
    )


def _slice_load(call: Call, indices: tuple[e.Var, ...]) -> e.Expr:
    at = tuple(
        e.add(e.mul(i, e.index(step)), e.index(start))
        for i, start, step in zip(indices, call.dims("starts"), call.ints("steps"), strict=True)
    )
    return e.Load(0, at, call.operand(0).dtype)


SLICE = _movement(
    "slice",
    "Every step-th element from start up to, not including, stop, in each dim.",
    (
        Attribute("starts", "dims", doc="positions, one a dim"),
        Attribute(
            "stops", "dims", doc="positions, one a dim; -1 with a negative step: to the front"
        ),
        Attribute("steps", "ints", doc="not 0"),
    ),
    (
        Constraint(
            "starts, stops and steps have one item a dim of x, and no step is 0", _slice_lengths
        ),
        Constraint(
            "starts and stops are positions in x, not counted from the end", _slice_in_range
        ),
    ),
    _slice_type,
    _slice_reference,
    _slice_load,
    (
        _sample((5, 7), starts=(1, 0), stops=(4, 7), steps=(1, 1)),
        _sample((2, 9, 3), starts=(0, 1, 0), stops=(2, 9, 3), steps=(1, 3, 2)),
        _sample((6, 5), starts=(5, 3), stops=(-1, 0), steps=(-1, -2)),
        _sample((4, 3), starts=(3, 0), stops=(2, 3), steps=(1, 1)),
        _sample((8,), starts=(2,), stops=(3,), steps=(1,), dtype=DType.I64),
    ),
    rule=layout_rules.slice_,
    step=lambda call: Slice(call.dims("starts"), call.dims("stops"), call.ints("steps")),
)


# pad

_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pads_fit(call: Call) -> bool:
    pads = call.dims("pads")
    return len(pads) == 2 * call.operand(0).rank and may_be_positions(pads)


def _pad_mode_fits(call: Call) -> bool:
    """Whether the extents are large enough for the pad mode's repeated elements; dynamic extents
    are checked at each run.
    """
    mode, x, pads = str(call.attrs["mode"]), call.operand(0), call.dims("pads")
    if mode not in _PAD_MODES:
        return False
    if mode == "constant":
        return True
    for d, extent in enumerate(x.dims):
        for amount in (pads[d], pads[x.rank + d]):
            if amount != 0 and not call.equal(
                dims.maximum(extent, _repeated(mode, amount)),
                extent,
                f"pad: mode {mode} has the elements it repeats",
            ):
                return False
    return True


def _repeated(mode: str, amount: Dim) -> Dim:
    """The smallest extent of an axis with which a mode can add `amount` elements at an end."""
    # positions that wrap are remainders, as many as there are
    return dims.add(amount, 1) if mode == "reflect" else 1


def _pad_type(call: Call) -> Sequence[TensorType]:
    x, pads = call.operand(0), call.dims("pads")
    return [
        TensorType(
            x.dtype,
            tuple(
                dims.add(extent, dims.add(pads[d], pads[x.rank + d]))
                for d, extent in enumerate(x.dims)
            ),
        )
    ]


def _pad_value(call: Call) -> float | int | bool:
    dtype, value = call.operand(0).dtype, call.float("value")
    if dtype is DType.BOOL:
        return bool(value)
    return value if dtype.is_float else int(value)


def _pad_reference(call: Call, x: Array) -> Array:
    pads = static_dims(call, "pads")
    borders = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    if call.attrs["mode"] == "constant":
        return np.pad(x, borders, constant_values=_pad_value(call))
    if call.attrs["mode"] == "wrap":
        for d, (begin, end) in enumerate(borders):
            if begin or end:
                extent = x.shape[d]
                x = np.take(x, np.arange(-begin, extent + end) % extent, axis=d)
        return x
    modes: Mapping[str, Any] = {"reflect": "reflect", "edge": "edge"}
    return np.pad(x, borders, mode=modes[str(call.attrs["mode"])])


def _pad_position(mode: str, index: e.Expr, begin: Dim, extent: Dim) -> e.Expr:
    position = e.sub(index, e.index(begin))
    last = e.index(dims.add(extent, -1))
    if mode == "reflect":
        # |p| mirrors at the front, last - |last - p| at the end
        return e.sub(last, e.unary("abs", e.sub(last, e.unary("abs", position))))
    if mode == "edge":
        return e.binary("min", e.binary("max", position, e.index(0)), last)
    if mode == "wrap":
        return e.binary("floormod", position, e.index(extent))
    return position


def _pad_load(call: Call, indices: tuple[e.Var, ...]) -> e.Expr:
    x, pads, mode = call.operand(0), call.dims("pads"), str(call.attrs["mode"])
    at: list[e.Expr] = []
    conditions: list[e.Expr] = []
    for d, (index, extent) in enumerate(zip(indices, x.dims, strict=True)):
        begin, end = pads[d], pads[x.rank + d]
        if begin == 0 and end == 0:
            at.append(index)
            continue
        at.append(_pad_position(mode, index, begin, extent))
        if mode == "constant":
            if begin != 0:
                conditions.append(e.binary("ge", at[-1], e.index(0)))
            if end != 0:
                conditions.append(e.binary("lt", at[-1], e.index(extent)))
    guard = e.all_of(conditions)
    other = None if guard is None else e.const(_pad_value(call), x.dtype)
    return e.Load(0, tuple(at), x.dtype, guard, other)


PAD = _movement(
    "pad",
    "Elements added at both ends of each dim.",
    (
        Attribute("pads", "dims", doc="counts at the begins of all dims, then at the ends"),
        Attribute("mode", "str", "constant", "constant, reflect, edge or wrap"),
        Attribute("value", "float", 0.0, "what constant mode adds"),
    ),
    (
        Constraint("pads has two counts a dim of x, none negative", _pads_fit),
        Constraint(
            "mode is constant, reflect, edge or wrap, and reflect and wrap have the elements "
            "they repeat",
            _pad_mode_fits,
        ),
    ),
    _pad_type,
    _pad_reference,
    _pad_load,
    (
        _sample((2, 3), pads=(1, 0, 2, 1), value=1.5),
        _sample((3, 5), pads=(0, 3, 0, 0)),
        _sample((2, 5), pads=(0, 3, 1, 4), mode="reflect"),
        _sample((3, 4), pads=(2, 0, 0, 6), mode="edge"),
        _sample((5,), pads=(3, 5), mode="wrap"),
        _sample((3, 2), pads=(7, 5, 10, 0), mode="wrap"),
        _sample((2, 2), pads=(1, 1, 0, 0), value=-3, dtype=DType.I64),
    ),
    rule=layout_rules.pad,
)


# copy


def _copy_type(call: Call) -> Sequence[TensorType]:
    x, layout = call.operand(0), call.attrs["layout"]
    assert isinstance(layout, Layout)
    return [TensorType(x.dtype, x.dims, None if layout == Layout() else layout)]


COPY = _movement(
    "copy",
    "The same elements in memory of their own, in a layout.",
    (Attribute("layout", "layout", Layout(), "of the result; {} is dense"),),
    (),
    _copy_type,
    lambda call, x: x,
    lambda call, indices: e.Load(0, indices, call.operand(0).dtype),
    (_sample((2, 3, 5)), _sample((3, 4, 5), layout=Layout(order=(0, 2, 1)))),
    rule=layout_rules.copy,
)
