"""Measures candidates for one target: chooses their order, and decides which are faster.

A *screening* compares a batch of candidates of each executable; the fastest are *confirmed* in
rounds. Both run the whole model where that can be: by itself an executable finds in caches what it
doesn't in the model, and prefers other tiles. Owns both and the time that they take; what is learnt
is handed out after each step.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from aot.analysis.cost.candidates import WINOGRAD, Choice
from aot.base.records import dataclass
from aot.errors import TuningWarning
from aot.ir import dims
from aot.ir.graph import Function, Module
from aot.link.image import ModuleImage
from aot.link.module import write_module
from aot.options import CompileOptions
from aot.target.model import Target
from aot.tuning.module import Sized, comparing_module, copies_of
from aot.tuning.runner import Runner, RunnerError

# candidates that are measured side by side, and those of them that are measured again
BATCH, RIVALS, ROUNDS = 8, 3, 3
# at first, when nobody knows how long the model takes, a small batch
FIRST_BATCH = 2
# of the time that is left, what may go by before what seems to win alone is confirmed
SCREEN_PART = 0.5
# a candidate must take so much less than the plan's choice, or more where noise was more; one that
# needs scratch and rounds otherwise must gain more
LEAST_GAIN, LEAST_GAIN_BY_ALGORITHM = 0.02, 0.06
# runs of a process: as many as take so long, within bounds, at the speed seen before; at first at
# that of a slow device, in the model's vector operations a second
RUN_SECONDS, LEAST_RUNS, MOST_RUNS = 0.1, 1, 400
FIRST_SPEED = 1e8
# what `aot-run --profile` does at least beside those
PROFILE_RUNS = 13
# a runner that fails so often before it ever works is not asked again
MOST_FAILURES = 2


BuildImage = Callable[[Module, Target, CompileOptions], ModuleImage]


@dataclass(eq=False)
class Subject:
    """An executable that is tuned, with its candidates and measurements.

    Attributes:
        runs: its dispatches that are measured by themselves, with numbers for all dims.
        cost, share: its modelled time in one run of those, and its part of the whole model's.
        waiting: candidates that were not measured yet.
        ratios, confirmed: what was measured, of `base`'s time.
        best: what won in rounds, if anything did.
    """

    function: Function
    key: str
    base: Choice
    runs: list[Sized]
    cost: float
    share: float
    waiting: list[Choice]
    ratios: dict[Choice, float] = field(default_factory=dict)
    confirmed: dict[Choice, float] = field(default_factory=dict)
    best: Choice | None = None

    def rivals(self, most: int) -> list[Choice]:
        """The fastest choices that are not confirmed yet, followed by the best confirmed one."""
        ordered = sorted(self.ratios, key=self.ratios.__getitem__)
        fast = [c for c in ordered if self.ratios[c] < 1 - LEAST_GAIN and c not in self.confirmed]
        best = [] if self.best is None else [self.best]
        return list(dict.fromkeys(fast[:most] + best)) if fast else []


@dataclass(frozen=True)
class Round:
    """The measurements of one process: times relative to the planned choice, and the difference
    between the two runs of that choice.
    """

    ratios: Sequence[float]
    noise: float


@dataclass(eq=False)
class Session:
    """The tuning of a module's executables for one target.

    Attributes:
        build: makes the image of a module whose functions are outlined.
        path: the file for modules to be measured.
        symbols: what the model's symbols are meanwhile.
        cost: the whole model's modelled time.
        left: seconds that are left.
        keep: called with a subject when there are new measurements of it.
        measured: candidates so far.
    """

    module: Module
    subjects: Sequence[Subject]
    target: Target
    options: CompileOptions
    build: BuildImage
    runner: Runner
    path: Path
    symbols: Mapping[str, int]
    cost: float
    left: Callable[[], float]
    keep: Callable[[Subject], None]
    measured: int = 0
    _failures: int = 0
    _is_given_up: bool = False
    _has_place: bool = True
    _speed: float = FIRST_SPEED  # vector operations a second
    _pace: float | None = None  # seconds of one run of one copy of the model, its compile included

    def run(self) -> None:
        """Screens and confirms candidates until the time is up or none is left."""
        while self.left() > 0 and not self._is_given_up:
            screened = self._screen()
            if not self._confirm() and not screened:
                break

    # ---- screening ----

    def _screen(self) -> bool:
        """Measures one batch of candidates per subject, smaller for subjects that take less of the
        run time. Returns whether any candidate was waiting.
        """
        waiting = [s for s in self.subjects if s.waiting]
        if not waiting:
            return False
        most, size = max(s.share for s in waiting), self._batch()
        sizes = {s: round(size * math.sqrt(s.share / most)) for s in waiting}
        batches = {s: s.waiting[:number] for s, number in sizes.items() if number}
        rounds = self._in_place(batches, 1)
        for subject, (found,) in rounds.items():
            subject.waiting = subject.waiting[len(batches[subject]) :]
            self._screened(subject, batches[subject], found)
        return bool(rounds) or self._screen_alone()

    def _batch(self) -> int:
        """How many candidates of one executable can be measured with time left to confirm some of
        them."""
        if self._pace is None:
            return FIRST_BATCH
        return max(1, min(BATCH, self._turns() - 2 - ROUNDS * (RIVALS + 2)))

    def _turns(self) -> int:
        """How many copies of the model can be measured in the remaining time."""
        pace = self._pace or 1e-6
        return int(max(self.left(), 0.0) / (pace * (LEAST_RUNS + PROFILE_RUNS)))

    def _screened(self, subject: Subject, batch: Sequence[Choice], found: Round) -> None:
        self.measured += len(batch)
        subject.ratios |= dict(zip(batch, found.ratios, strict=True))
        self.keep(subject)

    def _screen_alone(self) -> bool:
        """Measures candidates of one executable after another, those with fewest measurements
        first. Returns whether there were any.
        """
        least = (1 - SCREEN_PART) * self.left()
        has_any = False
        for subject in sorted(self.subjects, key=lambda s: len(s.ratios)):
            if not subject.waiting or self._is_given_up:
                continue
            if has_any and self.left() <= least:
                break
            has_any = True
            batch, subject.waiting = subject.waiting[:BATCH], subject.waiting[BATCH:]
            try:
                found = self._alone(subject, batch)
            except RunnerError as error:
                subject.waiting = []
                self._fail(subject, error)
                continue
            self._screened(subject, batch, found)
        return has_any

    def _alone(self, subject: Subject, choices: Sequence[Choice]) -> Round:
        """Measures choices of an executable against the planned one, in a module of their own."""
        every = [subject.base, *choices]
        module = comparing_module(subject.function, subject.runs, every, self.target)
        self._write(module)
        times = self._times(len(subject.runs) * (len(every) + 1), subject.cost, len(every) + 1, [])
        each = len(subject.runs)
        weights = [run.weight for run in subject.runs]
        return _round(
            [
                sum(w * t for w, t in zip(weights, times[n : n + each], strict=True))
                for n in range(0, len(times), each)
            ]
        )

    def _write(self, module: Module) -> None:
        """Compiles a module of choices and writes it to the session's file.

        Raises:
            CompileError: the file cannot be written.
        """
        # text that is compiled here is there sooner than processes for it
        options = replace(self.options, jobs=1, strip=True)
        write_module(self.build(module, self.target, options), self.path)

    def _times(
        self, count: int, cost: float, turns: int, options: Sequence[str]
    ) -> Sequence[float]:
        runs = self._runs(cost, turns)
        given = ["--device", self.target.device, *options]
        before = self.left()
        times = self.runner(self.path, given, runs, max(before, 0.0))
        done = cost * turns * (2 * runs + PROFILE_RUNS)
        self._speed = max(done, 1.0) / max(before - self.left(), 1e-3)
        if len(times) != count:
            raise RunnerError(f"the runner timed {len(times)} dispatches of {count}")
        return times

    def _runs(self, cost: float, turns: int) -> int:
        wanted = RUN_SECONDS * self._speed / max(cost * turns, 1.0)
        return max(LEAST_RUNS, min(MOST_RUNS, round(wanted)))

    def _fail(self, subject: Subject, error: RunnerError) -> None:
        self._failures += 1
        if self.measured or self._failures < MOST_FAILURES:
            _warn(f"{describe(subject.function)} is not tuned: {error}")
            return
        _warn(f"nothing is tuned for {self.target.name}: {error}")
        self._is_given_up = True

    # ---- confirming ----

    def _confirm(self) -> bool:
        """Measures the seemingly fastest choices again, in several rounds. Returns whether there
        were any."""
        most = max(1, min(RIVALS, self._turns() // ROUNDS - 2))
        rivals = {s: found for s in self.subjects if (found := s.rivals(most))}
        if not rivals or self._is_given_up:
            return False
        rounds = self._in_place(rivals, ROUNDS) or self._by_themselves(rivals)
        for subject, measured in rounds.items():
            self._decide(subject, rivals[subject], measured)
            self.keep(subject)
        return bool(rounds)

    def _in_place(
        self, rivals: Mapping[Subject, Sequence[Choice]], count: int
    ) -> dict[Subject, list[Round]]:
        """Rounds measured within the whole model; empty if the model cannot be run that way."""
        if not self._has_place:
            return {}
        turns = max(map(len, rivals.values()))
        copies: list[dict[str, Choice]] = [{}] + [
            {s.function.name: found[n] for s, found in rivals.items() if n < len(found)}
            for n in range(turns)
        ]
        made = copies_of(self.module, copies, self.target)
        self._has_place = made is not None
        if made is None:
            return {}
        before = self.left()
        self._write(made.module)
        each = len(made.dispatches)
        inputs = ["--random", *_shapes(self.module, self.symbols)]
        rounds: dict[Subject, list[Round]] = {s: [] for s in rivals}
        try:
            for _ in range(count):
                times = self._times(each * (turns + 2), self.cost, turns + 2, inputs)
                for subject, found in rivals.items():
                    name = subject.function.name
                    own = [n for n, callee in enumerate(made.dispatches) if callee == name]
                    totals = [
                        sum(times[copy * each + n] for n in own)
                        for copy in (*range(1 + len(found)), turns + 1)
                    ]
                    rounds[subject].append(_round(totals))
        except RunnerError:  # the model may not take random inputs, or it takes too long
            self._has_place = False
            self._failures += 1
            return {}
        done = count * (turns + 2) * (LEAST_RUNS + PROFILE_RUNS)
        self._pace = max(before - self.left(), 1e-6) / done
        return rounds

    def _by_themselves(
        self, rivals: Mapping[Subject, Sequence[Choice]]
    ) -> dict[Subject, list[Round]]:
        rounds: dict[Subject, list[Round]] = {}
        for subject, found in rivals.items():
            if rounds and self.left() <= 0:
                break
            try:
                rounds[subject] = [self._alone(subject, found) for _ in range(ROUNDS)]
            except RunnerError as error:
                self._fail(subject, error)
                if self._is_given_up:
                    break
                subject.confirmed |= dict.fromkeys(found, 1.0)
        return rounds

    def _decide(self, subject: Subject, rivals: Sequence[Choice], rounds: Sequence[Round]) -> None:
        """Picks the best choice: one that is faster by the median and by more than noise, and
        faster in every round.
        """
        noise = statistics.median(r.noise for r in rounds)
        winners: dict[Choice, float] = {}
        for number, choice in enumerate(rivals):
            found = [r.ratios[number] for r in rounds]
            ratio = subject.confirmed[choice] = statistics.median(found)
            is_other = choice.algorithm == WINOGRAD != subject.base.algorithm
            least = LEAST_GAIN_BY_ALGORITHM if is_other else LEAST_GAIN
            if ratio < 1 - max(least, 2 * noise) and max(found) < 1:
                winners[choice] = ratio
        subject.best = min(winners, key=winners.__getitem__) if winners else None


def _round(totals: Sequence[float]) -> Round:
    """The round for measured times; the first choice is measured first and last, and the others are
    relative to it."""
    if min(totals) <= 0:
        raise RunnerError("the runner's clock is too coarse: a dispatch took no time")
    base = (totals[0] + totals[-1]) / 2
    return Round([t / base for t in totals[1:-1]], abs(totals[0] - totals[-1]) / base)


def _shapes(module: Module, symbols: Mapping[str, int]) -> list[str]:
    """Options of `aot-run` that set the extents of inputs with dynamic dims."""
    found: list[str] = []
    for value in module.entry_points[0].inputs:
        if not value.type.is_static:
            extents = [dims.evaluate(d, symbols) for d in value.type.dims]
            found += ["--shape", f"{value.name}={'x'.join(map(str, extents))}"]
    return found


def describe(function: Function) -> str:
    """An executable's ops and result shapes as text for messages."""
    names = [op.name for op in function.block if not op.record.is_terminator]
    text = ", ".join(names[:6])
    shapes = " ".join(str(v.type).split("{")[0] for v in function.results)
    return f"{text}{', ...' if len(names) > 6 else ''} -> {shapes}"


def _warn(message: str) -> None:
    warnings.warn(message, TuningWarning, stacklevel=2)
