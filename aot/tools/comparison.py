"""Compares two reports: the statistics of two compiles, or the times of two benchmarks.

Owns which figures are paired, and what counts as beyond the noise. Measures nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.base.records import dataclass
from aot.driver.provenance import FORMAT
from aot.errors import CompileError

BEYOND, WITHIN, UNKNOWN, EXACT = "beyond noise", "within noise", "noise not known", "exact"
# Parts of statistics that are measured once, so that no spread is known.
_MEASURED_ONCE = ("seconds", "seconds_saved", "peak_rss_kb", "phases_ms")
_COMPILE_PARTS = ("variants", "rodata")
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Range:
    """A figure with the interval in which its repetitions were; None where it was measured once."""

    value: float
    spread: tuple[float, float] | None = None
    is_exact: bool = False


@dataclass(frozen=True)
class Change:
    """A figure of both reports.

    Attributes:
        before, after: None where one of them has no such figure.
        verdict: `exact` for counts, which have no noise.
    """

    name: str
    before: float | None
    after: float | None
    verdict: str

    @property
    def ratio(self) -> float | None:
        """after / before, where both are there and the first is not zero."""
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before

    @property
    def is_change(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        kind: `compile` or `bench`.
        remarks: why figures may differ that are not the change of interest: other models, versions,
            machines, options.
        changes: all figures, those of the first report in its order.
    """

    kind: str
    remarks: tuple[str, ...]
    changes: tuple[Change, ...]


def compare(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Compares two files of `aotc compile --stats`, or of `aotc bench --json`.

    Counts and bytes are exact. A time changed beyond the noise where the intervals of its
    repetitions are apart: of rounds, their least and largest median; of the runs of one process,
    from the least to the 90th percentile; of a dispatch, from the least to as far above the median.

    Raises:
        CompileError: a file cannot be read, is no report, is of a format of another version, or the
            two are of different kinds.
    """
    one, other = (_read(path) for path in (first, second))
    kinds = [report["run"]["kind"] for report in (one, other)]
    modes = [_mode(report) for report in (one, other)]
    if modes[0] != modes[1]:
        raise CompileError(
            f"{os.fspath(first)} is of {modes[0]}, {os.fspath(second)} of {modes[1]}: they have no "
            "figure in common"
        )
    try:
        before, after = (_checked(_figures(report)) for report in (one, other))
        remarks = tuple(_remarks(one["run"], other["run"]))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as e:
        raise CompileError(
            f"{os.fspath(first)} and {os.fspath(second)} are damaged: a figure is missing or of "
            f"another type ({e})"
        ) from e
    names = [*before, *(name for name in after if name not in before)]
    changes = [_change(name, before.get(name), after.get(name)) for name in names]
    return Comparison(kinds[0], remarks, tuple(changes))


def _checked(figures: Iterable[tuple[str, Range]]) -> dict[str, Range]:
    """Figures by name.

    Raises:
        TypeError, ValueError, OverflowError: one is no finite number.
    """
    found = dict(figures)
    for name, figure in found.items():
        for value in (figure.value, *(figure.spread or ())):
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}")
    return found


# ---- reading ----


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a report.

    Raises:
        CompileError: as for `compare`.
    """
    name = os.fspath(path)
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise CompileError(f"{name} is no report: it has more than {_MOST_BYTES >> 20} MiB")
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise CompileError(f"cannot read {name}: {str(error.strerror).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise CompileError(f"{name} is no report: it is no JSON") from error
    how = "'aotc compile --stats FILE' and 'aotc bench --json' write them"
    if not isinstance(found, dict) or not ({"variants", "module"} & set(found)):
        raise CompileError(f"{name} is no report: {how}")
    run = found.get("run")
    if not isinstance(run, dict) or "format" not in run:
        raise CompileError(
            f"{name} is a report of an older version, which does not say what it is of: write it "
            "again with this one"
        )
    if run["format"] != FORMAT:
        raise CompileError(
            f"{name} is a report of format {run['format']!r}, of aotc {run.get('aotc')}: this "
            f"version reads format {FORMAT}; write it again, or compare with that version"
        )
    if run.get("kind") not in ("compile", "bench"):
        raise CompileError(f"{name} is a report of kind {run.get('kind')!r}, which is not known")
    return found


def _mode(report: Mapping[str, Any]) -> str:
    """What was done, for people."""
    if report["run"]["kind"] == "compile":
        return "a compile"
    if "cold" in report:
        return "cold starts"
    if "round_medians_ms" in report:
        return "a benchmark against other engines"
    return "shaders" if "levels" in report else "a benchmark"


# ---- figures ----


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    kind = {
        "a compile": _of_compile,
        "cold starts": _of_cold,
        "a benchmark against other engines": _of_engines,
        "a benchmark": _of_runs,
        "shaders": _of_shaders,
    }
    return kind[_mode(report)](report)


def _of_compile(report: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    if "module" in report["run"]:
        yield "file bytes", Range(report["run"]["module"]["bytes"], is_exact=True)
    for section in report["variants"]:
        yield from _numbers(section, section["target"])
    yield from _numbers(report["rodata"], "rodata")


def _numbers(part: Any, path: str) -> Iterator[tuple[str, Range]]:
    """The numbers of plain data, by path; of a list, how long it is."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _numbers(value, f"{path}.{key}")
    elif isinstance(part, list):
        yield path, Range(len(part), is_exact=True)
    elif isinstance(part, int | float) and not isinstance(part, bool):
        is_measured = any(word in _MEASURED_ONCE for word in path.split("."))
        yield path, Range(part, is_exact=not is_measured)


def _of_runs(report: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    least = report["min_ms"]
    yield "median_ms", Range(report["median_ms"], (least, report["p90_ms"]))
    for key in ("arena_bytes", "scratch_bytes", "code_bytes"):
        yield key, Range(report[key], is_exact=True)
    yield "peak_rss_kb", Range(report["peak_rss_kb"])
    for name, value in report["phases_ms"].items():
        yield f"phases_ms.{name}", Range(value)
    seen: Counter[str] = Counter()
    for row in report.get("dispatches", ()):
        name = row["node"] or row["kind"]
        seen[name] += 1
        again = f" ({seen[name]})" if seen[name] > 1 else ""
        median, least = row["median_ms"], row["min_ms"]
        yield f"dispatch {name}{again}", Range(median, (least, 2 * median - least))


def _of_cold(report: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    for state in ("warm", "dropped"):
        of = report["cold"].get(state)
        if of is None:
            continue
        total, least = of["total_ms"], of["min_total_ms"]
        yield f"{state}.total_ms", Range(total, (least, 2 * total - least))
        for name, value in of["phases_ms"].items():
            yield f"{state}.phases_ms.{name}", Range(value)
        yield f"{state}.peak_rss_kb", Range(of["peak_rss_kb"])


def _of_engines(report: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    for name, median in report["median_ms"].items():
        rounds = report["round_medians_ms"][name]
        yield f"{name}.median_ms", Range(median, (min(rounds), max(rounds)))
    for name, value in report["ratio"].items():
        ours, theirs = (report["round_medians_ms"][key] for key in ("aotc", name))
        spread = (min(ours) / max(theirs), max(ours) / min(theirs))
        yield f"ratio to {name}", Range(value, spread)


def _of_shaders(report: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    for name, level in report["levels"].items():
        for key in ("pipelines", "dispatches", "words"):
            yield f"{name}.{key}", Range(level[key], is_exact=True)
        for how, run in (*level["cold"].items(), ("cached", level["cached"])):
            yield f"{name}.{how}.total_ms", Range(run["total_ms"])


def _change(name: str, before: Range | None, after: Range | None) -> Change:
    was, became = (None if r is None else r.value for r in (before, after))
    return Change(name, was, became, _verdict(before, after))


def _verdict(before: Range | None, after: Range | None) -> str:
    known = [r for r in (before, after) if r is not None]
    if all(r.is_exact for r in known):
        return EXACT
    spreads = [r.spread for r in known if r.spread is not None]
    if len(spreads) < 2:
        return UNKNOWN
    (low, high), (other_low, other_high) = spreads
    return BEYOND if high < other_low or other_high < low else WITHIN


# ---- what else differs ----


def _remarks(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Differences between two runs that explain a change, or forbid to read one."""
    if one["aotc"] != other["aotc"]:
        yield f"of other versions: aotc {one['aotc']} and {other['aotc']}"
    yield from _model_remarks(one, other)
    for key, what in (("cpu", "processors"), ("cores", "numbers of cores"), ("os", "systems")):
        if one.get(key) != other.get(key):
            yield f"on other {what}: {one.get(key)} and {other.get(key)}; times tell nothing"
    versions = [run.get("versions", {}) for run in (one, other)]
    for name in sorted({*versions[0], *versions[1]}):
        pair = [str(v.get(name, "none")) for v in versions]
        if pair[0] != pair[1]:
            yield f"with other versions of {name}: {pair[0]} and {pair[1]}"
    if one.get("command") != other.get("command"):
        yield f"by other commands: {_command(one)}; {_command(other)}"


def _command(run: Mapping[str, Any]) -> str:
    return run.get("command") or "Python"


def _model_remarks(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    if one["kind"] == "compile":
        given = [run.get("models", ()) for run in (one, other)]
        models = [_identities(found) for found in given]
        names = [" ".join(m.get("name", "?") for m in found) for found in given]
        if models[0] != models[1]:
            same = ", which are other files" if names[0] == names[1] else ""
            yield f"of different models: {names[0]} and {names[1]}{same}"
        return
    signatures = [run.get("signature") for run in (one, other)]
    if signatures[0] != signatures[1]:
        pair = [", ".join(s or ("nothing known",)) for s in signatures]
        yield f"of different models, by their inputs and outputs: {pair[0]}; {pair[1]}"
    for key, what in (("shapes", "shapes"), ("threads", "threads"), ("target", "targets")):
        if one.get(key) != other.get(key):
            yield f"with other {what}: {_plain(one.get(key))} and {_plain(other.get(key))}"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={'x'.join(map(str, v))}" for k, v in value.items()) or "none given"
    return str(value)


def _identities(models: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [model.get("digest", model.get("name")) for model in models]
