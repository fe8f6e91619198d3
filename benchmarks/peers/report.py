"""Tables of one run from the results file.

  report.py RESULTS.jsonl [--run ID]     the last run, or the one named
  report.py RESULTS.jsonl --summary FILE   its medians as JSON: what docs/figures.py draws

Reads records only; knows nothing of how a peer is run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PRODUCTS = ("aotc", "aotc_vk")  # one of them is in a run: the CPU and the Vulkan race are two
ERROR_LIMIT = 1e-4

Record = dict
Cell = float | None
Lookup = Callable[[str, str], Cell]


@dataclass(frozen=True)
class Metric:
    title: str
    kind: str
    key: str
    unit: float  # of one table unit, in the record's unit
    digits: int
    floor_key: str = ""  # the share of the Python interpreter, where a peer has one


METRICS = (
    Metric("Steady latency, ms", "steady", "median_ms", 1, 3),
    Metric("Cold start, ms: spawn to first result", "cold", "cold_ms", 1, 1, "floor_ms"),
    Metric("Convert or compile, s", "convert", "convert_ms", 1e3, 2),
    Metric("Artifact, MB", "artifact", "bytes", 1e6, 2),
    Metric("Peak RSS of a cold process, MB", "cold", "rss_kb", 1e3, 1, "floor_rss_kb"),
)


class Results:
    """The records of one run, with medians over its rounds."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.models = list(dict.fromkeys(r["model"] for r in records if "model" in r))
        seen = dict.fromkeys(r["peer"] for r in records if "peer" in r)
        self.product = next((p for p in seen if p in PRODUCTS), PRODUCTS[0])
        self.peers = sorted(seen, key=self.product.__eq__)  # the product last
        self.python_peers = {r["peer"] for r in records if "floor_rss_kb" in r}

    def values(
        self, kind: str, model: str, peer: str, key: str, floor_key: str = ""
    ) -> list[float]:
        wanted = (kind, model, peer)
        rows = (r for r in self.records if (r["kind"], r.get("model"), r.get("peer")) == wanted)
        return [r[key] - r.get(floor_key, 0) for r in rows if r.get(key) is not None]

    def median(self, kind: str, model: str, peer: str, key: str, floor_key: str = "") -> Cell:
        values = self.values(kind, model, peer, key, floor_key)
        return statistics.median(values) if values else None

    def metric(self, metric: Metric, model: str, peer: str) -> Cell:
        value = self.median(metric.kind, model, peer, metric.key, metric.floor_key)
        return None if value is None else value / metric.unit

    def is_right(self, model: str, peer: str) -> bool:
        """Whether its outputs were compared and are close enough: only then do its times count."""
        error = self.median("check", model, peer, "error")
        return error is not None and error <= ERROR_LIMIT

    def spread_percent(self, model: str, peer: str) -> Cell:
        values = self.values("steady", model, peer, "median_ms")
        if len(values) < 2:
            return None
        return 100 * (max(values) - min(values)) / statistics.median(values)

    def gflops(self, model: str, peer: str) -> Cell:
        ms = self.median("steady", model, peer, "median_ms")
        macs = next(r["macs"] for r in self.records if r["kind"] == "model" and r["model"] == model)
        return 2 * macs / ms / 1e6 if ms else None


def number(value: Cell, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(title: str, head: list[str], rows: list[list[str]]) -> str:
    """Aligned, so that it reads in a terminal as well."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: list[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])])
    return "\n".join([f"### {title}", "", line(head), f"|{rule}|", *map(line, rows), ""])


def geometric_mean(ratios: list[float]) -> str:
    """With the number of models that it is over."""
    if not ratios:
        return "-"
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.2f} ({len(ratios)})"


def metric_table(results: Results, metric: Metric) -> str:
    """One row a model; where the product is in the run, its ratios and their geometric means.

    Whatever gave wrong outputs or none is shown but is neither a best peer nor part of a ratio.
    """
    peers = results.peers
    rivals = (
        {"best": "", "iree": "iree"} if results.product in peers else {}
    )  # ratio -> prefix of peers
    ratios: dict[str, list[float]] = {name: [] for name in rivals}
    rows = []
    for model in results.models:
        cells = {peer: results.metric(metric, model, peer) for peer in peers}
        right = {p: v for p, v in cells.items() if v and v > 0 and results.is_right(model, p)}
        own = right.pop(results.product, None)
        best = min(right, key=right.__getitem__, default="-")
        row = [model, *(number(v, metric.digits) for v in cells.values()), best]
        for name, prefix in rivals.items():
            rival = min((v for p, v in right.items() if p.startswith(prefix)), default=None)
            if own and rival:
                ratios[name].append(own / rival)
            row.append(number(own / rival if own and rival else None, 2))
        rows.append(row)
    if rivals:
        means = [geometric_mean(values) for values in ratios.values()]
        rows.append(["geometric mean (models)", *[""] * (len(peers) + 1), *means])
    starred = results.python_peers if metric.floor_key else set()
    head = ["model", *(f"{p}*" if p in starred else p for p in peers), "best peer"]
    table = markdown(metric.title, [*head, *(f"{results.product}/{name}" for name in rivals)], rows)
    note = "`*` less the share of the Python interpreter, numpy and reading the inputs.\n"
    return f"{table}\n{note}" if starred else table


def plain_table(results: Results, title: str, look_up: Lookup, digits: int) -> str:
    rows = [
        [model, *(number(look_up(model, peer), digits) for peer in results.peers)]
        for model in results.models
    ]
    if all(cell == "-" for row in rows for cell in row[1:]):
        return ""
    return markdown(title, ["model", *results.peers], rows)


def error_table(results: Results) -> str:
    def cell(model: str, peer: str) -> str:
        error = results.median("check", model, peer, "error")
        return "-" if error is None else f"{error:.1e}{' !' if not error <= ERROR_LIMIT else ''}"

    rows = [[m, *(cell(m, p) for p in results.peers)] for m in results.models]
    title = f"Largest error / largest output magnitude (! above {ERROR_LIMIT:.0e})"
    return markdown(title, ["model", *results.peers], rows)


def phase_table(results: Results) -> str:
    phases: dict[str, dict[str, list[float]]] = {}
    for r in results.records:
        if r["kind"] == "cold" and r["peer"] == results.product:
            for phase, ms in (r.get("phases_ms") or {}).items():
                phases.setdefault(r["model"], {}).setdefault(phase, []).append(ms)
    if not phases:
        return ""
    names = list(dict.fromkeys(name for by_name in phases.values() for name in by_name))
    rows = [
        [m, *(number(statistics.median(v[n]) if n in v else None, 3) for n in names)]
        for m, v in phases.items()
    ]
    return markdown(f"{results.product}: phases of a cold start, ms", ["model", *names], rows)


def dispatch_table(results: Results) -> str:
    rows = [
        [r["model"], r["peer"], str(r["dispatches"]), str(r["executables"])]
        for r in results.records
        if r["kind"] == "convert" and "dispatches" in r
    ]
    title = "Dispatches and executables, one-time initializers included"
    return markdown(title, ["model", "peer", "dispatches", "executables"], rows)


def failure_list(results: Results) -> str:
    lines = [
        f"- {r['model']}, {r['peer']}, {r['stage']}: {r['error']}"
        for r in results.records
        if r["kind"] == "fail"
    ]
    return "\n".join(["### Failures", "", *lines, ""]) if lines else ""


def render(records: list[Record]) -> str:
    results, kinds = Results(records), {r["kind"] for r in records}
    out = [metric_table(results, metric) for metric in METRICS if metric.kind in kinds]
    if "steady" in kinds:
        title = "Spread of the rounds, (max - min) / median, %"
        out.append(plain_table(results, title, results.spread_percent, 0))
        out.append(plain_table(results, "Achieved GFLOP/s (2 x MAC)", results.gflops, 1))
    if "check" in kinds:
        out.append(error_table(results))
    if results.product in results.peers and "cold" in kinds:
        out.append(phase_table(results))
    if any("dispatches" in r for r in records):
        out.append(dispatch_table(results))
    out.append(failure_list(results))
    return "\n".join(filter(None, out))


# What an application has to have with it, of the peers that were installed as C libraries.
LIBRARIES = {
    "ort": ("ort/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*",),
    "ov": tuple(
        f"ov/lib/python3*/site-packages/openvino/libs/lib{name}.so*"
        for name in ("openvino", "openvino_intel_cpu_plugin", "openvino_ir_frontend", "tbb")
    ),
}
PACKAGES = {"ort": "onnxruntime", "ov": "openvino", "ncnn": "ncnn", "mnn": "MNN"}


def installed_version(venvs: Path, peer: str) -> str | None:
    """The version of a peer's package, by the folder of its metadata."""
    found = list(venvs.glob(f"{peer}/lib/python3*/site-packages/{PACKAGES[peer]}-*.dist-info"))
    found += list(venvs.glob(f"{peer}/lib/python3*/site-packages/{peer}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else None


def summary(records: list[Record], venvs: Path) -> dict:
    """Medians by metric, model and peer, and what a reader must know of the run."""
    results = Results(records)
    host = next(r for r in records if r["kind"] == "host")
    rivals = [p for p in results.peers if p in PACKAGES]
    libraries = {
        peer: sum(p.stat().st_size for pattern in patterns for p in venvs.glob(pattern))
        for peer, patterns in LIBRARIES.items()
        if peer in rivals
    }
    rounds = max(r["round"] for r in records if r["kind"] == "steady") + 1
    return {
        "run": host["run"],
        "date": datetime.fromtimestamp(host["time"], UTC).strftime("%Y-%m-%d"),
        "cpu": host["cpu"],
        "cpus": host["cpus"],
        "threads": host["threads"],
        "rounds": rounds,
        "versions": {peer: installed_version(venvs, peer) for peer in rivals},
        "library_bytes": libraries,
        "metrics": {
            metric.kind if metric.key != "rss_kb" else "memory": {
                model: {
                    peer: round(value, 4)
                    for peer in results.peers
                    if (value := results.metric(metric, model, peer)) is not None
                }
                for model in results.models
            }
            for metric in METRICS
        },
        "right": {
            model: [peer for peer in results.peers if results.is_right(model, peer)]
            for model in results.models
        },
    }


def load(path: Path, run: str | None) -> list[Record]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    wanted = run or (records[-1]["run"] if records else None)
    return [r for r in records if r["run"] == wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--run", help="the id at the head of the run")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the medians as JSON")
    args = parser.parse_args()
    records = load(args.results, args.run)
    if not records:
        parser.error("no such run")
    if args.summary is not None:
        facts = summary(records, args.results.parent / "venvs")
        args.summary.write_text(json.dumps(facts, indent=1) + "\n")
        return 0
    print(render(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
