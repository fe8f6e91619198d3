"""Loops that only their condition ends, and their limit of iterations.

A model may have such a loop whose condition never becomes false. What runs it ends it with an error
that names it, rather than never. Owns the limit; never looks at what a loop computes.
"""

from __future__ import annotations

from aot.ir.graph import Op

MOST_RUNS = 1_000_000
"""Runs after which a loop that only its condition ends must have ended, where the user gives no
other number. Loops of models that people have make some thousands."""

NO_COUNT = 2**31 - 1
"""A trip count of at least this is what exporters write for none."""


def most_runs(op: Op, trip_count: int | None = None) -> int | None:
    """The limit of iterations of a `loop`; None where a trip count, shapes or the user's bound end
    it.

    Args:
        trip_count: the operand, where that is known.
    """
    counts = [op.attrs["trips"], trip_count]
    if any(c not in (None, -1) and not (isinstance(c, int) and c >= NO_COUNT) for c in counts):
        return None
    given = op.int("most")
    return given or MOST_RUNS


def too_many_runs(op: Op) -> tuple[str, str]:
    """(text before the number of iterations, text after it) of the error for a loop that exceeds
    its limit.
    """
    name = op.origin or op.name
    return f"{name}: its condition has not ended it after ", (
        f" runs; if it does end, allow it more with --max {name}=N"
    )
