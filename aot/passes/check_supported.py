"""check-supported: reports, in one error, everything in the program that cannot be compiled.

Requires: nothing.
Ensures: every op of the module is one that later passes and the runtime know what to do with, of a
    bounded number of operands, and every extent that a value gives is bounded, by what memory can
    hold. What is written in place are state variables, each in one place, once a run, and read
    before that.
Never: changes anything.
"""

from __future__ import annotations

from aot.analysis.control import nested_operands
from aot.errors import UnsupportedError
from aot.ir import dims
from aot.ir.data_dims import Largest, extents_of, is_capacity, unlimited
from aot.ir.graph import Function, Module, Op, Value
from aot.ops.control import ASSIGN
from aot.passes.base import Pass, PassContext

MOST_OPERANDS = 4096  # each is code of a kernel, some 10 ms of a compile
MOST_BYTES = 1 << 47  # what a process can address


def run(module: Module, context: PassContext) -> None:
    found = [
        _line(op, problem)
        for function in module.functions.values()
        for op in function.walk()
        if (problem := op.record.unsupported or _too_wide(op) or _misplaced_write(function, op))
    ]
    found += [line for function in module.entry_points for line in _late_reads(function)]
    found += [line for function in module.entry_points for line in _unlimited(function)]
    found += [line for function in module.entry_points for line in _too_large(function)]
    if found:
        raise UnsupportedError("these can't be compiled yet:", list(dict.fromkeys(found)))


def _unlimited(function: Function) -> list[str]:
    """Errors for extents that the model computes without a bound, so that no memory can be reserved
    for them."""
    open_loops = {
        op.origin for op in extents_of(function).values() if op.origin and is_capacity(op)
    }
    found = []
    for symbol, op in unlimited(function).items():
        why = "it computes an extent that nothing limits"
        if is_capacity(op) or op.origin in open_loops:
            why = (
                "its result grows with each iteration, and nothing bounds the number of iterations"
            )
        name = op.origin or symbol
        found.append(f"{name}: {why}; bound it with --max {name!r}=N (max_extents)")
    return found


def _too_large(function: Function) -> list[str]:
    """An error for the first value whose largest possible size cannot be allocated; empty if there
    is none."""
    largest, extents = Largest.of(function), extents_of(function)
    if not extents:
        return []
    for op in function.walk():
        for value in op.results:
            count = value.type.element_count
            most = largest.largest(count) if largest.is_given(count) else 0
            if not isinstance(most, int) or most * value.type.dtype.bytes <= MOST_BYTES:
                continue
            symbol = next(name for name in sorted(dims.symbols(count)) if name in extents)
            return [
                f"{extents[symbol].origin or symbol}: it computes an extent that may be so large "
                f"that {value.type} has {most * value.type.dtype.bytes} bytes, expected at most "
                f"{MOST_BYTES}; bound it by less"
            ]
    return []


def _line(op: Op, problem: str) -> str:
    where = f" (node {op.origin!r})" if op.origin else ""
    return f"{op.name}{where}: {problem}"


def _too_wide(op: Op) -> str:
    """The error for an op with too many operands (thousands); empty for others."""
    count = len(op.operands)
    if op.record.is_terminator or count <= MOST_OPERANDS:
        return ""
    return f"it has {count} operands, expected at most {MOST_OPERANDS}: do it in parts"


def _misplaced_write(function: Function, op: Op) -> str:
    """The error for an unsupported write: programs write only state variables in place, each once a
    run."""
    if not op.record.writes:
        return ""
    if op.record is not ASSIGN or not _is_state(op.operands[0]):
        return (
            "it writes memory that is chosen at run time (a result of a branch or a loop, a row of "
            "a tuple), or whose old contents are read later; use the new value instead"
        )
    is_once = op.parent is function.block
    return "" if is_once else "a state variable that is written in a block, not once a run"


def _late_reads(function: Function) -> list[str]:
    """Errors for ops that read a state variable after its write, and might see either value."""
    shown: dict[Value, str] = {}
    written: set[str] = set()
    found: list[str] = []
    for op in function.block:
        late = [name for v in nested_operands(op) if (name := shown.get(v)) in written]
        found += [_line(op, f"state variable {name!r} is read after its write") for name in late]
        record = op.record
        if record.is_state:
            shown[op.result] = str(op.attrs["variable"])
        elif record.view_of is not None and op.operands[record.view_of] in shown:
            shown[op.result] = shown[op.operands[record.view_of]]  # type: ignore[index]
        if record is ASSIGN:
            written.update(shown[v] for n in record.writes if (v := op.operands[n]) in shown)
    return found


def _is_state(value: Value | None) -> bool:
    """Whether a value is the memory of a whole state variable, possibly through views."""
    while value is not None and value.op is not None and value.op.record.view_of is not None:
        value = value.op.operands[value.op.record.view_of]
    return value is not None and value.op is not None and value.op.record.is_state


CHECK_SUPPORTED = Pass("check-supported", run, __doc__)
