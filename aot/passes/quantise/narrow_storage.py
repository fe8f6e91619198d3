"""narrow-storage: stores values that cross dispatches as f16, under `--storage fp16`.

`--arithmetic fp16` asks for the same.

Regions read and write f16 and compute in f32: nothing is rounded but at their borders, where finite
numbers beyond f16 become its largest.

Requires: regions are formed and joined; no pending shape change is left.
Ensures: with storage fp16, each f32 value that only regions make and read (through views and
    assemblies) is f16, and so are the f32 constants that they read, but for those listed below.
Never: changes inputs and results of a function, or what shares memory with them: a conversion of
    its own would cost more than it saves. Nor activations from which a region makes integers or
    booleans (positions, codes, masks: a rounding there is an error of 1), squares and what is
    squared to them (power spectra), and results that their kernel reads back. Nor constants that
    f16 can't hold: finite numbers beyond 65504; all too small to be normal in f16; whole numbers
    that it would change; and the smallest ones, up to 1/128 of the bytes, because biases and
    scalars weigh most and save least; of targets that multiply matrices of f16 no weights. Nor
    anything of a function that would save less than LEAST_SAVED bytes by all of it.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace

import numpy as np

from aot.analysis.control import control_blocks, control_ops
from aot.analysis.half import f16_range_issue, squares
from aot.analysis.memory.storage import root_of
from aot.analysis.memory.views import is_view
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.builtin import CONSTANT, PENDING, YIELD
from aot.ir.clone import clone_op
from aot.ir.graph import Block, ConstantData, Function, Module, Op, Value
from aot.ir.record import Kind, contraction_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import DType, TensorType
from aot.ops.elementwise import CAST
from aot.ops.selection import CONCAT_ALIAS
from aot.ops.structure import REGION
from aot.passes.base import Pass, PassContext
from aot.target.model import Target

NAME = "narrow-storage"
F32, F16 = DType.F32, DType.F16
# of the constants' bytes, this part may stay as it is for accuracy
SPARED = 128
# conversions in kernels take more than this
LEAST_SAVED = 2048
# what rodata aligns segments to: half of it takes no less
SLOT_BYTES = 64
KEYS = (
    "constants",
    "activations",
    "constant_bytes_saved",
    *(f"constants_{reason}" for reason in ("small", "too_large", "too_small", "whole")),
)


def run(module: Module, context: PassContext) -> None:
    if not context.options.stores_half:
        return
    for function in module.entry_points:
        choice = choose(function, _weights(function, context.target))
        if _bytes_saved(choice) < LEAST_SAVED:
            continue
        narrow(function, choice)
        for key, amount in choice.counts.items():
            context.count(NAME, key, amount)


@dataclass(frozen=True)
class Choice:
    """The values to be stored in f16.

    Attributes:
        values: the values to be stored in f16.
        counts: constants and other values chosen, constants that stay by reason, bytes saved.
    """

    values: dict[Value, None]
    counts: dict[str, int]


def _bytes_saved(choice: Choice) -> float:
    """The bytes that values take less in f16; infinite where an extent is not known."""
    sizes = [v.type.element_count for v in choice.values]
    return sum(2 * n if isinstance(n, int) else math.inf for n in sizes)


def _weights(function: Function, target: Target | None) -> set[Value]:
    """The constants that contractions multiply by, where a target multiplies matrices of f16."""
    gpu = None if target is None else target.gpu
    if gpu is None or not any(s.left is s.right is F16 for s in gpu.matrices):
        return set()
    found: set[Value] = set()
    for region in control_ops(function):
        if region.record is not REGION:
            continue
        outside = dict(zip(region.blocks[0].args, region.operands, strict=True))
        for op in region.blocks[0]:
            dims = contraction_of(op)
            weight = None if dims is None else op.operands[dims.right.operand]
            given = None if weight is None else outside.get(weight)
            if given is not None:
                found.add(root_of(given)[0])
    return found


def choose(function: Function, weights: Container[Value] = frozenset()) -> Choice:
    """Chooses the values outside regions that become f16, small `weights` included. Changes
    nothing."""
    groups = _Groups(function)
    for value in squares(function):
        groups.keep(value)
    constants = [v for v in groups.members if v.op is not None and v.op.record is CONSTANT]
    counts = dict.fromkeys(KEYS, 0)
    kept = _kept_constants([v for v in constants if groups.may_change(v)], counts, weights)
    for value in kept:
        groups.keep(value)
    chosen = {v: None for v in groups.members if groups.may_change(v)}
    saved = [v for v in constants if v in chosen]
    made = [v for v in chosen if v.op is not None and v.op.record is REGION]
    counts["constants"] = len(saved)
    counts["constant_bytes_saved"] = sum(_data(v).array.nbytes // 2 for v in saved)
    counts["activations"] = len(made)
    return Choice(chosen, counts)


class _Groups:
    """Groups of f32 values outside regions that share memory: all of a group become f16, or none.

    Attributes:
        members: every f32 value, in order.
    """

    def __init__(self, function: Function) -> None:
        arguments = [v for block in control_blocks(function) for v in block.args]
        self.members: list[Value] = [v for v in arguments if v.type.dtype is F32]
        self._leader: dict[Value, Value] = {}
        self._kept: set[Value] = set()
        for op in control_ops(function):
            self.members += [v for v in op.results if v.type.dtype is F32]
            for value in _memory_of(op):
                self._join(op.result, value)
            if op.record is REGION:
                self._join_results(op)
        for value in self.members:
            # what only later stages of its own region read is not worth a rounding
            is_read = bool(value.uses) and all(map(self._may_read, value.uses))
            if not is_read or not _is_made_by_region(value):
                self.keep(value)

    def keep(self, value: Value) -> None:
        """Marks the memory of `value` as staying f32."""
        self._kept.add(self._find(value))

    def may_change(self, value: Value) -> bool:
        return self._find(value) not in self._kept

    def _find(self, value: Value) -> Value:
        while (above := self._leader.get(value, value)) is not value:
            self._leader[value] = value = self._leader.get(above, above)
        return value

    def _join(self, a: Value, b: Value) -> None:
        a, b = self._find(a), self._find(b)
        if a is not b:
            self._leader[b] = a

    def _join_results(self, region: Op) -> None:
        """Joins results of a region that are the same value inside it."""
        first: dict[Value | None, Value] = {}
        for made, value in zip(region.blocks[0].terminator.operands, region.results, strict=True):
            if value.type.dtype is F32:
                self._join(first.setdefault(made, value), value)

    def _may_read(self, use: tuple[Op, int]) -> bool:
        """Whether a use accepts f16 in place of f32."""
        op, number = use
        value = op.operands[number]
        assert value is not None
        if op.record is not REGION:
            return value in _memory_of(op)
        root, _ = root_of(value)
        if root.op is not None and root.op.record is CONSTANT:
            return True
        return _makes_floats(op)


def _makes_floats(region: Op) -> bool:
    return all(v.type.dtype.is_float for v in region.results)


def _memory_of(op: Op) -> list[Value]:
    """The operands whose f32 memory the op's result shares; empty if there are none."""
    operands: list[Value | None] = []
    if op.record is CONCAT_ALIAS:
        operands = op.operands
    elif op.results and is_view(op) and not op.record.writes:
        operands = [op.operands[op.record.view_of or 0]]
    found = [v for v in operands if v is not None]
    return found if all(v.type.dtype is F32 for v in (*op.results, *found)) else []


def _is_made_by_region(value: Value) -> bool:
    """Whether the producer of `value` can make it in f16, or `value` shares memory that others
    make."""
    op = value.op
    if op is None:
        return False
    if op.record is not REGION:
        return op.record is CONSTANT or bool(_memory_of(op))
    made = op.blocks[0].terminator.operands[value.index]
    assert made is not None
    if made.uses.keys() - {(op.blocks[0].terminator, value.index)} and not _makes_floats(op):
        return False  # a later stage of the region reads it, perhaps to make integers
    return made.op is None or not reads_back(made.op)


def reads_back(op: Op) -> bool:
    """Whether the op's kernel reads results it has stored, which therefore must not be rounded."""
    return op.record.kind in (Kind.SCATTER, Kind.SORT)


def _data(value: Value) -> ConstantData:
    assert value.op is not None
    data = value.op.attrs["value"]
    assert isinstance(data, ConstantData)
    return data


def _kept_constants(
    constants: list[Value], counts: dict[str, int], weights: Container[Value]
) -> list[Value]:
    """The constants that stay f32, except `weights` that fit f16; counts them by reason."""
    arrays = {v: _data(v).array for v in constants}
    reasons = {v: f16_range_issue(array) for v, array in arrays.items()}
    spare = sum(a.nbytes for a in arrays.values()) // SPARED
    spare -= sum(arrays[v].nbytes for v, reason in reasons.items() if reason)
    for value in sorted(constants, key=lambda v: arrays[v].nbytes):
        is_small = arrays[value].nbytes <= max(SLOT_BYTES, spare)
        if not reasons[value] and is_small and value not in weights:
            reasons[value] = "small"
            spare -= arrays[value].nbytes
    kept = [v for v in constants if reasons[v]]
    for value in kept:
        counts[f"constants_{reasons[value]}"] += 1
    return kept


def narrow(function: Function, choice: Choice) -> None:
    """Converts the values of `choice` to f16, in one sweep.

    Who reads such a value sees it through a pending change of its dtype at first. A view or an
    assembly runs on f16 and the change moves behind it; a region takes the f16 value and folds the
    change into its block. What is chosen has no other readers, so that nothing is left pending.
    """
    chosen = choice.values
    pending: dict[Value, None] = {}
    for op in list(control_ops(function)):
        rewriter = Rewriter(function).at(op)
        if op.record is REGION:
            fresh = _narrowed_region(op, chosen, rewriter)
        elif op.results and op.results[0] in chosen:
            fresh = [_narrowed(op, rewriter)]
        else:
            continue
        for old, value in zip(op.results, fresh, strict=True):
            if value is not old:
                seen = rewriter.replace_lazily(old, value)
                if seen is not value:
                    pending[seen] = None
        if fresh != op.results:
            rewriter.erase(op)
    for value in pending:
        if value.op is None or value.uses:
            raise InternalError(f"{NAME}: {value!r} is still read as f32")
        Rewriter(function).erase(value.op)


def _seen(value: Value | None) -> Value | None:
    """The f16 source of a pending conversion to f32; else `value` itself."""
    op = None if value is None else value.op
    if op is None or op.record is not PENDING:
        return value
    source = op.operands[0]
    assert source is not None
    return source


def _half(type: TensorType) -> TensorType:
    return replace(type, dtype=F16)


def _narrowed(op: Op, rewriter: Rewriter) -> Value:
    """A constant, view or concatenation recreated in f16."""
    if op.record is CONSTANT:
        data = _data(op.result)
        with np.errstate(all="ignore"):  # what is below f16 becomes 0
            array = data.array.astype(np.float16)
        return insert_constant(rewriter, ConstantData(array, _half(data.type)), op.origin)
    operands = [_seen(v) for v in op.operands]
    made = Op(op.record, operands, op.attrs, [_half(op.result.type)], (), op.origin)
    return rewriter.insert(made).result


def _narrowed_region(op: Op, chosen: dict[Value, None], rewriter: Rewriter) -> list[Value]:
    """The results of a region rebuilt for its operands' new dtypes; the old results if neither
    operands nor results are f16."""
    operands = [_seen(v) for v in op.operands]
    is_half = [v in chosen for v in op.results]
    if operands == op.operands and not any(is_half):
        return op.results
    inputs = [v for v in operands if v is not None]
    block = Block([v.type for v in inputs])
    body = _Body(rewriter.function, op.blocks[0], block)
    yielded = body.build(is_half)
    made = Op(REGION, inputs, op.attrs, [v.type for v in yielded], [block], op.origin)
    return rewriter.insert(made).results


class _Body:
    """Rebuilds a region's block whose f32 arguments and yielded values may become f16.

    Ops that only move elements run on f16; casts stand in front of the first op that computes.
    What is yielded as f16 is read as such by later stages of the block, too.
    """

    def __init__(self, function: Function, old: Block, fresh: Block) -> None:
        self.old = old
        self.into = Rewriter(function, fresh)
        self.values: dict[Value, Value] = {}
        self.halves: dict[Value, Value] = {}
        for before, arg in zip(old.args, fresh.args, strict=True):
            is_half = arg.type.dtype is not before.type.dtype
            (self.halves if is_half else self.values)[before] = arg

    def build(self, is_half: list[bool]) -> list[Value]:
        """Fills the block and returns the values it yields, in f16 where `is_half` says so."""
        end = self.old.terminator
        rounded = {v for v, half in zip(end.operands, is_half, strict=True) if half}
        for op in self.old:
            if op is end:
                break
            if self._only_moves(op):
                self._move(op)
            else:
                for value in op.operands:
                    if value is not None:
                        self._wide(value)
                clone_op(op, self.values, self.into)
            for value in op.results:
                if value in rounded and value not in self.halves:
                    self.halves[value] = self._cast(self.values.pop(value), F16, clamps=True)
        results: list[Value] = []
        for value in end.operands:
            assert value is not None
            results.append(self.halves[value] if value in rounded else self._wide(value))
        self.into.insert(Op(YIELD, results, {}, []))
        return results

    def _only_moves(self, op: Op) -> bool:
        """Whether the op only moves elements of f16 operands."""
        operands = [v for v in op.operands if v is not None and v.type.dtype is F32]
        return (
            op.record.kind in (Kind.MOVEMENT, Kind.VIEW)
            and bool(operands)
            and all(v in self.halves for v in operands)
            and all(v.type.dtype is F32 for v in op.results)
            and all(F16 in o.dtypes for o in op.record.operands if F32 in o.dtypes)
            and all(map(is_kept, op.attrs.values()))
        )

    def _move(self, op: Op) -> None:
        operands = [v if v is None else self.halves.get(v) or self.values[v] for v in op.operands]
        types = [_half(v.type) for v in op.results]
        made = self.into.insert(Op(op.record, operands, op.attrs, types, (), op.origin))
        self.halves.update(zip(op.results, made.results, strict=True))

    def _wide(self, value: Value) -> Value:
        """`value` in its original dtype."""
        if value not in self.values:
            self.values[value] = self._cast(self.halves[value], F32, clamps=False)
        return self.values[value]

    def _cast(self, value: Value, to: DType, *, clamps: bool) -> Value:
        type = replace(value.type, dtype=to)
        made = Op(CAST, [value], {"to": to, "clamps": clamps}, [type])
        return self.into.insert(made).result


def is_kept(attr: object) -> bool:
    """Whether an attribute keeps its meaning for the op in f16."""
    if isinstance(attr, DType):
        return False
    return not isinstance(attr, float) or float(np.float16(attr)) == attr


NARROW_STORAGE = Pass(NAME, run, __doc__)
