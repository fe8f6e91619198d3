"""Runners that tell chosen times instead of measuring, so that what tuning does is told in advance.

python tests/support/tuning_runners.py MODULE ...    as `--tune-runner`: times by
                                             `AOT_TEST_TIMES`, JSON of milliseconds by choice
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aot.link.program import decode
from aot.link.reader import read_module_file

Time = Callable[[str, int], float]
"""Milliseconds of a choice, by its text, in a call of this number."""


def dispatched_choices(module: Path) -> Iterator[str]:
    """The choice of each dispatch of a module to be measured, "" where it is the plan's; equal code
    has the name of one."""
    (variant,) = read_module_file(module).image.variants
    (entry,) = variant.entry_points
    for instruction in decode(entry.program.code):
        if instruction.name == "DISPATCH":
            yield variant.executables[instruction.operands[0]].name.partition(": ")[2]


@dataclass
class ToldRunner:
    """Attributes:
    calls: the choices that each call timed.
    again: what the second turn of the first choice takes, as a multiple of the first one.
    """

    time: Time
    again: float = 1.0
    calls: list[list[str]] = field(default_factory=list)

    def __call__(
        self, module: Path, options: Sequence[str], runs: int, seconds: float
    ) -> list[float]:
        names = list(dispatched_choices(module))
        self.calls.append(names)
        times = [self.time(name, len(self.calls)) for name in names]
        times[-1] *= self.again
        return times


def main() -> None:
    told = json.loads(os.environ["AOT_TEST_TIMES"])
    launches = []
    for name in dispatched_choices(Path(sys.argv[1])):
        least = told.get(name, 1.0)
        launches.append({"kind": "dispatch", "name": name, "min_ms": least})
    sys.stdout.write(f"some words\n{json.dumps({'profile': {'launches': launches}})}\n")


if __name__ == "__main__":
    main()
