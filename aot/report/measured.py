"""The contents of a report on a benchmark: bars, tables and a roofline.

Owns the choice; what the figures mean is said in `aot.tools.bench`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from aot.base.records import dataclass
from aot.report import drawings
from aot.report.contents import MOST_ROWS, Part, Stat, parts_of
from aot.report.numbers import TIMES, Figure, count, extents, milliseconds, ratio, size

_QUANTILES = ("min", "median", "mean", "p90", "p99", "max")
_CREATIONS = ("serial", "batch", "parallel")


@dataclass(frozen=True)
class Bar:
    """A bar with parts; `length` is its fraction of the longest bar in its group."""

    name: str
    parts: Sequence[Part]
    figure: Figure
    length: Figure
    note: str = ""


@dataclass(frozen=True)
class Launch:
    """A measured dispatch, copy or fill; `number` counts dispatches only."""

    number: int | None
    node: str
    executable: str
    grid: str
    threads: int
    time: Figure
    share: Figure
    dtype: str
    gflops: str
    of_peak: str
    gbs: str


@dataclass(frozen=True)
class Steady:
    """Measurements of consecutive runs."""

    where: str
    stats: Sequence[Stat]
    quantiles: Sequence[Bar]
    machine: str
    roofline: Markup | None
    launches: Sequence[Launch]
    launches_left: int


@dataclass(frozen=True)
class Level:
    """Measurements of shaders at one level of deduplication.

    Attributes:
        bars: of creation and of the first run, by how pipelines were created, and cached.
        pipelines: a bar of each, with its words.
    """

    name: str
    pipelines: Figure
    dispatches: Figure
    words: Figure
    bars: Sequence[Bar]
    by_pipeline: Sequence[Bar]
    by_pipeline_left: int


@dataclass(frozen=True)
class Shaders:
    """Measurements of a driver's compile times for shaders."""

    device: str
    is_software: bool
    levels: Sequence[Level]
    gain: str


@dataclass(frozen=True)
class Measurements:
    """The measurements in a report, by kind.

    Attributes:
        cold: a bar for each state of the page cache.
        cold_note: what the system did not let be measured.
        threads: a bar for each number of them.
        engines: a bar for each, ours first.
    """

    steady: Steady | None = None
    cold: Sequence[Bar] = ()
    cold_note: str = ""
    threads: Sequence[Bar] = ()
    engines: Sequence[Bar] = ()
    shaders: Shaders | None = None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> Measurements:
        """The measurements in `facts`, which maps kinds to results as for
        `aot.report.bench_page`."""
        cold = facts.get("cold", {}).get("cold", {})
        left = cold.get("left_in_cache_bytes")
        note = f"{size(left).text} of the file stayed in the page cache." if left else ""
        if "not_dropped" in cold:
            note = f"The page cache was not dropped: {cold['not_dropped']}."
        return Measurements(
            _steady(facts["steady"]) if "steady" in facts else None,
            list(_cold(cold)),
            note,
            list(_threads(facts.get("threads", {}))),
            list(_engines(facts["against"])) if "against" in facts else (),
            _shaders(facts["shaders"]) if "shaders" in facts else None,
        )


# ---- runs ----


def _steady(facts: Mapping[str, Any]) -> Steady:
    longest = facts["max_ms"]
    quantiles = []
    for name in _QUANTILES:
        value = facts[f"{name}_ms"]
        part = Part(name, milliseconds(value), ratio(1, 1), 0)
        quantiles.append(Bar(name, [part], milliseconds(value), ratio(value, longest)))
    rows = facts.get("dispatches", ())
    machine = facts.get("machine")
    threads = facts["threads"]
    peak = memory = None
    if machine and machine["peaks_gops"]:
        peak, memory = max(machine["peaks_gops"].values()) * threads, machine["memory_gbs"]
    return Steady(
        f"{facts['target']} on {facts['device']}, entry point {facts['entry']}, "
        f"{_threads_text(threads)}, code {facts['code_mapping']}",
        list(_steady_stats(facts)),
        quantiles,
        _machine(machine, threads),
        drawings.roofline(list(_points(rows)), peak, memory),
        [_launch(n, row) for n, row in list(_numbered(rows))[:MOST_ROWS]],
        max(0, len(rows) - MOST_ROWS),
    )


def _steady_stats(facts: Mapping[str, Any]) -> Iterator[Stat]:
    yield Stat("median_ms", "median", milliseconds(facts["median_ms"]), f"{facts['runs']:,} runs")
    yield Stat("p99_ms", "99th percentile", milliseconds(facts["p99_ms"]))
    if facts.get("gflops") is not None:
        value = facts["gflops"]
        part = facts["of_peak"]
        note = "" if part is None else f"{ratio(part, 1).text} of the threads' peak"
        yield Stat("gflops", "arithmetic", Figure(value, f"{value:.1f} Gop/s"), note)
    if facts.get("gbs") is not None:
        value = facts["gbs"]
        yield Stat("gbs", "moved at least", Figure(value, f"{value:.1f} GB/s"))
    yield Stat("arena_bytes", "arena", size(facts["arena_bytes"]))
    memory = 1024 * facts["peak_rss_kb"]
    yield Stat("peak_rss_kb", "peak memory of the process", Figure(memory, size(memory).text))


def _machine(machine: Mapping[str, Any] | None, threads: int) -> str:
    if not machine or not machine["peaks_gops"]:
        return ""
    peaks = [f"{peak:.1f} Gop/s in {dtype}" for dtype, peak in machine["peaks_gops"].items()]
    return (
        f"One core of this machine: {', '.join(peaks)} with vectors of "
        f"{machine['vector_bytes']} bytes, {machine['memory_gbs']:.1f} GB/s from memory. The roof "
        f"is {_threads_text(threads)} of the fastest of that arithmetic, and one core's memory."
    )


def _numbered(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """(number, row) of each launch; only dispatches have numbers, the same as on the page of a
    compile."""
    numbers = itertools.count()
    for row in rows:
        yield next(numbers) if row["kind"] == "dispatch" else None, row


def _points(rows: Sequence[Mapping[str, Any]]) -> Iterator[drawings.Point]:
    for number, row in _numbered(rows):
        if row["flops"] and row["bytes"] and row["gflops"]:
            time = milliseconds(row["median_ms"]).text
            what = (
                f"{number} {row['node']} ({row['executable']}): {time}, {row['gflops']:.1f} "
                f"Gop/s, {row['gbs']:.1f} GB/s"
            )
            yield drawings.Point(row["flops"] / row["bytes"], row["gflops"], row["share"], what)


def _launch(number: int | None, row: Mapping[str, Any]) -> Launch:
    times = "" if row["count"] == 1 else f", {row['count']:g} times"
    return Launch(
        number,
        row["node"],
        row["executable"] + times,
        extents(row.get("grid", ())),
        row["threads"],
        milliseconds(row["median_ms"]),
        ratio(row["share"], 1),
        row["dtype"],
        _number(row["gflops"]),
        "" if row["of_peak"] is None else ratio(row["of_peak"], 1).text,
        _number(row["gbs"]),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _threads_text(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _cold(facts: Mapping[str, Any]) -> Iterator[Bar]:
    names = {"warm": "file in the page cache", "dropped": "file out of the page cache"}
    series = {name: facts[key] for key, name in names.items() if key in facts}
    longest = max((of["total_ms"] for of in series.values()), default=0)
    for name, of in series.items():
        parts = list(parts_of(of["phases_ms"], milliseconds))
        total = of["total_ms"]
        note = f"medians of {of['rounds']} processes, {of['peak_rss_kb']:,} kB at most"
        yield Bar(name, parts, milliseconds(total), ratio(total, longest), note)


def _threads(medians: Mapping[int, float]) -> Iterator[Bar]:
    longest = max(medians.values(), default=0)
    for threads, median in medians.items():
        part = Part("median", milliseconds(median), ratio(1, 1), 0)
        gain = (
            f"{medians[1] / median:.2f} {TIMES} one thread" if threads > 1 and 1 in medians else ""
        )
        name = _threads_text(threads)
        yield Bar(name, [part], milliseconds(median), ratio(median, longest), gain)


def _engines(facts: Mapping[str, Any]) -> Iterator[Bar]:
    medians = facts["median_ms"]
    longest = max(medians.values())
    for number, (name, median) in enumerate(medians.items()):
        rounds = facts["round_medians_ms"][name]
        spread = f"{milliseconds(min(rounds)).text} to {milliseconds(max(rounds)).text}"
        note = f"rounds {spread}"
        if name in facts["ratio"]:
            note += f"; aotc takes {facts['ratio'][name]:.2f} of it"
        part = Part(name, milliseconds(median), ratio(1, 1), number % 8)
        yield Bar(name, [part], milliseconds(median), ratio(median, longest), note)


# ---- shaders ----


def _shaders(facts: Mapping[str, Any]) -> Shaders:
    levels = facts["levels"]
    longest = max(
        run["total_ms"] for of in levels.values() for run in (*of["cold"].values(), of["cached"])
    )
    return Shaders(
        f"{facts['target']} on {facts['device']}",
        facts["is_software"],
        [_level(name, of, longest) for name, of in levels.items()],
        _gain(levels),
    )


def _gain(levels: Mapping[str, Any]) -> str:
    """A sentence that compares the compile time at the first and the last level."""
    if len(levels) < 2:
        return ""
    (first, none), *_, (last, full) = levels.items()
    before, after = (min(map(_compiling_ms, of["cold"].values())) for of in (none, full))
    if not after:
        return ""
    words = [sorted(row["words"] for row in of["by_pipeline"]) for of in (none, full)]
    if words[0] == words[1]:
        return f"{first} and {last} have shaders of the same sizes: what differs is noise."
    gain = f"{before / after:.2f} {TIMES} as fast for {last} as for {first}"
    return f"Compiling, which is creation and what a first run takes beyond a second, is {gain}."


def _compiling_ms(run: Mapping[str, Any]) -> float:
    return float(run["create_ms"] + max(0.0, run["first_run_ms"] - run["second_run_ms"]))


def _level(name: str, of: Mapping[str, Any], longest: float) -> Level:
    runs = {f"cold, {c}": of["cold"][c] for c in _CREATIONS} | {"cached, serial": of["cached"]}
    pipelines = sorted(of["by_pipeline"], key=_pipeline_ms, reverse=True)
    most = max(map(_pipeline_ms, pipelines), default=0)
    return Level(
        name,
        count(of["pipelines"]),
        count(of["dispatches"]),
        count(of["words"]),
        [_start_bar(title, run, longest) for title, run in runs.items()],
        [_pipeline_bar(p, most) for p in pipelines[:MOST_ROWS]],
        max(0, len(pipelines) - MOST_ROWS),
    )


def _start_bar(name: str, run: Mapping[str, Any], longest: float) -> Bar:
    """The bar of a start: creation, the extra time of the first run over the second, and the time
    of a run."""
    extra = max(0.0, run["first_run_ms"] - run["second_run_ms"])
    phases = {
        "creating pipelines": run["create_ms"],
        "first run, beyond a second": extra,
        "a run": run["first_run_ms"] - extra,
    }
    total = run["total_ms"]
    parts = list(parts_of(phases, milliseconds))
    return Bar(name, parts, milliseconds(total), ratio(total, longest))


def _pipeline_ms(pipeline: Mapping[str, Any]) -> float:
    return float(pipeline["create_ms"] + pipeline["first_dispatch_ms"])


def _pipeline_bar(pipeline: Mapping[str, Any], longest: float) -> Bar:
    phases = {"create": pipeline["create_ms"], "first dispatch": pipeline["first_dispatch_ms"]}
    cached = pipeline["cached_create_ms"] + pipeline["cached_first_dispatch_ms"]
    total = _pipeline_ms(pipeline)
    note = f"{pipeline['words']:,} words; cached {milliseconds(cached).text}"
    parts = list(parts_of(phases, milliseconds))
    return Bar(pipeline["name"], parts, milliseconds(total), ratio(total, longest), note)
