"""tabulate: replaces elementwise functions from an 8-bit number to another by table lookups.

The activations of a quantised model are such chains: dequantise, sigmoid, quantise, and so on, up
to the next number of 8 bits. Their results are evaluated for all 256 numbers here, by the ops' own
definitions.

Requires: layouts are final; no region yet.
Ensures: a `quantize` whose result is a function of one value of 8 bits with the same dims and
    layout is a `table_lookup`, where that costs a CPU less than its ops.
Never: makes tables for a GPU, or of a chain that is as cheap.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.cost.recompute import POLYNOMIAL, operation_cost
from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType, Layout
from aot.ops.quantization import QUANTIZE
from aot.ops.tables import ENTRIES, TABLE_LOOKUP
from aot.passes.base import Pass, PassContext
from aot.passes.quantise.factors import constant
from aot.passes.simplify.dce import remove_dead
from aot.passes.simplify.rewriting import constant_of
from aot.target.model import Target

NAME = "tabulate"
# instructions that a lookup takes for each element: to take a lane out, to load, to put it back;
# and for a vector of f32 where instructions look up four of them at once
COST_OF_LOOKUP, COST_OF_VECTOR = 3, 3
_OPERATIONS = (expr.Unary, expr.Binary, expr.Fma, expr.Select, expr.Cast)
_BYTES = (DType.U8, DType.I8)


def run(module: Module, context: PassContext) -> None:
    target = context.target
    if target is None or target.has_workgroups:
        return
    for function in module.functions.values():
        made = tabulate(function, target)
        if made:
            remove_dead(function)
            context.count(NAME, "tables", made)


def tabulate(function: Function, target: Target) -> int:
    """Replaces chains of ops in a function by tables; returns how many."""
    chains = _Chains()
    made = 0
    for op in list(control_ops(function)):
        chains.add(op)
        if op.record is not QUANTIZE or op.result.type.dtype not in _BYTES:
            continue
        source = chains.source(op.result)
        if source is None or source is op.result:
            continue
        cone = chains.cone(op, source)
        if sum(map(_cost, cone)) <= _cost_of_lookup(target):
            continue
        table = _table(cone, source)
        if table is None:
            continue
        rewriter = Rewriter(function).at(op)
        operands: list[Value | None] = [source, constant(op, rewriter, table)]
        lookup = Op(TABLE_LOOKUP, operands, {}, [op.result.type], (), op.origin)
        fresh = rewriter.insert(lookup).result
        fresh.name = op.result.name
        chains.replace(op.result, fresh, source)
        rewriter.replace_op(op, [fresh])
        made += 1
    return made


@dataclass(frozen=True)
class _Known:
    """Marks a value as a known number in all elements."""


class _Chains:
    """Finds, for each value, the 8-bit value that it is an elementwise function of."""

    def __init__(self) -> None:
        self._sources: dict[Value, Value | _Known | None] = {}

    def source(self, value: Value) -> Value | None:
        """The 8-bit value that `value` is a function of, possibly itself; None if there is none."""
        found = self._find(value)
        return found if isinstance(found, Value) else None

    def _find(self, value: Value) -> Value | _Known | None:
        if value not in self._sources:
            is_number = value.type.element_count == 1 and constant_of(value) is not None
            self._sources[value] = _Known() if is_number else _itself(value)
        return self._sources[value]

    def add(self, op: Op) -> None:
        """Records the source of an op's result, from those of its operands."""
        if op.record is CONSTANT or len(op.results) != 1:
            return
        result = op.result
        found = {self._find(v) for v in op.operands if v is not None}
        found.discard(_Known())
        is_plain = op.record.kind is Kind.ELEMENTWISE and op.record.reference is not None
        (source,) = found if is_plain and len(found) == 1 else (None,)
        if isinstance(source, Value) and _lie_alike(source, result):
            self._sources[result] = source
        else:
            self._sources[result] = _itself(result)

    def replace(self, old: Value, new: Value, source: Value) -> None:
        del self._sources[old]
        self._sources[new] = source

    def cone(self, op: Op, source: Value) -> list[Op]:
        """The ops from `source` to `op`, operands before their users."""
        done: dict[Op, None] = {}

        def visit(op: Op) -> None:
            if op in done:
                return
            for value in op.operands:
                is_made = value is not None and value is not source and constant_of(value) is None
                if is_made:
                    assert value is not None and value.op is not None
                    visit(value.op)
            done[op] = None

        visit(op)
        return list(done)


def _itself(value: Value) -> Value | None:
    return value if value.type.dtype in _BYTES else None


def _cost_of_lookup(target: Target) -> int:
    """The cost of a table lookup, in vector instructions per f32 vector of elements."""
    return COST_OF_VECTOR if target.looks_up_bytes else COST_OF_LOOKUP * target.lanes(DType.F32)


def _lie_alike(a: Value, b: Value) -> bool:
    """Whether two values have the same dims and element order; gaps between elements
    are ignored.
    """
    layouts = (v.type.layout or Layout() for v in (a, b))
    first, second = (replace(layout, strides=()) for layout in layouts)
    return a.type.dims == b.type.dims and first == second


def _cost(op: Op) -> int:
    """The approximate number of vector instructions of an op."""
    if op.record is TABLE_LOOKUP:
        return POLYNOMIAL
    assert op.record.compute is not None
    return sum(
        operation_cost(node)
        for compute in op.record.compute(call_of(op))
        for node in expr.nodes(compute.value)
        if isinstance(node, _OPERATIONS) and node.dtype is not DType.INDEX
    )


def _table(cone: list[Op], source: Value) -> Array | None:
    """The results of the ops `cone` for each 8-bit number of the source; None where an op is not
    elementwise.
    """
    every = np.arange(ENTRIES, dtype=np.uint8).view(source.type.dtype.numpy)
    values: dict[Value, Array] = {source: every}
    for op in cone:
        inputs: list[Array | None] = []
        for value in op.operands:
            if value is None or value in values:
                inputs.append(None if value is None else values[value])
                continue
            data = constant_of(value)
            assert data is not None
            numbers = data.logical  # a table, or one number
            inputs.append(numbers.reshape(()) if numbers.size == 1 else numbers)
        assert op.record.reference is not None
        (result,) = op.record.reference(call_of(op, is_exact=True), inputs)
        made = np.asarray(result)
        if made.shape != (ENTRIES,):
            return None
        values[op.result] = made
    return values[cone[-1].result]


TABULATE = Pass(NAME, run, __doc__)
