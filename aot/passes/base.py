"""The pass interface and the pass manager: runs passes in order, with timing, checks and dumps.

Owns no order (that is pipeline.py's) and no rewrite.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from aot import switches
from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.lint import lint
from aot.base.records import dataclass
from aot.errors import AotError, CompileError, InternalError, UnsupportedError
from aot.ir.clone import clone_module
from aot.ir.graph import Block, Function, Module
from aot.ir.record import count_shape_rules
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.fusion.remarks import FusionRemarks

if TYPE_CHECKING:
    from aot.analysis.cost.code_size import CodeEstimate
    from aot.analysis.tuning import Tuning
    from aot.target.model import Target

_PARTS = ("Requires:", "Ensures:", "Never:")


@dataclass(frozen=True)
class Pass:
    """A pass: one graph-to-graph transformation.

    Attributes:
        name: as switches, dumps and statistics say it.
        run: does it, in place.
        contract: the docstring of the pass's file, with what it Requires, Ensures and Never does.
        is_resolving: after it no shape change is pending, which verifying checks.
    """

    name: str
    run: Callable[[Module, PassContext], None]
    contract: str | None
    is_resolving: bool = False

    def __post_init__(self) -> None:
        missing = [part for part in _PARTS if part not in (self.contract or "")]
        if missing:
            raise InternalError(f"pass {self.name}: its docstring lacks {' and '.join(missing)}")


@dataclass(frozen=True)
class PassRun:
    """Statistics of one run of a pass.

    Attributes:
        seconds: its time, without verifying and dumping.
        start: when it began, in seconds of `time.perf_counter`.
        shape_rule_calls: shape rules that it called.
        ops_before, ops_after: ops of the module, nested ones included.
    """

    name: str
    seconds: float
    shape_rule_calls: int
    ops_before: int
    ops_after: int
    start: float = 0.0


def _print_to_stderr(text: str) -> None:
    sys.stderr.write(text)


@dataclass
class PassContext:
    """The state that passes share during a compile for one target.

    Attributes:
        target: what is compiled for; None for passes that do not ask.
        runs: one entry per pass run, in order.
        statistics: counters that passes keep, by pass and name.
        remarks: where fusion records why regions end; None if nobody asks.
        tuning: what measuring has taught; None leaves all to the plan.
        code_estimate: how large executables are, as `despecialise` expects; None before it ran.
        is_stopped: AOT_STOP_AFTER was reached; no pass runs any more.
        print: where AOT_PRINT writes.
        host: on Vulkan, the CPU that runs what the target can't; None where there is none.
    """

    options: CompileOptions = field(default_factory=CompileOptions)
    target: Target | None = None
    switches: switches.Switches = field(default_factory=switches.from_environment)
    runs: list[PassRun] = field(default_factory=list)
    statistics: dict[str, dict[str, int]] = field(default_factory=dict)
    remarks: FusionRemarks | None = None
    tuning: Tuning | None = None
    code_estimate: CodeEstimate | None = None
    is_stopped: bool = False
    print: Callable[[str], None] = _print_to_stderr
    host: Target | None = None

    def count(self, name: str, key: str, amount: int = 1) -> None:
        """Adds `amount` to counter `key` of pass `name`."""
        counters = self.statistics.setdefault(name, {})
        counters[key] = counters.get(key, 0) + amount

    @property
    def shape_rule_calls(self) -> int:
        """The number of shape rules that passes have called so far."""
        return sum(run.shape_rule_calls for run in self.runs)


def count_ops(module: Module) -> int:
    """The number of ops in all functions, nested ones included."""
    return sum(_count(function.block) for function in module.functions.values())


def _count(block: Block) -> int:
    return len(block) + sum(_count(inner) for op in block if op.blocks for inner in op.blocks)


def ops_after(context: PassContext, step: Pass) -> int:
    """The module's op count after the first run of `step`."""
    return next(run.ops_after for run in context.runs if run.name == step.name)


def run_passes(module: Module, passes: Sequence[Pass], context: PassContext) -> None:
    """Runs `passes` in order on `module`.

    Raises:
        CompileError, UnsupportedError: a pass found the user's mistake or our limit.
        InternalError: a pass failed or broke an invariant; the message names a `.repro` file with
            the IR before it and the passes that were left.
    """
    _dump(module, "input", context, is_first=True)
    start = clone_module(module)
    ops = count_ops(module)
    for number, step in enumerate(passes):
        if context.is_stopped:
            return
        if step.name in switches.PASSES and not context.options.is_enabled(step.name):
            context.is_stopped = step.name == context.switches.stop_after
            continue
        text = _readable(module) if context.switches.is_printing_changes else ""
        try:
            ops = _run_one(module, step, context, ops)
            if context.switches.is_verifying_each:
                with count_shape_rules(is_hidden=True):  # a debugging aid, no part of the pass
                    during = f"after pass {step.name}"
                    verify(module, during=during, is_resolved=step.is_resolving)
                    for function in module.functions.values():
                        _lint_aliases(function)
        except (CompileError, UnsupportedError):
            raise
        except Exception as failure:
            path = _write_repro(start, passes, number, failure, context)
            shown = (
                str(failure)
                if isinstance(failure, AotError)
                else (f"{type(failure).__name__}: {failure}")
            )
            raise InternalError(
                f"pass {step.name} failed: {shown}\nthis is a bug of aotc; please "
                f"report it with {path}"
            ) from failure
        _dump(module, step.name, context)
        _print(module, step, text, context)
        context.is_stopped = step.name == context.switches.stop_after


def _lint_aliases(function: Function) -> None:
    """Checks a function's alias database, unless it only tracks writers."""
    for listener in function.listeners:
        if isinstance(listener, AliasDb) and listener.is_solved:
            lint(listener)


def _run_one(module: Module, step: Pass, context: PassContext, ops_before: int) -> int:
    """Runs a pass; returns how many ops it left."""
    start = time.perf_counter()
    with count_shape_rules() as rules:
        step.run(module, context)
    seconds = time.perf_counter() - start
    ops_after = count_ops(module)
    context.runs.append(PassRun(step.name, seconds, rules.calls, ops_before, ops_after, start))
    return ops_after


def _readable(module: Module) -> str:
    return print_module(module, elide_blobs=True)


def _print(module: Module, step: Pass, before: str, context: PassContext) -> None:
    if step.name in context.switches.print_after:
        context.print(f"# IR after {step.name}\n{_readable(module)}\n")
    elif context.switches.is_printing_changes:
        text = _readable(module)
        context.print(
            f"# {step.name}: no change\n" if text == before else f"# IR after {step.name}\n{text}\n"
        )


def _dump(module: Module, name: str, context: PassContext, *, is_first: bool = False) -> None:
    """Writes the IR to NN-name.ir: NN is 00 for the input, then counts pass runs."""
    folder = context.options.dump_ir
    if folder is None or (is_first and context.runs):
        return
    path = Path(folder) / f"{len(context.runs):02}-{name}.ir"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_readable(module), encoding="utf-8")
    except OSError as error:
        raise CompileError(f"cannot write {path}: {error.strerror or error}") from None


def _write_repro(
    start: Module, passes: Sequence[Pass], failed: int, failure: Exception, context: PassContext
) -> str:
    """Writes the IR before a failing pass to a file, and returns its path, or why none was written.

    That IR is made anew by running the passes before it on `start`, a copy of the first input:
    passes are deterministic, and a copy per pass would cost more than the passes do.
    """
    options, left = context.options, passes[failed:]
    first_line = f"{type(failure).__name__}: {failure}".splitlines()[0]
    header = (
        f"# aotc repro: pass {left[0].name} failed: {first_line}\n"
        f"# passes left: {', '.join(step.name for step in left)}\n"
        f"# target: {context.target.name if context.target else 'none'}\n"
        f"# optimize: {options.optimize}\n"
        f"# disabled: {', '.join(options.disable) or 'nothing'}\n\n"
    )
    try:
        again = PassContext(options, context.target, switches.Switches())
        for step in passes[:failed]:
            if step.name not in options.disable:
                step.run(start, again)
        folder = options.dump_ir
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="aotc-"))
        path = Path(folder) / f"{left[0].name}.repro"
        path.write_text(header + print_module(start), encoding="utf-8")
    except (OSError, InternalError) as error:
        return f"the model (no .repro could be written: {error})"
    return str(path)
