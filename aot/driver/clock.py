"""A stopwatch for the stages of a compile, whose seconds go into its statistics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field

from aot.base.records import dataclass


@dataclass(frozen=True)
class Span:
    """One stretch of a stage; `start` is of `time.perf_counter`, in seconds."""

    name: str
    start: float
    seconds: float


@dataclass
class Clock:
    """A stopwatch with seconds by stage.

    Attributes:
        spans: each stretch of each stage, in the order in which they ended.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def split(self) -> Clock:
        """A clock that goes on from here, apart from this one."""
        return Clock(dict(self.seconds), list(self.spans))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.spans.append(Span(name, start, spent))
