"""fold-constants: evaluates ops whose operands are known at compile time.

Requires: nothing.
Ensures: no op is left whose results are known from constants, types and attributes, but those that
    cost less to keep (below). Tensors of no elements are known, whatever they are computed from, so
    that no later pass and no kernel meets a product or a sum over nothing whose extents are known.
    Shape arithmetic whose elements are dims is one `dim_values`.
    Assumptions that are true are removed.
Never: uses BLAS or a CPU-dependent order of summation: the bytes are the same on every machine.
    Stores a constant that only repeats (a fill, a broadcast) or that outgrows its sources beyond
    what the level of optimising allows, unless something that is stored is computed from it.
    Evaluates `dequantize`: quantised weights are for `quantise-contractions` to take.
    Evaluates more than the function's constants account for (`Budget`), whatever a small file asks
    for: what is beyond stays for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from aot.analysis.alias.database import AliasDb
from aot.analysis.stages import work_of
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir.bounds import bounds_of
from aot.ir.builtin import CONSTANT
from aot.ir.dim_ratios import numbers
from aot.ir.dim_semantics import UndecidedError, assuming
from aot.ir.dims import DimExpr
from aot.ir.graph import Attr, ConstantData, Function, Module, Op, Value
from aot.ir.limits import enforced, limit_of
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType, TensorType
from aot.ops.elementwise import CAST
from aot.ops.quantization import DEQUANTIZE
from aot.ops.shape import DIM_VALUES, FILL
from aot.passes.base import Pass, PassContext
from aot.passes.bind import settle_assumptions

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
# Results and terms that are evaluated, whatever constants there are, and for each byte of these; a
# product of two constant matrices of 8192 x 8192 is within.
FREE_WORK = 1 << 28
WORK_OF_BYTE = 1 << 10
# How often constants may be moved, whatever the user's limit.
MOVED_TIMES = 4
# Arithmetic on shapes is folded whatever was evaluated before.
ALWAYS_BYTES = 4 << 10


class Budget:
    """The bytes and work that folding one function may still spend.

    Args:
        constant_bytes: of the function's constants.
        given_mib: the user's limit of memory; 0 for the default.

    Attributes:
        most_bytes, bytes: of results, which are kept until the function is folded: all, and those
            that are left.
        work: elements of results and terms of reductions that are left.
    """

    def __init__(self, constant_bytes: int, given_mib: int = 0) -> None:
        most = max(limit_of(constant_bytes, given_mib), MOVED_TIMES * constant_bytes)
        self.bytes = self.most_bytes = most
        self.work = FREE_WORK + WORK_OF_BYTE * max(constant_bytes, given_mib << 20)

    @property
    def process_bytes(self) -> int:
        """A bound on the memory that folding may take: results twice, and the temporaries of the
        largest op.
        """
        return 2 * self.most_bytes + 4 * LIMIT_BYTES

    def takes(self, op: Op, result_bytes: int) -> bool:
        """Whether an op's results fit the budget; counts them if so."""
        given = [v.type for v in op.operands if v is not None and v.type.is_static]
        read_bytes = sum(t.dtype.storage_bytes(math.prod(t.shape)) for t in given)
        if result_bytes + read_bytes <= ALWAYS_BYTES:
            return True
        work = work_of(op)
        if result_bytes > self.bytes or work > self.work:
            return False
        self.bytes -= result_bytes
        self.work -= work
        return True


def run(module: Module, context: PassContext) -> None:
    growth_bytes = GROWTH_BYTES[context.options.optimize]
    for function in module.functions.values():
        # what a target computes of extents in 64 bits by pieces stays so
        lists = context.target is None or context.target.computes(DType.I64)
        folded = fold(function, growth_bytes, context.options.limit_memory, lists_dims=lists)
        context.count("fold-constants", "folded", folded)
        settle_assumptions(function)


@dataclass(frozen=True)
class Known:
    """A value's known elements (an object array where some are symbolic dims), and the constants
    they come from.

    Attributes:
        sources: constants that it was computed from.
        more_bytes: bytes of the others, once there are more than MAX_SOURCES; those of two values
            count once, as far as can be seen.
    """

    array: Array
    sources: frozenset[Value] = frozenset()
    more_bytes: int = 0


def fold(
    function: Function, growth_bytes: int, limit_mib: int = 0, *, lists_dims: bool = True
) -> int:
    """Folds the ops of a function; returns how many ops were removed.

    Args:
        growth_bytes: of a result that may be stored though its sources are smaller.
        limit_mib: the user's limit of memory; 0 for the default.
        lists_dims: whether shape arithmetic becomes a `dim_values`.
    """
    known = {v: _nothing(v) for v in function.inputs if _is_empty(v)}
    order = list(function.walk())
    budget = Budget(sum(_stored_bytes(op) for op in order if _is_constant_op(op)), limit_mib)
    db = AliasDb.where_written(function)
    with assuming(bounds_of(function.assumptions)), enforced(budget.process_bytes):
        for op in order:
            if db is None or db.is_repeatable(op):
                _evaluate(op, known, budget)
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
            if value is None or value.op is None or value not in known or _is_constant(value):
                continue
            is_listed = known[value].array.dtype == object
            if (lists_dims or not is_listed) and _is_storable(value, known, growth_bytes):
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


def _stored_bytes(op: Op) -> int:
    """The bytes of a constant op's data."""
    data = op.attrs["value"]
    assert isinstance(data, ConstantData)
    return data.array.nbytes


def _is_constant(value: Value) -> bool:
    return value.op is not None and _is_constant_op(value.op)


def _definer(value: Value) -> Op:
    assert value.op is not None  # a block's arguments are never known
    return value.op


def _is_empty(value: Value | None) -> bool:
    """Whether a value is known to have no elements."""
    return value is not None and value.type.is_static and 0 in value.type.shape


def _nothing(value: Value) -> Known:
    return Known(np.zeros(value.type.shape, value.type.dtype.numpy))


def _evaluate(op: Op, known: dict[Value, Known], budget: Budget) -> None:
    """Adds the results of `op` to `known`, if they can be computed from known operands."""
    record = op.record
    if (
        record.results_from != "rule"
        or record.has_side_effects
        or record.writes
        or record.is_terminator
        or op.blocks
    ):
        return
    if not _is_constant_op(op) and op.results and all(map(_is_empty, op.results)):
        known.update((v, _nothing(v)) for v in op.results)
        return
    if record.reference is None or record is DEQUANTIZE:
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
    results = _results(op, inputs, budget)
    for value, array in zip(op.results, results or (), strict=False):
        is_source = _is_constant_op(op)
        known[value] = Known(array, frozenset([value]) if is_source else sources, more_bytes)


def _bytes_of(sources: Iterable[Value], known: Mapping[Value, Known]) -> int:
    return sum(known[source].array.nbytes for source in sources)


def _results(op: Op, inputs: Sequence[Array | None], budget: Budget) -> list[Array] | None:
    """An op's results by its reference implementation; None if they can't be computed or are too
    large."""
    if not all(v.type.is_static for v in op.results):
        return None
    most = LIMIT_BYTES
    if op.record.kind in (Kind.MOVEMENT, Kind.VIEW):
        most = max([most, *(array.nbytes for array in inputs if array is not None)])
    sizes = [v.type.dtype.storage_bytes(math.prod(v.type.shape)) for v in op.results]
    is_constant = _is_constant_op(op)
    if not is_constant and (max(sizes, default=0) > most or not budget.takes(op, sum(sizes))):
        return None
    assert op.record.reference is not None
    call = call_of(op, is_exact=True)
    try:
        with np.errstate(all="ignore"):
            found = [np.asarray(a) for a in op.record.reference(call, inputs)]
    except UndecidedError:
        return None
    except MemoryError:
        raise CompileError(
            f"{op.origin or op.name}: computing it while compiling takes more than "
            f"{budget.process_bytes >> 20} MiB of memory; --limit-memory MIB (limit_memory) allows "
            "more"
        ) from None
    return [_as_numbers(a, v.type.dtype) for v, a in zip(op.results, found, strict=True)]


def _as_numbers(array: Array, dtype: DType) -> Array:
    """Converts an object array of Python numbers to a numeric array; returns others unchanged."""
    if array.dtype != object or any(isinstance(item, DimExpr) for item in array.flat):
        return array
    if dtype.is_float:
        found = numbers(array)
        return array if found is None else found.astype(dtype.numpy)
    return array.astype(dtype.numpy)


def _is_storable(value: Value, known: dict[Value, Known], growth_bytes: int) -> bool:
    """Whether a known value should be stored as a constant (or a `dim_values`) in the program."""
    found = known[value]
    if found.array.dtype == object:
        return (
            found.array.ndim == 1
            and value.type.dtype is DType.I64
            and _definer(value).name != DIM_VALUES.name
        )
    source_bytes = found.more_bytes + _bytes_of(found.sources, known)
    if found.array.nbytes <= source_bytes or _is_of_nothing(value, found.array):
        return True
    limit = growth_bytes
    if _repeats(found.array):
        limit = REPEAT_BYTES
    elif _widens_half(_definer(value)):
        # what several ops read would be widened by a dispatch of its own
        limit = WIDENED_BYTES if len(value.users) == 1 else REPEAT_BYTES
    return found.array.nbytes <= limit


def _is_of_nothing(value: Value, array: Array) -> bool:
    """Whether the op reduces a tensor without elements, so that all results are the same number."""
    definer = _definer(value)
    is_one = array.size > 0 and bool((array == array.flat[0]).all())
    return is_one and any(map(_is_empty, definer.operands))


def _widens_half(op: Op) -> bool:
    """Whether the op only widens elements: loads do that for free where the value is read."""
    source = op.operands[0] if op.record is CAST else None
    return source is not None and source.type.dtype.is_loaded_as(op.result.type.dtype)


def _repeats(array: Array) -> bool:
    """Whether all elements along some axis are bitwise equal."""
    words = array.view(f"u{array.dtype.itemsize}")

    def is_one(axis: int) -> bool:
        before = (slice(None),) * axis
        first, second = words[(*before, slice(1))], words[(*before, slice(1, 2))]
        # the second ones alone tell it of most arrays
        return bool((second == first).all() and (words == first).all())

    return any(extent > 1 and is_one(axis) for axis, extent in enumerate(array.shape))


def _store(rewriter: Rewriter, value: Value, array: Array) -> None:
    """Inserts a constant before the op that computes `value`, and replaces its uses."""
    definer = _definer(value)
    attrs: dict[str, Attr]
    at = rewriter.at(definer)
    if array.dtype != object and array.nbytes > REPEAT_BYTES and _is_of_nothing(value, array):
        number = ConstantData.given(array.reshape(-1)[0], TensorType(value.type.dtype, ()))
        attrs = {"shape": value.type.shape, "value": number}
        made = at.insert(Op(FILL, [], attrs, [value.type], (), definer.origin)).result
    elif array.dtype == object:
        attrs = {"dims": tuple(_dims_of(array))}
        made = at.insert(Op(DIM_VALUES, [], attrs, [value.type], (), definer.origin)).result
    else:
        made = insert_constant(at, ConstantData.given(array, value.type), definer.origin)
    rewriter.replace(value, made)


def _dims_of(array: Array) -> Iterator[int | DimExpr]:
    for item in array.flat:
        yield item if isinstance(item, DimExpr) else int(item)


FOLD_CONSTANTS = Pass("fold-constants", run, __doc__)
