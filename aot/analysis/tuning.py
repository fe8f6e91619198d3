"""Tuning results: a table from an executable's key to its fastest choice.

Owns what a key says of an executable: its text without what the plan decides, the extents that its
dispatches give it, the target's facts and the compiler. Reads no file and measures nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields

from aot.analysis.cost.candidates import Choice, Run
from aot.analysis.stages import ALGORITHM, DIRECT
from aot.base.records import dataclass
from aot.ir.clone import clone_function
from aot.ir.graph import Function
from aot.ir.rewriter import Rewriter
from aot.ir.text.printer import print_function
from aot.target.model import Target

_NO_FACTS = ("summary", "aliases", "host", "file")


@dataclass(frozen=True)
class Tuning:
    """A table of measured choices.

    Attributes:
        compiler: the state of the compiler that they were measured with.
    """

    compiler: str
    choices: Mapping[str, Choice] = field(default_factory=dict)

    def find(self, function: Function, runs: Sequence[Run], target: Target) -> Choice | None:
        """The recorded choice for an executable; None if it was not measured."""
        return self.choices.get(self.key(function, runs, target)) if self.choices else None

    def key(self, function: Function, runs: Sequence[Run], target: Target) -> str:
        """The hex key under which tuning records an executable with its dispatches on a target.

        The plan's choices are no part of it, so that what was measured stays found when the cost
        model changes; whether a choice is still admitted is asked when it is used.
        """
        plain = clone_function(function)
        plain.name, plain.schedule = "e", ()
        for op in plain.block:
            if ALGORITHM in op.attrs:
                Rewriter(plain).set_attr(op, ALGORITHM, DIRECT)
        extents = sorted((tuple(map(str, run.values.values())), run.count) for run in runs)
        facts = [(f.name, repr(getattr(target, f.name))) for f in fields(target)]
        known = [fact for fact in facts if fact[0] not in _NO_FACTS]
        digest = hashlib.sha256()
        for part in (self.compiler, print_function(plain), repr(extents), repr(known)):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()[:40]
