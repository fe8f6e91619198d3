"""Each kernel by every rule that can build it: what the order of the rules' table gains and loses.

    chrt -r 10 python -m benchmarks.kernels.rules --quick --json rules.json

A line is of a rule and another one, over all nests that the first builds and the other could: how
many times as long the other takes, the least, the geometric mean and the most. Behind them: what
all nests would take if each went by its fastest rule, and the nests that lose most. The options
are those of `python -m benchmarks.kernels`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from aot.backends.cpu.object_cache import ObjectCache
from aot.errors import AotError
from aot.kernels.alternatives import alternatives
from aot.kernels.lowering import lower
from aot.kernels.price.cycles import cycles_of
from aot.target import selection
from aot.target.model import Target
from benchmarks.kernels.__main__ import QUICK, collect, note, parse_arguments, sources_of
from benchmarks.kernels.dispatches import Dispatch
from benchmarks.kernels.machine import Machine
from benchmarks.kernels.timing import Prepared, Settings, time_batch

# how much less another rule must take for its nest to be shown
LESS = 0.9


@dataclass(frozen=True)
class Way:
    """A nest by one rule.

    Attributes:
        rule: the rule, with the number of its nest where the kernel has several.
        seconds: of the kernel.
        cycles: that the kernel is estimated to take.
    """

    rule: str
    seconds: float
    cycles: float


@dataclass(frozen=True)
class Choice:
    """A dispatch by all rules; the first is the one that is taken.

    Attributes:
        text: what it computes.
        bound: the least seconds that the machine allows.
    """

    model: str
    text: str
    count: int
    bound: float
    ways: Sequence[Way]


def choices(dispatches: Sequence[Dispatch], target: Target, cache: ObjectCache) -> list[Choice]:
    """The dispatches that several rules can build, with what each takes."""
    machine = Machine(target)
    found: list[Choice] = []
    settings: Settings = QUICK
    for number, dispatch in enumerate(dispatches):
        note(f"{number} of {len(dispatches)} dispatches", end="\r")
        others = alternatives(dispatch.function, target, dispatch.dims)
        if not others:
            continue
        kernel = lower(dispatch.function, target)
        names = ["+".join(kernel.rules), *(a.rule for a in others)]
        cycles = [cycles_of(kernel, target, dispatch.dims), *(a.cycles for a in others)]
        functions = [dispatch.function, *(a.function for a in others)]
        try:
            batch = [Prepared(replace(dispatch, function=f), target, cache) for f in functions]
        except (AotError, MemoryError) as error:
            note(f"{dispatch.model}: {str(error).splitlines()[0]}")
            continue
        results, _ = time_batch(batch, machine, settings)
        taken = [r.seconds for r in results]
        ways = [Way(*way) for way in zip(names, taken, cycles, strict=True)]
        text = f"{dispatch.model}: {dispatch.text}"
        found.append(Choice(dispatch.model, text, dispatch.count, results[0].bound, ways))
    return found


def mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def pairs_table(found: Sequence[Choice]) -> str:
    """The rules that are taken, with the others that could be."""
    pairs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for choice in found:
        first, *others = choice.ways
        for way in others:
            pairs[first.rule, way.rule].append(way.seconds / first.seconds)
    lines = [f"{'taken':28} {'other':28} nests  least   mean   most"]
    for (first_rule, other), ratios in sorted(pairs.items()):
        ends = f"{min(ratios):6.2f} {mean(ratios):6.2f} {max(ratios):6.2f}"
        lines.append(f"{first_rule:28} {other:28} {len(ratios):5} {ends}")
    return "\n".join(lines)


def summary(found: Sequence[Choice], most: int) -> str:
    """What the fastest rules would take, and the nests that lose most."""
    taken = sum(c.count * c.ways[0].seconds for c in found)
    best = sum(c.count * min(w.seconds for w in c.ways) for c in found)
    errors = [abs(math.log(w.cycles / w.seconds)) for c in found for w in c.ways]
    middle = [math.log(w.cycles / w.seconds) for c in found for w in c.ways]
    centre = sum(middle) / len(middle)
    within = sum(abs(m - centre) < math.log(2) for m in middle) / len(errors)
    lines = [
        f"{len(found)} nests: by the fastest rule of each all would take {best / taken:.3f} of the "
        f"time; {within:.0%} of {len(errors)} estimates are right within a factor of 2",
    ]
    lost = []
    for choice in found:
        first = choice.ways[0]
        way = min(choice.ways, key=lambda w: w.seconds)
        if way.seconds < LESS * first.seconds:
            lost.append((way.seconds / first.seconds, first, way, choice))
    lost.sort(key=lambda item: item[0])
    for ratio, first, way, choice in lost[:most]:
        over = first.seconds / choice.bound
        lines.append(
            f"{ratio:.2f} {first.rule} -> {way.rule}, {first.seconds * 1e6:.1f} us, {over:.1f} of "
            f"the bound, {choice.text[:150]}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse_arguments(arguments)
    target = selection.load(given.target)
    cache = ObjectCache.at()
    dispatches = collect(sources_of(given), target, cache)[:: given.every]
    found = choices(dispatches, target, cache)
    cache.close()
    note("")
    if not found:
        note("no nest has a choice")
        return 1
    if given.json:
        given.json.write_text(json.dumps([asdict(choice) for choice in found], indent=1))
    print(f"{pairs_table(found)}\n\n{summary(found, given.worst)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
