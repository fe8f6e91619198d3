"""fold-constants: what is known at compile time is computed at compile time.

Requires: nothing.
Ensures: no op is left whose results are known from constants, types and attributes, but those that
    cost less to keep (below). Shape arithmetic whose elements are dims is one `dim_values`.
    Assumptions that are true are removed.
Never: uses BLAS or a CPU-dependent order of summation: the bytes are the same on every machine.
    Stores a constant that only repeats (a fill, a broadcast) or that outgrows its sources beyond
    what the level of optimising allows, unless something that is stored is computed from it.
    Evaluates `dequantize`: quantised weights are for `quantise-contractions` to take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from aot.analysis.alias.database import AliasDb
from aot.ir.bounds import bounds_of
from aot.ir.builtin import CONSTANT
from aot.ir.dim_ratios import numbers
from aot.ir.dim_semantics import UndecidedError, assuming
from aot.ir.dims import DimExpr
from aot.ir.graph import Attr, ConstantData, Function, Module, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType
from aot.ops.elementwise import CAST
from aot.ops.quantization import DEQUANTIZE
from aot.ops.shape import DIM_VALUES
from aot.passes.base import Pass, PassContext
from aot.passes.bind import settle_assumptions
from aot.records import dataclass

# A result that is no longer than its sources, or than this, is stored rather than computed anew in
# every run.
GROWTH_BYTES = {"speed": 16 << 20, "balanced": 4 << 20, "size": 64 << 10}
# Repeating values are read more cheaply through the index map of what repeats them.
REPEAT_BYTES = 4 << 10
# Loads widen elements; a few, which inner loops read ever again, are stored wide.
WIDENED_BYTES = 1 << 10
# Sources that are distinguished; a sum of ten thousand constants must not list them at every step.
MAX_SOURCES = 64
# More is not computed at compile time at all, unless it only moves what is stored already.
LIMIT_BYTES = 1 << 28


def run(module: Module, context: PassContext) -> None:
    growth_bytes = GROWTH_BYTES[context.options.optimize]
    for function in module.functions.values():
        context.count("fold-constants", "folded", fold(function, growth_bytes))
        settle_assumptions(function)


@dataclass(frozen=True)
class Known:
    """A value's elements (an object array where some are symbolic dims), and from what they came.

    Attributes:
        sources: constants that it was computed from.
        more_bytes: bytes of the others, once there are more than MAX_SOURCES; those of two values
            count once, as far as can be seen.
    """

    array: Array
    sources: frozenset[Value] = frozenset()
    more_bytes: int = 0


def fold(function: Function, growth_bytes: int) -> int:
    """Folds one function; gives how many ops went."""
    known: dict[Value, Known] = {}
    order = list(function.walk())
    db = AliasDb.where_written(function)
    with assuming(bounds_of(function.assumptions)):
        for op in order:
            if db is None or db.is_repeatable(op):
                _evaluate(op, known)
    # Users come after what they use: backwards, an op is kept once a kept op reads what cannot be
    # stored, and by then every reader has been seen.
    stored: dict[Value, None] = {}
    kept: set[Op] = set()
    for op in reversed(order):
        if op.name == CONSTANT.name:
            continue
        if op not in kept and op.results and all(v in known for v in op.results):
            continue
        for value in op.operands:
            if value is None or value not in known or _is_constant(value):
                continue
            if _is_storable(value, known, growth_bytes):
                stored[value] = None
            else:
                kept.add(_definer(value))
    for value in reversed(list(stored)):
        _store(Rewriter(function), value, known[value].array)
    folded = 0
    for op in reversed(order):
        if (
            op not in kept
            and not _is_constant_op(op)
            and op.results
            and all(v in known for v in op.results)
        ):
            Rewriter(function).erase(op)
            folded += 1
    return folded


def _is_constant_op(op: Op) -> bool:
    return op.name == CONSTANT.name


def _is_constant(value: Value) -> bool:
    return value.op is not None and _is_constant_op(value.op)


def _definer(value: Value) -> Op:
    assert value.op is not None  # a block's arguments are never known
    return value.op


def _evaluate(op: Op, known: dict[Value, Known]) -> None:
    """Adds the results of `op` to `known` if they follow from what is known."""
    record = op.record
    if (
        record.reference is None
        or record.results_from != "rule"
        or record.has_side_effects
        or record.writes
        or record.is_terminator
        or op.blocks
        or record is DEQUANTIZE
    ):
        return
    inputs: list[Array | None] = []
    sources: frozenset[Value] = frozenset()
    more_bytes = 0
    # ops of kind SHAPE read their operands' types and never their elements
    if record.kind is not Kind.SHAPE:
        for value in op.operands:
            if value is None:
                inputs.append(None)
                continue
            if value not in known:
                return
            inputs.append(known[value].array)
            sources |= known[value].sources
            more_bytes = max(more_bytes, known[value].more_bytes)
    if len(sources) > MAX_SOURCES:
        more_bytes += _bytes_of(sources, known)
        sources = frozenset()
    if not record.takes_dims and any(a is not None and a.dtype == object for a in inputs):
        return
    results = _results(op, inputs)
    for value, array in zip(op.results, results or (), strict=False):
        is_source = _is_constant_op(op)
        known[value] = Known(array, frozenset([value]) if is_source else sources, more_bytes)


def _bytes_of(sources: Iterable[Value], known: Mapping[Value, Known]) -> int:
    return sum(known[source].array.nbytes for source in sources)


def _results(op: Op, inputs: Sequence[Array | None]) -> list[Array] | None:
    """What `op` computes, by its reference; None where that cannot be told or is too much."""
    if not all(v.type.is_static for v in op.results):
        return None
    most = LIMIT_BYTES
    if op.record.kind in (Kind.MOVEMENT, Kind.VIEW):
        most = max([most, *(array.nbytes for array in inputs if array is not None)])
    sizes = [v.type.dtype.storage_bytes(math.prod(v.type.shape)) for v in op.results]
    if max(sizes, default=0) > most and not _is_constant_op(op):
        return None
    assert op.record.reference is not None
    call = call_of(op, is_exact=True)
    try:
        with np.errstate(all="ignore"):
            found = [np.asarray(a) for a in op.record.reference(call, inputs)]
    except UndecidedError:
        return None
    return [_as_numbers(a, v.type.dtype) for v, a in zip(op.results, found, strict=True)]


def _as_numbers(array: Array, dtype: DType) -> Array:
    """An object array of Python numbers as numbers; others stay."""
    if array.dtype != object or any(isinstance(item, DimExpr) for item in array.flat):
        return array
    if dtype.is_float:
        found = numbers(array)
        return array if found is None else found.astype(dtype.numpy)
    return array.astype(dtype.numpy)


def _is_storable(value: Value, known: dict[Value, Known], growth_bytes: int) -> bool:
    """Whether a known value should be a constant (or a `dim_values`) of the program."""
    found = known[value]
    if found.array.dtype == object:
        return (
            found.array.ndim == 1
            and value.type.dtype is DType.I64
            and _definer(value).name != DIM_VALUES.name
        )
    source_bytes = found.more_bytes + _bytes_of(found.sources, known)
    if found.array.nbytes <= source_bytes:
        return True
    limit = growth_bytes
    if _repeats(found.array):
        limit = REPEAT_BYTES
    elif _widens_half(_definer(value)):
        # what several ops read would be widened by a dispatch of its own
        limit = WIDENED_BYTES if len(value.users) == 1 else REPEAT_BYTES
    return found.array.nbytes <= limit


def _widens_half(op: Op) -> bool:
    """Whether the op widens elements, which loads do where the value is read."""
    source = op.operands[0] if op.record is CAST else None
    return source is not None and source.type.dtype.is_loaded_as(op.result.type.dtype)


def _repeats(array: Array) -> bool:
    """Whether along some axis all elements are the same bits."""
    words = array.view(f"u{array.dtype.itemsize}")

    def is_one(axis: int) -> bool:
        before = (slice(None),) * axis
        first, second = words[(*before, slice(1))], words[(*before, slice(1, 2))]
        # the second ones alone tell it of most arrays
        return bool((second == first).all() and (words == first).all())

    return any(extent > 1 and is_one(axis) for axis, extent in enumerate(array.shape))


def _store(rewriter: Rewriter, value: Value, array: Array) -> None:
    """Puts a constant in front of the op that computes `value`, for all its users."""
    definer = _definer(value)
    at = rewriter.at(definer)
    if array.dtype == object:
        attrs: dict[str, Attr] = {"dims": tuple(_dims_of(array))}
        made = at.insert(Op(DIM_VALUES, [], attrs, [value.type], (), definer.origin)).result
    else:
        made = insert_constant(at, ConstantData.given(array, value.type), definer.origin)
    rewriter.replace(value, made)


def _dims_of(array: Array) -> Iterator[int | DimExpr]:
    for item in array.flat:
        yield item if isinstance(item, DimExpr) else int(item)


FOLD_CONSTANTS = Pass("fold-constants", run, __doc__)
