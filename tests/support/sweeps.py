"""What tests run of each rule beside its sample: executables at odd sizes, powers of two and
borders, and who builds them.

A sweep is data; tests/unit/kernels/test_sweeps.py runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.executables import NATIVE, Executable

Built = tuple[Executable, Sequence[str]]
"""An executable, and targets."""


@dataclass(frozen=True)
class Sweep:
    """Attributes:
    name: of the sweep.
    rules: which build what is `built`, and what runs here if the sweep `is_strict`.
    natively: runs here, for each length of vectors of this machine, or `on` some of them.
    in_turn: whether each executable runs for one length, the next one for the next.
    interpreted: runs in the kernel interpreter for targets.
    built: is built by one of the rules for targets.
    others: is built by none of them.
    asks: prefetches something for targets.
    asks_not: prefetches nothing.
    arrays: contents of operands; what is interpreted has the last ones.
    """

    name: str
    rules: tuple[str, ...] = ()
    natively: Sequence[Executable] = ()
    on: Sequence[str] = tuple(NATIVE)
    in_turn: bool = False
    is_strict: bool = False
    interpreted: Sequence[Built] = ()
    built: Sequence[Built] = ()
    others: Sequence[Built] = ()
    asks: Sequence[Built] = ()
    asks_not: Sequence[Built] = ()
    arrays: tuple[str, ...] = ("small",)

    def runs_here(self) -> Iterable[tuple[Executable, list[str]]]:
        """What runs natively, and for which targets."""
        for number, case in enumerate(self.natively):
            names = list(self.on)
            yield case, [names[number % len(names)]] if self.in_turn else names
