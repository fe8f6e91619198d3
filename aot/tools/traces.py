"""Compiles and benchmarks as traces in the Trace Event format, which Perfetto and Chromium open.

Format: "Trace Event Format", the Chromium project: complete events (`ph` is `X`) with `ts` and
`dur` in microseconds, and metadata events (`M`) that name processes and threads. Measures nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.link.files import write_atomically

if TYPE_CHECKING:
    from aot.report.details import Details

Event = dict[str, Any]


def compile_trace(details: Details, run: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of a compile: its stages, and within them the runs of passes, as they happened.

    Args:
        details: of `aot.compile(..., details=True)`.
        run: facts of `aot.driver.provenance`.
    """
    spans: dict[tuple[str, float], tuple[str, float, str]] = {}
    for variant in details.variants:
        for stage in variant.stages:
            spans.setdefault((stage.name, stage.start), ("stage", stage.seconds, variant.target))
        for step in variant.passes:
            key = (step.name, step.start)
            spans.setdefault(key, ("pass", step.seconds, variant.target))
    begin = min((start for _, start in spans), default=0.0)
    events = [
        _complete(name, kind, 1e6 * (start - begin), 1e6 * seconds, 1, {"target": target})
        for (name, start), (kind, seconds, target) in sorted(spans.items(), key=_by_start)
    ]
    return _trace("aotc compile", {1: "compile"}, events, run)


def _by_start(item: tuple[tuple[str, float], tuple[str, float, str]]) -> tuple[float, float]:
    (_, start), (_, seconds, _) = item
    return start, -seconds


def bench_trace(facts: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of a benchmark: the phases of the process, then one run's dispatches.

    A dispatch lasts as long as the median of its runs, and begins where the one before it ends:
    what is shown is where the time of a run goes, not a run that was recorded.

    Args:
        facts: of `aotc bench --json`, of consecutive runs or of cold starts.
        run: facts of `aot.driver.provenance`.
    """
    events: list[Event] = []
    threads = {}
    for thread, (title, phases) in enumerate(_phases(facts).items(), 1):
        threads[thread] = title
        events += _one_after_another([(n, "phase", ms, {}) for n, ms in phases.items()], thread)
    if "dispatches" in facts:
        thread = len(threads) + 1
        threads[thread] = "a run, by medians of its dispatches"
        rows = facts["dispatches"]
        events += _one_after_another([_dispatch(row) for row in rows], thread)
    return _trace("aotc bench", threads, events, run)


def _phases(facts: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """The phases of a process by what the process was."""
    if "cold" in facts:
        names = {"warm": "file in the page cache", "dropped": "file out of the page cache"}
        cold = facts["cold"]
        return {
            f"cold start, {name}": cold[k]["phases_ms"] for k, name in names.items() if k in cold
        }
    return {"start": facts["phases_ms"]} if "phases_ms" in facts else {}


def _dispatch(row: Mapping[str, Any]) -> tuple[str, str, float, dict[str, Any]]:
    keys = ("executable", "grid", "threads", "count", "min_ms", "flops", "bytes", "gflops", "gbs")
    known = {key: row[key] for key in keys if row.get(key) is not None}
    return row["node"] or row["kind"], row["kind"], row["median_ms"], known


def _one_after_another(
    lengths: Sequence[tuple[str, str, float, dict[str, Any]]], thread: int
) -> Iterator[Event]:
    at = 0.0
    for name, kind, ms, args in lengths:
        yield _complete(name, kind, at, 1e3 * ms, thread, args)
        at += 1e3 * ms


def _complete(
    name: str, kind: str, start_us: float, length_us: float, thread: int, args: Mapping[str, Any]
) -> Event:
    times = {"ts": round(start_us, 3), "dur": round(length_us, 3)}
    return {"name": name, "cat": kind, "ph": "X", **times, "pid": 1, "tid": thread, "args": args}


def _trace(
    process: str, threads: Mapping[int, str], events: Sequence[Event], run: Mapping[str, Any]
) -> dict[str, Any]:
    names = [_named("process_name", process, 0)]
    names += [_named("thread_name", name, thread) for thread, name in threads.items()]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": dict(run)}


def _named(what: str, name: str, thread: int) -> Event:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def write_trace(trace: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a trace as JSON, whole or not at all.

    Raises:
        CompileError: `path` cannot be written.
    """
    write_atomically(Path(path), [(json.dumps(trace, indent=1) + "\n").encode()])
