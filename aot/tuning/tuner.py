"""The tuner: chooses the executables of a module that are worth measuring, and applies recorded
results.

`aot/tuning/session.py` decides what is measured when; `aot/analysis/cost/candidates.py` lists the
candidates. Each result is written to the cache at once. Passes read a table of results, and do not
depend on who measured them.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.analysis.cost.candidates import (
    Choice,
    Run,
    admits,
    candidates,
    modelled_cost,
    runs_of,
    schedule_with,
)
from aot.analysis.tuning import Tuning
from aot.base.records import dataclass
from aot.errors import TuningWarning
from aot.ir import dims
from aot.ir.assumed_extents import MEASURED
from aot.ir.bounds import bounds_of
from aot.ir.clone import clone_function
from aot.ir.graph import Function, Module
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.lowering import lower
from aot.options import CompileOptions, Progress, no_progress
from aot.passes.base import PassContext
from aot.target.model import Target
from aot.tuning.cache import TuningCache, TuningRecord, compiler_id
from aot.tuning.module import Sized
from aot.tuning.runner import CommandRunner, Runner
from aot.tuning.session import BuildImage, Session, Subject, describe

MOST = 32  # candidates of an executable that are tried in all
# what is not worth its compile: executables that take so small a part of the modelled time
LEAST_SHARE = 0.005
# of an executable's dispatches: as many as take so much of its modelled time, but no more than some
RUNS_SHARE, MOST_RUNS = 0.9, 8
MOST_BYTES = 256 << 20  # of a run's operands and results

Clock = Callable[[], float]


@dataclass
class Tuned:
    """Statistics of one tuning.

    Attributes:
        executables: that could run in several ways and are worth it.
        known: of them, those that the cache had.
        measured: candidates that were measured.
        changed: executables that run otherwise than the plan has it.
        gain: part of the modelled time that the changes save, as measured one by one.
        seconds: that it took.
    """

    executables: int = 0
    known: int = 0
    measured: int = 0
    changed: int = 0
    gain: float = 0.0
    seconds: float = 0.0

    def section(self) -> dict[str, Any]:
        """The statistics as a dictionary."""
        values = vars(self)
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()}


class Tuner:
    """Tunes the executables of modules, and records the results in `cache`.

    Attributes:
        runner: None measures nothing.
        tuned: what the last call of `tune` did.
    """

    def __init__(
        self,
        options: CompileOptions,
        build: BuildImage,
        progress: Progress = no_progress,
        runner: Runner | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Reads the tuning file. `build` compiles the modules that are measured.

        Raises:
            CompileError: it cannot be read, or the runner is no command.
            RuntimeFailure: this machine has no `aot-run`.
        """
        path = options.tune_cache or TuningCache.default_path(options.cache_dir)
        is_asked_for = options.tune_cache is not None and options.tune is None
        self.cache = TuningCache(path, must_exist=is_asked_for)
        self.runner = runner
        self.tuned = Tuned()
        self._options = options
        self._build = build
        self._progress = progress
        self._clock = clock or time.monotonic
        if options.tune and runner is None:
            self.runner = CommandRunner.of(options.tune_runner)
        lines = self.cache.lines.values()
        if is_asked_for and lines and all(one.compiler != compiler_id() for one in lines):
            _warn(f"nothing of {path} is used: another version of the compiler measured it")

    @property
    def table(self) -> Tuning:
        """The table of all recorded choices."""
        lines = self.cache.lines.values()
        return Tuning(compiler_id(), {one.key: one.best for one in lines})

    def tune(self, module: Module, context: PassContext) -> Tuning:
        """Measures executables of a module whose passes have run, in order of their modelled run
        time, until the time is up.

        An interrupt loses what is under way. Gives all that is known then; `tuned` says what was
        done.
        """
        target = context.target
        assert target is not None
        started = self._clock()
        symbols = _symbols(module)
        runs = runs_of(module)
        costs = {
            f: modelled_cost(f, runs[f.name], target) for f in module.executables if f.name in runs
        }
        subjects = self._subjects(runs, costs, target, symbols)
        self.tuned = found = Tuned(executables=len(subjects))
        found.known = sum(1 for s in subjects if s.key in self.cache.lines)
        if self.runner is not None and subjects:
            self._measure(module, subjects, target, symbols, sum(costs.values()), started)
        for subject in subjects:
            record = self.cache.lines.get(subject.key)
            if record is not None and record.best != subject.base:
                found.changed += 1
                found.gain += subject.share * (1 - record.ratio)
        found.seconds = self._clock() - started
        return self.table

    def _subjects(
        self,
        runs: Mapping[str, Sequence[Run]],
        costs: Mapping[Function, float],
        target: Target,
        symbols: Mapping[str, int],
    ) -> list[Subject]:
        """The executables worth tuning, those with most modelled time first; `costs` are the
        modelled times of each one's dispatches."""
        whole = sum(costs.values()) or 1.0
        found: list[Subject] = []
        table = self.table
        for function in sorted(costs, key=lambda f: -costs[f]):
            share, own = costs[function] / whole, runs[function.name]
            if share < LEAST_SHARE:
                break
            all_choices = candidates(function, own, target, has_winograd=self._options.winograd)
            choices = different(function, all_choices, target, MOST + 1)
            sized = _heaviest(function, own, target, symbols)
            if len(choices) > 1 and sized:
                key = table.key(function, own, target)
                cost = costs[function] * len(sized) / sum(run.count for run in own)
                waiting = choices[1:]
                subject = Subject(function, key, choices[0], sized, cost, share, waiting)
                self._recall(subject, target)
                found.append(subject)
        return found

    def _recall(self, subject: Subject, target: Target) -> None:
        """Restores a subject's measurements from earlier compiles."""
        record = self.cache.lines.get(subject.key)
        if record is None or record.base != subject.base:
            return
        subject.waiting = [c for c in subject.waiting if c not in record.ratios]
        has_winograd = self._options.winograd

        def is_admitted(choice: Choice) -> bool:
            return admits(subject.function, choice, target, has_winograd=has_winograd)

        subject.ratios = {c: r for c, r in record.ratios.items() if is_admitted(c)}
        subject.confirmed = dict(record.confirmed)
        if record.best != subject.base and is_admitted(record.best):
            subject.best = record.best

    def _measure(
        self,
        module: Module,
        subjects: Sequence[Subject],
        target: Target,
        symbols: Mapping[str, int],
        cost: float,
        started: float,
    ) -> None:
        assert self.runner is not None
        seconds = (self._options.tune or 0.0) / len(self._options.targets)

        def left() -> float:
            spent = self._clock() - started
            self._progress("tune", min(int(spent), int(seconds)), int(seconds))
            return seconds - spent

        def keep(subject: Subject) -> None:
            self.cache.put(_record_of(subject, target))

        with tempfile.TemporaryDirectory(prefix="aotc-tune-") as folder:
            session = Session(
                module,
                subjects,
                target,
                self._options,
                self._build,
                self.runner,
                Path(folder) / "tune.aotm",
                symbols,
                cost,
                left,
                keep,
            )
            session.run()
        self.tuned.measured = session.measured


def different(
    function: Function, choices: Sequence[Choice], target: Target, most: int
) -> list[Choice]:
    """The choices that give different kernels, at most `most`: rules may override a choice's tiles,
    so that several choices give one kernel."""
    trial = clone_function(function)
    kernels: dict[bytes, Choice] = {}
    for choice in choices:
        if len(kernels) == most:
            break
        trial.schedule = schedule_with(function, choice, target)
        kernels.setdefault(fingerprint(lower(trial, target)), choice)
    return list(kernels.values())


def _record_of(subject: Subject, target: Target) -> TuningRecord:
    return TuningRecord(
        subject.key,
        target.name,
        describe(subject.function),
        compiler_id(),
        subject.base,
        subject.best or subject.base,
        dict(subject.ratios),
        dict(subject.confirmed),
    )


def _symbols(module: Module) -> dict[str, int]:
    """A number for every symbol of the entry points: its upper bound, or a typical extent.

    As for random inputs elsewhere, the first dim of an input, a batch most likely, is as small as
    its bound lets it be.
    """
    found: dict[str, int] = {}
    for function in module.entry_points:
        batches = {str(v.type.dims[0]) for v in function.inputs if v.type.dims}
        known = bounds_of(function.assumptions)
        values = [*function.inputs, *(v for op in function.walk() for v in op.results)]
        for dim in {d for value in values for d in value.type.dims}:
            for name in dims.symbols(dim):
                low, high = known.get(name, (0, None))
                usual = max(1 if name in batches else MEASURED, low or 0)
                found[name] = usual if high is None else high
    return found


def _heaviest(
    function: Function, runs: Sequence[Run], target: Target, symbols: Mapping[str, int]
) -> list[Sized]:
    """The runs that take most of an executable's modelled time, with numbers for their dims."""
    costs = {run: modelled_cost(function, [run], target) for run in runs}
    left = RUNS_SHARE * sum(costs.values())
    found: list[Sized] = []
    for run in sorted(runs, key=lambda r: -costs[r]):
        if left <= 0 or len(found) == MOST_RUNS:
            break
        sized = Sized.of(run, symbols)
        if sized is None or sized.bytes(function) > MOST_BYTES:
            return []
        found.append(sized)
        left -= costs[run]
    return found


def _warn(message: str) -> None:
    warnings.warn(message, TuningWarning, stacklevel=2)
