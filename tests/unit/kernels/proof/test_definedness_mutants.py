"""The proofs of what is written and of races, on kernels that are wrong.

Correct kernels are changed in one place each. Whichever the interpreter then finds reading what
nobody wrote, leaving a part of its results as it was, or racing must not be proved.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pytest

from aot.errors import InternalError
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Barrier, Kernel, walk
from aot.kernels.ir.text import to_text
from aot.kernels.proof.definedness import check_definedness
from aot.kernels.proof.races import check_races
from aot.target import selection as targets
from tests.support.kernel_mutants import mutants, order_changes
from tests.support.kernel_runs import filled
from tests.support.kernel_steps import cost
from tests.support.random_kernels import random_kernels
from tests.support.tiny_target import tiny

OFTEN = (tiny("x86-64-v3"), "x86-64-v4", tiny("aarch64-generic"), "vulkan-1.1", "nvidia-matrix")
GPUS = ("vulkan-1.1", "nvidia-matrix", "mali-valhall")
_UNDEFINED = re.compile(r"is read where nothing was stored")
_RACE = re.compile(r"race|not independent")

Array = np.ndarray[Any, Any]


def outcome(kernel: Kernel, seed: int) -> str:
    """What a kernel does wrong: "undefined", "races", "fails" otherwise; or "fine"."""
    runs: list[dict[str, Array]] = []
    for pattern in (0, 0xFF):
        rng = np.random.default_rng(seed)
        buffers = {
            b.name: filled(b, pattern if b.is_written else None, rng) for b in kernel.buffers
        }
        try:
            with np.errstate(all="ignore"):
                interpreter.run(kernel, buffers, {}, check_races=not runs)
        except InternalError as error:
            if _RACE.search(str(error)):
                return "races"
            return "undefined" if _UNDEFINED.search(str(error)) else "fails"
        except (ArithmeticError, IndexError, KeyError, ValueError):
            return "fails"  # of what the verifier refuses
        runs.append(buffers)
    for name, array in runs[0].items():
        if not np.array_equal(array.view(np.uint8), runs[1][name].view(np.uint8)):
            return "undefined"
    return "fine"


@dataclass
class Tally:
    """How many mutants there were of each sort, and those that should not have been proved."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_change: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, mutant: Kernel, index_bits: int, seed: int) -> None:
        found = outcome(mutant, seed)
        if found == "fails":
            return
        is_written = not check_definedness(mutant, index_bits=index_bits).unproved
        is_apart = not check_races(mutant, index_bits=index_bits).unproved
        verdict = "proved" if is_written and is_apart else "refused"
        self.counts[verdict, found] += 1
        self.by_change[name, verdict, found] += 1
        if (found == "undefined" and is_written) or (found == "races" and is_apart):
            self.wrong.append(f"{name}: {found}\n{to_text(mutant)}")

    def __str__(self) -> str:
        lines = [f"{v:8} {f:9} {n:6}" for (v, f), n in sorted(self.counts.items())]
        return "\n".join(lines)


def tally(
    seed: int,
    names: tuple[str, ...],
    wanted: int,
    each: int,
    most_cost: int,
    *,
    has_barriers: bool = False,
) -> Tally:
    """So many mutants, `each` of a kernel; of kernels with barriers alone, if so."""
    rng = random.Random(seed)
    found = Tally()
    for made in random_kernels(rng, names):
        if not made.is_whole or cost(made.kernel.body) > most_cost:
            continue
        if has_barriers and not any(isinstance(s, Barrier) for s in walk(made.kernel.body)):
            continue
        bits = made.target.word_bytes * 8
        if check_definedness(made.kernel, index_bits=bits).unproved:
            continue
        if check_races(made.kernel, index_bits=bits).unproved:
            continue
        for name, mutant in islice(mutants(made.kernel, rng, order_changes), each):
            found.add(name, mutant, bits, seed)
        if found.counts.total() >= wanted:
            return found
    raise AssertionError


def test_no_mutant_that_is_wrong_is_proved() -> None:
    found = tally(seed=1, names=OFTEN, wanted=250, each=6, most_cost=30_000)
    print(f"\n{found}")
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.counts["refused", "undefined"] > 60
    assert found.counts["refused", "races"] > 15
    assert found.counts["proved", "fine"] > 30


def test_no_mutant_whose_lanes_meet_is_proved() -> None:
    found = tally(2, GPUS, wanted=60, each=8, most_cost=150_000, has_barriers=True)
    print(f"\n{found}")
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.counts["refused", "races"] > 8


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10, 20))
def test_no_mutant_that_is_wrong_is_proved_anywhere(seed: int) -> None:
    machines = targets.names()
    names = (*machines, *(tiny(n) for n in machines if targets.load(n).gpu is None))
    found = tally(seed, names, wanted=1500, each=10, most_cost=300_000)
    print(f"\n{found}")
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.counts["refused", "undefined"] > 200
    assert found.counts["refused", "races"] > 50
