"""legalise-dtypes: rewrites the program to element types that the target can compute in.

Every target loads, stores and casts all dtypes, but f64 only where it computes in it; what it does
arithmetic in is its `dtypes`.

Requires: no regions and no executables yet.
Ensures: no op but casts, movements, views, constants and shapes has an operand or a result of a
    dtype that the target does not compute.
    Where the wide ones (i64, u64, f64) lack, a value inside a function is i32, u32 or f32, with
    casts behind the inputs and before the results, which keep their types, and where memory that is
    written in place or kept between calls is read. Integers that 32 bits may not hold stay wide
    (`aot.analysis.integer_ranges`), in loops, branches and memory as well: elements of them are
    pairs of words, sums of them sums of their bytes, numbers that extents decide are computed
    of these, and anything else is refused by name. A
    constant that does not fit is an error unless its reader clamps anyway. A finite f64 constant
    beyond f32 becomes the largest f32.
    Where a Vulkan target has a host that computes them, f64 stays f64, and what is computed from an
    integer constant that does not fit stays as wide, up to where it becomes another dtype: the host
    runs it (`aot.analysis.cpu_fallback`).
    Where the narrow ones (f16, i8, i16, u8, u16) lack, each op that computes in one casts its
    operands to f32, i32 or u32 and its results back. Integers wrap as they did. A float that
    another such op computes with is not rounded in between: f16 is where it is stored, moved or
    cast by the model, and where a discontinuity is near (`aot.analysis.discontinuities`), which
    must see the model's own bits. A contraction of integers that sums in i32 reads them as they
    are: loads widen.
Never: changes the types of a function's inputs and results, of state variables, of a loop's trip
    count, or bool, which is a byte in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

import numpy as np

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import control_blocks, control_ops
from aot.analysis.discontinuities import Discontinuities
from aot.analysis.integer_ranges import WideOps, clamps, handed_on
from aot.base.records import dataclass
from aot.errors import InternalError, UnsupportedError
from aot.ir import expr
from aot.ir.builtin import CONSTANT, EXTENT
from aot.ir.graph import Attr, Block, ConstantData, Function, Module, Op, Value
from aot.ir.record import Kind, call_of, contraction_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType
from aot.ops.elementwise import CAST, MAXIMUM, MINIMUM
from aot.ops.shape import DIM_VALUES
from aot.ops.tables import TABLE_LOOKUP
from aot.passes.base import Pass, PassContext
from aot.passes.quantise.wide_integers import as_dtype, cast_to, split_dims, split_sums
from aot.target.model import Target

DTypes = Mapping[DType, DType]

NARROWER: DTypes = {d: d.narrows_to for d in DType if d.narrows_to is not None}
WIDER: DTypes = {d: d.widens_to for d in DType if d.widens_to is not None}
_FREE_KINDS = frozenset({Kind.STRUCTURE, Kind.VIEW, Kind.MOVEMENT, Kind.SHAPE})


def run(module: Module, context: PassContext) -> None:
    target = context.target
    if target is None:
        return
    host = context.host if target.has_cpu_fallback else None
    hosted = {d for d in NARROWER if host is not None and host.computes(d)}
    narrow = {d: n for d, n in NARROWER.items() if not target.computes(d)}
    if DType.F64 in hosted:
        narrow.pop(DType.F64, None)
    widen = {d: w for d, w in WIDER.items() if not target.computes(d)}
    for function in module.functions.values():
        if any(_is_dispatched(op) for op in function.walk()):
            raise InternalError("legalise-dtypes runs before dispatch regions are formed")
        if narrow:
            stays = stays_wide(function, narrow, hosted) if hosted else Stays()
            integers = [d for d in narrow if d.is_integer]
            if integers:
                found = WideOps(function, integers, _memory(function))
                is_split = split_dims(function, found)
                if not hosted and target.has_cpu_fallback:
                    is_split |= split_sums(function, found)
                if is_split:
                    found = WideOps(function, integers, _memory(function))
                _refuse_wide_ops(function, found, hosted, target)
                stays.ops |= found.ops
                stays.borders |= found.borders
                stays.extents = _wide_extents(function, found)
                stays.limits = found.is_clamped
            _Narrowing(function, narrow, target, stays).run()
        if widen:
            _widen(function, widen)
        _refuse_wide_functions(function)
        if not target.computes(DType.F64) and DType.F64 not in hosted:
            _refuse_wide_interface(function, target)


def _is_dispatched(op: Op) -> bool:
    return op.record.is_isolated or op.record.results_from == "callee"


def _refuse_wide_interface(function: Function, target: Target) -> None:
    """Refuses f64 inputs and outputs on a target without f64 arithmetic, as it cannot load, store
    or cast them.

    Raises:
        UnsupportedError: lists the inputs and results that are f64.
    """
    named = [
        *((f"input {v.name!r}", v) for v in function.inputs if v.uses),
        *(
            (f"output {name!r}", v)
            for name, v in zip(function.result_names, function.results, strict=True)
        ),
        *(
            (f"state variable {op.attrs['variable']!r}", op.result)
            for op in control_ops(function)
            if op.record.is_state
        ),
    ]
    problems = [f"{what} is {value.type}" for what, value in named if value.type.dtype is DType.F64]
    problems = list(dict.fromkeys(problems))
    if problems:
        raise UnsupportedError(
            f"target {target.name} has no f64; export the model in float32{or_host(target)}:",
            problems,
        )


def _refuse_wide_functions(function: Function) -> None:
    """Refuses f64 transcendental functions that have no formula yet.

    Raises:
        UnsupportedError: lists every node that needs one.
    """
    problems = [
        f"{op.name} of f64 (node {op.origin!r})"
        for op in function.walk()
        if any(t is not None and t.dtype is DType.F64 for t in op.operand_types)
        and _is_transcendental(op)
    ]
    if problems:
        raise UnsupportedError(
            "these need functions that there are in 32 bits only; export the model in float32:",
            problems,
        )


def _is_transcendental(op: Op) -> bool:
    if op.record.compute is None:
        return op.record.kind is Kind.RECURRENCE
    return any(
        isinstance(node, (expr.Unary, expr.Binary))
        and node.op in expr.TRANSCENDENTAL_OPS - expr.WIDE_TRANSCENDENTAL_OPS
        for compute in op.record.compute(call_of(op))
        for node in expr.nodes(compute.value)
    )


def or_host(target: Target) -> str:
    """An addition to an error's advice, if a CPU target could run the op; else ""."""
    suggested = ", or add a --target for the CPU, to run what is not for a GPU"
    return suggested if target.has_cpu_fallback else ""


def computes(op: Op) -> bool:
    """Whether `op` does arithmetic in its operands' or results' dtypes."""
    return op.record.kind not in _FREE_KINDS and op.record not in (CAST, TABLE_LOOKUP)


@dataclass
class Stays:
    """The ops and values of a function that keep their wide dtypes.

    Attributes:
        ops: they keep their dtypes.
        borders: arguments and results of control flow that keep theirs.
        extents: counts that become dims, and are read with all their bits.
        limits: whether an operand of an op that is made narrow means, beyond what that dtype
            holds, what its largest number means.
    """

    ops: set[Op] = field(default_factory=set)
    borders: set[Value] = field(default_factory=set)
    extents: set[Value] = field(default_factory=set)
    limits: Callable[[Op, int], bool] = lambda op, number: False


# What a GPU that lacks 64-bit integers computes in pairs of words all the same; a CPU that lacks
# them has carries, and computes all.
_IN_PAIRS = frozenset({Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.VIEW, Kind.STRUCTURE})


def _wide_extents(function: Function, found: WideOps) -> set[Value]:
    """Values used as extents that may not fit 32 bits. They stay wide, so that the runtime can
    refuse an invalid extent."""
    counts = (op.operands[0] for op in control_ops(function) if op.record is EXTENT)
    return {value for value in counts if value is not None and not found.fits(value)}


def _refuse_wide_ops(
    function: Function, wide: WideOps, hosted: Collection[DType], target: Target
) -> None:
    """Refuses 64-bit integer ops that 32 bits would change and that neither the target nor a host
    computes.

    Raises:
        UnsupportedError: lists them.
    """
    problems = [
        f"{op.name}" + (f" (node {op.origin!r})" if op.origin else "")
        for op in control_ops(function)
        if op in wide.ops
        and op.record.kind not in _IN_PAIRS
        # a host computes the others
        and (not hosted or op.record is DIM_VALUES)
    ]
    if problems and target.has_cpu_fallback:
        raise UnsupportedError(
            f"target {target.name} has integers of 32 bits, and operands or results of these may "
            f"not fit; cast them to int32 in the model{or_host(target)}:",
            problems,
        )


def stays_wide(function: Function, dtypes: DTypes, hosted: Collection[DType]) -> Stays:
    """Values that depend on integer constants beyond 32 bits, up to a change of dtype, if a host
    can compute in the wide dtype."""
    found = Stays()
    waiting = [
        op.result
        for op in control_ops(function)
        if isinstance(data := op.attrs.get("value"), ConstantData)
        and data.type.dtype in hosted
        and data.type.dtype in dtypes
        and not all(clamps(user, number) for user, number in op.result.uses)
        and not _fits(data, dtypes[data.type.dtype])
    ]
    found.ops.update(v.op for v in waiting if v.op is not None)

    def take(value: Value) -> None:
        if value.type.dtype in hosted and value.type.dtype in dtypes:
            waiting.append(value)

    while waiting:
        for op, number in waiting.pop().uses:
            through = handed_on(op, number)
            if through is not None:
                for value in through:
                    if value not in found.borders:
                        found.borders.add(value)
                        take(value)
            elif not (op.record.is_terminator or op.blocks or op.record.writes) and (
                op not in found.ops
            ):
                found.ops.add(op)
                for value in op.results:
                    take(value)
    return found


def _fits(data: ConstantData, narrow: DType) -> bool:
    if narrow.is_float:
        return True
    info = np.iinfo(narrow.numpy)
    return bool(((data.array >= info.min) & (data.array <= info.max)).all())


class _Narrowing:
    """Rebuilds a function in narrower dtypes next to the original, then removes the original.

    Attributes:
        values: what is read in place of an old value.
        kept: old values that keep their dtypes, because they are memory that is written in place or
            lives on, and what is that memory now. Whoever reads one casts it then and there.
        retyped: dtypes that values at the borders of blocks had.
    """

    def __init__(self, function: Function, dtypes: DTypes, target: Target, stays: Stays) -> None:
        self.function = function
        self.dtypes = dtypes
        self.target = target
        self.stays = stays
        self.values: dict[Value, Value] = {}
        memory = [*_memory(function), *stays.borders]
        self.kept = {v: v for v in memory if v.type.dtype in dtypes}
        self.retyped: dict[Value, DType] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        function = self.function
        order = list(control_ops(function))
        self.block(function.block, [])
        if self.problems:
            raise UnsupportedError(
                f"target {self.target.name} computes in "
                f"{', '.join(map(str, self.dtypes.values()))} only, and these "
                f"constants do not fit{or_host(self.target)}:",
                self.problems,
            )
        for op in reversed(order):
            if op.results and all(self.now(v) is not v for v in op.results):
                Rewriter(function).erase(op)

    def now(self, value: Value) -> Value:
        """The replacement of an old value."""
        return self.values.get(value, self.kept.get(value, value))

    def visit(self, op: Op) -> None:
        if op.record.is_terminator:
            self.end(op)
        elif op.blocks:
            self.control(op)
        elif op.record is EXTENT and op.operands[0] is not None:
            rewriter, count = Rewriter(self.function).at(op), op.operands[0]
            is_wide = count in self.stays.extents
            found = (self.wide if is_wide else self.narrow)(count, rewriter, op.origin)
            rewriter.rewire(op, 0, found)
        elif op in self.stays.ops and op.record is CAST and self.mixes_widths(op):
            self.cast_wide(op)
        elif op in self.stays.ops or op.record.is_state or op.record.writes or self.views_kept(op):
            self.leave(op)
        elif self.is_touched(op):
            self.rebuild(op)

    def mixes_widths(self, op: Op) -> bool:
        """Whether a cast converts between integers that stay wide and floats that do not."""
        types = (*op.operand_types, op.result.type)
        return any(t is not None and t.dtype.is_float and t.dtype in self.dtypes for t in types)

    def cast_wide(self, op: Op) -> None:
        rewriter, (value,), to = Rewriter(self.function).at(op), op.operands, op.result.type.dtype
        assert value is not None
        read = self.narrow if value.type.dtype.is_float else self.wide
        found = read(value, rewriter, op.origin)
        made = cast_to(rewriter, found, self.dtypes[to] if to.is_float else to, op.origin)
        made.name = op.result.name
        (self.values if to.is_float else self.kept)[op.result] = made

    def views_kept(self, op: Op) -> bool:
        """Whether the op is a view of memory that keeps its dtype."""
        shown = op.record.view_of
        return shown is not None and op.operands[shown] in self.kept

    def is_touched(self, op: Op) -> bool:
        users = [user for value in op.results for user in value.users]
        if not op.operands and all(user is self.function.block.last for user in users):
            return False  # known, and computed with nowhere
        return any(v in self.values or v in self.kept for v in op.operands if v is not None) or any(
            v.type.dtype in self.dtypes for v in op.results
        )

    def block(self, block: Block, narrowed: Sequence[int]) -> None:
        """Narrows the ops of a block. Arguments in `narrowed` are narrow already, others are
        cast."""
        order = list(block)
        start = Rewriter(self.function, block, block.first)
        for number, value in enumerate(block.args):
            dtype = self.dtypes.get(value.type.dtype)
            if number in narrowed:
                self.retype(value)
            elif dtype is not None and value.uses and value not in self.kept:
                self.values[value] = cast_to(start, value, dtype, "")
        for op in order:
            self.visit(op)

    def leave(self, op: Op) -> None:
        """Gives an op its operands in their old dtypes."""
        rewriter = Rewriter(self.function).at(op)
        for number, value in enumerate(op.operands):
            if value is not None:
                rewriter.rewire(op, number, self.wide(value, rewriter, op.origin))
        for value in op.results:
            if value.type.dtype in self.dtypes:
                self.kept.setdefault(value, value)

    def control(self, op: Op) -> None:
        """Narrows an op's blocks and the values passed through them."""
        body, rewriter = op.record.body, Rewriter(self.function).at(op)
        assert body is not None
        for number, value in enumerate(op.operands):
            if value is not None:
                is_narrow = self.is_handed_narrow(op, number - body.first)
                found = (self.narrow if is_narrow else self.wide)(value, rewriter, op.origin)
                rewriter.rewire(op, number, found)
        for block in op.blocks:
            numbers = range(len(block.args))
            first = len(body.given)
            self.block(block, [n for n in numbers if self.is_handed_narrow(op, n - first)])
        for value in [v for v in op.results if self.is_handed_narrow(op, v.index)]:
            self.retype(value)

    def is_handed_narrow(self, op: Op, number: int) -> bool:
        """Whether value `number` of those passed through an op's blocks becomes narrow."""
        body = op.record.body
        assert body is not None
        if not 0 <= number < len(op.results):
            return False
        at, result = number + len(body.given), op.results[number]
        arguments = [v for block in op.blocks for v in block.args[at : at + 1]]
        dtype = self.retyped.get(result, result.type.dtype)
        return dtype in self.dtypes and not any(v in self.kept for v in (result, *arguments))

    def retype(self, value: Value) -> None:
        """Makes a block argument or result narrow, and rebuilds its users."""
        old = value.type
        self.retyped[value] = old.dtype
        self.values[value] = value
        Rewriter(self.function).set_type(value, old.with_dtype(self.dtypes[old.dtype]))

    def rebuild(self, op: Op) -> None:
        """Recreates `op` with narrow operands and results."""
        rewriter = Rewriter(self.function).at(op)
        attrs = {name: self.attr(value, op) for name, value in op.attrs.items()}
        operands = [self.operand(op, number, rewriter) for number in range(len(op.operands))]
        made = rewriter.create(op.record, operands, attrs, op.origin)
        for old, fresh in zip(op.results, made.results, strict=True):
            fresh.name = old.name
            # ops such as shape_of have one dtype whatever their operands
            dtype = self.dtypes.get(fresh.type.dtype, fresh.type.dtype)
            if old in self.kept:
                self.kept[old] = as_dtype(rewriter, fresh, old.type.dtype, op.origin)
            else:
                self.values[old] = as_dtype(rewriter, fresh, dtype, op.origin)

    def operand(self, op: Op, number: int, rewriter: Rewriter) -> Value | None:
        value = op.operands[number]
        if value is None or not (value in self.values or value in self.kept):
            return value
        if self.stays.limits(op, number):
            fresh = self.limited(value, rewriter, op.origin)
        else:
            fresh = self.narrow(value, rewriter, op.origin)
        spec = op.record.operands[min(number, len(op.record.operands) - 1)]
        if fresh.type.dtype in spec.dtypes:
            return fresh
        return cast_to(rewriter, fresh, self.retyped.get(value, value.type.dtype), op.origin)

    def narrow(self, value: Value, rewriter: Rewriter, origin: str) -> Value:
        """The replacement of an old value in its narrow dtype."""
        found = self.now(value)
        return as_dtype(
            rewriter, found, self.dtypes.get(found.type.dtype, found.type.dtype), origin
        )

    def limited(self, value: Value, rewriter: Rewriter, origin: str) -> Value:
        """An old value cast to its narrow dtype with saturation."""
        found, narrow = self.wide(value, rewriter, origin), self.dtypes[value.type.dtype]
        info = np.iinfo(narrow.numpy)
        for record, number in ((MAXIMUM, info.min), (MINIMUM, info.max)):
            array = np.array(number, value.type.dtype.numpy)
            data = ConstantData(array, TensorType(value.type.dtype, ()))
            limit = rewriter.create(CONSTANT, [], {"value": data}, origin).result
            found = rewriter.create(record, [found, limit], {}, origin).result
        return cast_to(rewriter, found, narrow, origin)

    def wide(self, value: Value, rewriter: Rewriter, origin: str) -> Value:
        """An old value in its old, wide dtype."""
        # what a block is given still is what it was, unless it was retyped
        found = value if value.op is None else self.now(value)
        return as_dtype(rewriter, found, self.retyped.get(value, value.type.dtype), origin)

    def attr(self, value: Attr, op: Op) -> Attr:
        if isinstance(value, DType):
            return self.dtypes.get(value, value)
        if isinstance(value, ConstantData) and value.type.dtype in self.dtypes:
            return self.data(value, op)
        return value

    def data(self, data: ConstantData, op: Op) -> ConstantData:
        """The contents in the narrow dtype, clamped to what it holds."""
        narrow = self.dtypes[data.type.dtype]
        array = data.array
        if narrow.is_float:
            limit = np.finfo(narrow.numpy).max
            clamped = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
        else:
            info = np.iinfo(narrow.numpy)
            clamped = np.clip(array, info.min, info.max)
            if (clamped != array).any() and not all(
                clamps(user, number) for user, number in op.result.uses
            ):
                bad = array[clamped != array].reshape(-1)[0]
                self.problems.append(
                    f"{bad} as {narrow} in {op.name}"
                    + (f" (node {op.origin!r})" if op.origin else "")
                )
        type = TensorType(narrow, data.type.dims, data.type.layout)
        return ConstantData(clamped.astype(narrow.numpy), type)

    def end(self, op: Op) -> None:
        """Passes on narrow values at the end of a block; casts the function's results back to their
        declared types."""
        rewriter = Rewriter(self.function).at(op)
        outer = op.parent.owner if op.parent is not None else None
        body = outer.record.body if isinstance(outer, Op) else None
        for number, value in enumerate(op.operands):
            if value is None:
                continue
            is_narrow = False
            if isinstance(outer, Op) and body is not None:
                is_narrow = self.is_handed_narrow(outer, number - len(body.steering))
            found = (self.narrow if is_narrow else self.wide)(value, rewriter, "")
            rewriter.rewire(op, number, found)


def _memory(function: Function) -> list[Value]:
    """State variables, and values whose memory is written."""
    values = [v for block in control_blocks(function) for v in block.args]
    values += [v for op in control_ops(function) for v in op.results]
    db = AliasDb.where_written(function)
    return [
        v
        for v in values
        if (v.op is not None and v.op.record.is_state) or (db is not None and db.has_writers(v))
    ]


def _widens_loads(op: Op, dtypes: DTypes) -> bool:
    """Whether a contraction accumulates in a dtype that the target supports: its loads then widen
    anyway."""
    dims = contraction_of(op)
    return dims is not None and not any(
        dtype in dtypes for dtype in (dims.accumulator, op.result.type.dtype)
    )


def _widen(function: Function, dtypes: DTypes) -> None:
    """Surrounds each op that computes in one of `dtypes` with casts."""
    rounded: dict[Value, Value] = {}  # floats that were cast back, and what they were
    found = Discontinuities(function)
    near = {v for op in control_ops(function) for v in op.results if found.are_near(v)}

    def widened(value: Value | None, rewriter: Rewriter, origin: str) -> Value | None:
        wide = None if value is None else dtypes.get(value.type.dtype)
        if value is None or wide is None:
            return value
        return rounded.get(value) or cast_to(rewriter, value, wide, origin)

    for op in list(control_ops(function)):
        types = [v.type for v in (*op.operands, *op.results) if v is not None]
        if not computes(op) or not any(t.dtype in dtypes for t in types):
            continue
        if _widens_loads(op, dtypes):
            continue
        rewriter = Rewriter(function).at(op)
        operands = [widened(value, rewriter, op.origin) for value in op.operands]
        made = rewriter.create(op.record, operands, op.attrs, op.origin)
        results = [
            fresh if fresh.type == old.type else cast_to(rewriter, fresh, old.type.dtype, op.origin)
            for old, fresh in zip(op.results, made.results, strict=True)
        ]
        rewriter.replace_op(op, results)
        for narrow, wide, old in zip(results, made.results, op.results, strict=True):
            if narrow is not wide and narrow.type.dtype.is_float and old not in near:
                rounded[narrow] = wide
    for value in rounded:
        if not value.uses and value.op is not None:
            Rewriter(function).erase(value.op)


LEGALISE_DTYPES = Pass("legalise-dtypes", run, __doc__)
