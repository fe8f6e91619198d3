"""Fusion remarks, recorded on request: why each region ends where it does.

Filled by `fuse` and `join-regions` from the same predicates that decide; decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from aot.base.records import dataclass
from aot.ir.graph import Op


@dataclass
class FusionRemarks:
    """Fusion remarks: records of why regions end.

    Attributes:
        groups: the numbers of the groups of `fuse` in each region.
        roots: (name, node) of the op that each group grew from.
        cuts: (producer group, consumer group) -> why they stayed apart: first why the producer's
            group ended, then why the consumer's did not include it.
        weighed: both costs of values that a group computes in several passes, by group.
    """

    groups: dict[Op, tuple[int, ...]] = field(default_factory=dict)
    roots: list[tuple[str, str]] = field(default_factory=list)
    cuts: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    weighed: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def formed(self, region: Op, number: int, weighed: Sequence[str] = ()) -> None:
        """Records that group `number` became a region."""
        self.groups[region] = (number,)
        self.weighed[number] = tuple(weighed)

    def joined(self, made: Op, first: Op, second: Op) -> None:
        """Records that two regions became one."""
        self.groups[made] = self.groups.pop(first, ()) + self.groups.pop(second, ())

    def reasons(self, first: Op, second: Op) -> list[str]:
        """Why `fuse` kept the groups of two regions apart."""
        found: dict[str, None] = {}
        for a in self.groups.get(first, ()):
            for b in self.groups.get(second, ()):
                found.update(dict.fromkeys(self.cuts.get((a, b), ())))
        return list(found)
