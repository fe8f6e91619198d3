"""Builds an executable's loop nests by every rule that could, and compares their estimated costs.

For people and tests: prices say where the table of rules may be wrong, they do not choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot.base.records import dataclass
from aot.ir.clone import clone_function
from aot.ir.graph import Function
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import lower, matching_rules, with_rules
from aot.kernels.price.cycles import cycles_of
from aot.target.model import Target


@dataclass(frozen=True)
class Alternative:
    """A candidate kernel for an executable, in which another rule builds one of its loop nests.

    Attributes:
        nest: which of its loop nests.
        rule: the other rule.
        cycles: what all of its kernel takes then, see `cycles_of`.
    """

    nest: int
    rule: str
    function: Function
    kernel: Kernel
    cycles: float


def alternatives(
    function: Function,
    target: Target,
    extents: Mapping[str, int] | None = None,
    alignments: Sequence[int] = (),
) -> list[Alternative]:
    """Candidate kernels for an executable: each has one loop nest built by another of its matching
    rules, in the order of the rule table.

    Args:
        function: an executable whose schedule has rules.
        extents: open extents by name, for prices.
        alignments: of its buffers, as `lower` takes them.
    """
    if not function.schedule:
        return []
    kernel = lower(function, target, alignments)
    found: list[Alternative] = []
    seen = {fingerprint(kernel)}
    for nest, rules in enumerate(matching_rules(function, target, alignments)):
        for rule in rules:
            changed = list(kernel.rules)
            changed[nest] = rule
            other = clone_function(function)
            other.schedule = with_rules(function, changed)
            built = lower(other, target, alignments)
            if fingerprint(built) not in seen:
                seen.add(fingerprint(built))
                price = cycles_of(built, target, extents)
                found.append(Alternative(nest, rule, other, built, price))
    return found
