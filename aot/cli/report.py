"""`aotc report`: what can be done with the reports that other commands have written.

Text only: what is compared, and what is noise, is `aot.tools.comparison`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from aot.cli.text import show_facts, table


@click.group()
def report() -> None:
    """Compare reports that compiles and benchmarks have written.

    \b
    Examples:
      aotc report compare before.json after.json
    """


@report.command()
@click.argument("first", metavar="A.json", type=click.Path())
@click.argument("second", metavar="B.json", type=click.Path())
@click.option("--all", "shows_all", is_flag=True, help="Also show the figures that are equal.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show the N largest changes.")
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def compare(first: str, second: str, shows_all: bool, top: int | None, as_json: bool) -> None:
    """Compare two compiles (--stats) or two benchmarks (--json): what changed, and by how much.

    \b
    Examples:
      aotc compile model.onnx -o a.aotm --stats a.json
      aotc compile model.onnx -o b.aotm --optimize size --stats b.json
      aotc report compare a.json b.json
      aotc bench --json b.aotm > b-times.json
      aotc report compare a-times.json b-times.json --top 10

    Counts and bytes are exact. A time changed beyond the noise where the intervals of its
    repetitions are apart. Differences of models, versions, machines and options are said first.
    """
    from aot.tools.comparison import compare as compared

    found = compared(first, second)
    changes = [c for c in found.changes if shows_all or c.is_change]
    if top is not None:
        changes = sorted(changes, key=_size, reverse=True)[:top]
    facts = {
        "kind": found.kind,
        "remarks": list(found.remarks),
        "changes": [
            {
                "name": c.name,
                "before": c.before,
                "after": c.after,
                "ratio": c.ratio,
                "verdict": c.verdict,
            }
            for c in changes
        ],
        "equal": sum(not c.is_change for c in found.changes),
    }
    show_facts(facts, comparison_text, as_json=as_json)


def _size(change: Any) -> float:
    """How large a change is, by which they are sorted: what only one report has comes first."""
    ratio = change.ratio
    if ratio is None:
        return 0.0 if change.before == change.after else float("inf")
    return float(max(ratio, 1 / ratio) if ratio > 0 else "inf")


def comparison_text(facts: Mapping[str, Any]) -> str:
    """The remarks, then a line for each figure."""
    rows = [
        [
            row["name"],
            _number(row["before"]),
            _number(row["after"]),
            "" if row["ratio"] is None else f"{100 * (row['ratio'] - 1):+.1f}%",
            "" if row["verdict"] == "exact" else row["verdict"],
        ]
        for row in facts["changes"]
    ]
    lines = [f"note: {remark}" for remark in facts["remarks"]]
    if rows:
        head = ("figure", "before", "after", "change", "")
        lines.append(table(head, rows, "before after change"))
    equal = facts["equal"]
    figures = f"{equal} figure is" if equal == 1 else f"{equal} figures are"
    lines.append(f"{figures} equal" if rows else f"nothing differs: {figures} equal")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
