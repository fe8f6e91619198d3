"""Fusion remarks: why regions end where they do, recorded by the passes that form them on request.

Filled by `fuse` and `join-regions` from the same predicates that decide; decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from aot.base.records import dataclass
from aot.ir.graph import Op


@dataclass
class FusionRemarks:
    """
    Attributes:
        groups: what `fuse` formed, by number, of each region.
        roots: the op that each group grew from, as the text has it, and its node.
        cuts: why two groups stayed apart, by the one that makes a value and the one that reads it:
            first what ended the former, then what kept the latter from taking it in.
        weighed: both prices of what a group computes in several passes, by its number.
    """

    groups: dict[Op, tuple[int, ...]] = field(default_factory=dict)
    roots: list[tuple[str, str]] = field(default_factory=list)
    cuts: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    weighed: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def formed(self, region: Op, number: int, weighed: Sequence[str] = ()) -> None:
        """Group `number` became a region."""
        self.groups[region] = (number,)
        self.weighed[number] = tuple(weighed)

    def joined(self, made: Op, first: Op, second: Op) -> None:
        """Two regions became one."""
        self.groups[made] = self.groups.pop(first, ()) + self.groups.pop(second, ())

    def reasons(self, first: Op, second: Op) -> list[str]:
        """Why `fuse` kept the groups of two regions apart that now stand in them."""
        found: dict[str, None] = {}
        for a in self.groups.get(first, ()):
            for b in self.groups.get(second, ()):
                found.update(dict.fromkeys(self.cuts.get((a, b), ())))
        return list(found)
