"""What was measured, as text: a line for each kind, the worst dispatches, what got worse."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from benchmarks.kernels.timing import Result

# a dispatch got worse where its ratio is so much larger, and its time so many seconds longer
WORSE, LEAST_SECONDS = 1.25, 1e-6
TEXT = 150
# ratios of which the table says how many dispatches are within them
WITHIN = (1.6, 3.0, 6.0)


def percentile(values: Sequence[float], part: float) -> float:
    """The value that `part` of them do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def weighted(results: Sequence[Result]) -> float:
    """All time over all bounds, each dispatch as often as models have it."""
    seconds = sum(r.seconds * r.count for r in results)
    return seconds / sum(r.bound * r.count for r in results)


def kinds_table(results: Sequence[Result]) -> str:
    """Of each kind and element type: how many, the median of time over bound, the 90th percentile,
    all time over all bounds, and its part of all time that is above the bounds."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.kind, result.dtype].append(result)
    above = sum(_above(r) for r in results) or 1.0
    lines = [
        f"{'kind':40} {'dtype':5} {'count':>5} {'median':>7} {'p90':>7} {'by time':>7} {'above':>6}"
    ]
    rows = [(kind, dtype, found) for (kind, dtype), found in sorted(groups.items())]
    for kind, dtype, found in [*rows, ("all", "", list(results))]:
        ratios = [r.ratio for r in found]
        part = sum(map(_above, found)) / above
        lines.append(
            f"{kind:40} {dtype:5} {len(found):5} {statistics.median(ratios):7.2f} "
            f"{percentile(ratios, 0.9):7.2f} {weighted(found):7.2f} {100 * part:5.1f}%"
        )
    return "\n".join(lines)


def shares(results: Sequence[Result]) -> str:
    """Which part of all dispatches is within some ratios of its bound."""
    parts = ", ".join(
        f"{100 * sum(r.ratio <= limit for r in results) / len(results):.1f} % within {limit:g}"
        for limit in WITHIN
    )
    return f"{len(results)} dispatches: {parts} of the bound, all {weighted(results):.2f} by time"


def _above(result: Result) -> float:
    return max(0.0, result.seconds - result.bound) * result.count


def worst_table(results: Sequence[Result], count: int = 10) -> str:
    """The dispatches whose time is most above their bound, by ratio."""
    found = sorted(results, key=lambda r: -r.ratio)[:count]
    return "\n".join(line(r) for r in found)


def line(result: Result) -> str:
    """Ratio, time, bound, kind, model, node and extents."""
    text = result.text if len(result.text) <= TEXT else f"{result.text[:TEXT]}..."
    return (
        f"{result.ratio:7.2f} {_time(result.seconds)} over {_time(result.bound)}  {result.kind} "
        f"{result.dtype}  {result.model} {result.node}\n{'':8}{text}"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:10.2f} us"


def comparison(before: Sequence[Result], after: Sequence[Result]) -> str:
    """What got worse and what better: dispatches that compute the same at the same extents, their
    times as parts of the bounds that were measured beside them."""
    old = {r.text: r for r in before}
    pairs = [(old[r.text], r) for r in after if r.text in old]
    worse = [(a, b) for a, b in pairs if _is_worse(a, b)]
    better = [(a, b) for a, b in pairs if _is_worse(b, a)]
    worse.sort(key=lambda p: p[0].ratio / p[1].ratio)
    better.sort(key=lambda p: p[1].ratio / p[0].ratio)
    lines = [
        f"{len(pairs)} dispatches in both: {len(worse)} got worse, {len(better)} better; "
        f"{len(after) - len(pairs)} are new, {len(before) - len(pairs)} gone"
    ]
    if pairs:
        ratios = [b.ratio / a.ratio for a, b in pairs]
        lines.append(f"median of after over before {statistics.median(ratios):.3f}")
    for title, found in (("worse", worse), ("better", better)):
        lines += [f"{title}: {a.ratio:.2f} -> {b.ratio:.2f}\n{line(b)}" for a, b in found]
    return "\n".join(lines)


def _is_worse(before: Result, after: Result) -> bool:
    longer = (after.ratio - before.ratio) * after.bound
    return after.ratio > WORSE * before.ratio and longer > LEAST_SECONDS
