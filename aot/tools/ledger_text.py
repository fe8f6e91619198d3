"""Formats the ledger of deduplication for `aotc inspect --dedup` and `explain-dedup`.

Formats what `aot.driver.ledger` and `aot.driver.missed_merges` found; computes nothing but sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LEVELS = ("structural", "despecialised", "emitted")
_ESTIMATE = (
    "  saved by the first two: an estimate of what was never compiled; - where it is not known to "
    "a quarter"
)
_MECHANISMS = {
    "met": "found",
    "kept": "kept",
    "equal": "equal to others",
    "contained": "inside others",
    "filled": "written by fills",
}


def format_dedup(ledger: Mapping[str, Any]) -> str:
    """The ledger as text: counts and savings by model and target, then those of merging."""
    lines: list[str] = []
    for model in ledger["models"]:
        for variant in model["variants"]:
            lines += ["", *_variant_lines(model, variant["target"], variant)]
        if len(model["variants"]) > 1:
            lines += ["", *_variant_lines(model, "all variants", _total(model["variants"]))]
        lines += ["", f"constants of {_names(model)}", *_rodata_lines(model["rodata"])]
    for merge in ledger["merges"]:
        lines += ["", *_merge_lines(merge)]
    return "\n".join(lines[1:])


def _names(model: Mapping[str, Any]) -> str:
    return ", ".join(model["entry_points"])


def _total(variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over the variants of a file; None for a figure that is unknown for any variant."""
    executables: dict[str, dict[str, float | None]] = {}
    for name in _LEVELS:
        levels = [variant["executables"][name] for variant in variants]
        executables[name] = {
            key: None
            if any(level[key] is None for level in levels)
            else sum(level[key] for level in levels)
            for key in levels[0]
        }
    counts = {key: sum(v[key] for v in variants) for key in ("dispatches", "code_bytes")}
    return {**counts, "executables": executables}


def _variant_lines(
    model: Mapping[str, Any], target: str, variant: Mapping[str, Any]
) -> Iterator[str]:
    count = variant["dispatches"]
    yield (
        f"executables of {_names(model)} for {target}: {count} "
        f"dispatch{'es' * (count != 1)}, {variant['code_bytes']:,} bytes of code"
    )
    levels = {name: variant["executables"][name] for name in _LEVELS}
    is_timed = any("seconds_saved" in level for level in levels.values())
    head = ["level", "found", "kept", "bytes saved", *(["seconds saved"] if is_timed else [])]
    rows = [
        [
            name,
            f"{level['met']:,}",
            f"{level['kept']:,}",
            _figure(level["bytes_saved"], ","),
            *([_figure(level["seconds_saved"], ".2f")] if is_timed else []),
        ]
        for name, level in levels.items()
    ]
    yield from _table(head, rows)
    yield _ESTIMATE


def _figure(value: float | None, form: str) -> str:
    """A number, or a dash if it is unknown or too inexact."""
    return "-" if value is None else format(value, form)


def _rodata_lines(counts: Mapping[str, int]) -> Iterator[str]:
    rows = [[text, f"{counts[f'bytes_{key}']:,}"] for key, text in _MECHANISMS.items()]
    yield from _table(["", "bytes"], rows)


def _merge_lines(merge: Mapping[str, Any]) -> Iterator[str]:
    yield f"merge of {merge['modules']} modules"
    for variant in merge["variants"]:
        executables, functions = variant["executables"], variant["functions"]
        yield (
            f"  {variant['target']}: {executables['met']} executables found, {executables['kept']} "
            f"kept; {functions['count_met']} functions found, {functions['count_kept']} kept"
        )
        parts = [p for p in ("functions", "constants", "padding", "code") if p in variant]
        rows = [_saved_row(part, variant[part]) for part in parts]
        yield from _table(["", "bytes found", "kept", "saved"], rows)
    yield "  constants"
    yield from _rodata_lines(merge["rodata"])


def _saved_row(name: str, counts: Mapping[str, int]) -> list[str]:
    met, kept = counts["met"], counts["kept"]
    return [name, f"{met:,}", f"{kept:,}", f"{met - kept:,}"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table: indented columns, all but the first aligned to the right."""
    lines = [head, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  " + "  ".join(cells).rstrip()


def format_missed_merges(ledger: Mapping[str, Any]) -> str:
    """The pairs of nearly equal executables that were not merged, as text; the largest saving comes
    first."""
    lines: list[str] = []
    for model in ledger["models"]:
        for variant in model["variants"]:
            misses = variant["missed_merges"]
            lines += ["", f"{_count(misses)} of {_names(model)} for {variant['target']}"]
            for miss in misses:
                lines += _miss_lines(miss)
    return "\n".join(lines[1:])


def _count(misses: Sequence[Any]) -> str:
    if not misses:
        return "no missed merges"
    return "1 missed merge" if len(misses) == 1 else f"{len(misses)} missed merges"


def _miss_lines(miss: Mapping[str, Any]) -> Iterator[str]:
    pairs = zip(miss["executables"], miss["nodes"], strict=True)
    names = " and ".join(f"{name} ({node})" if node else name for name, node in pairs)
    yield ""
    yield f"  {names}: {miss['bytes']:,} bytes if they were one"
    yield f"    {miss['rule']}"
    yield f"    - {miss['first']}"
    yield f"    + {miss['second']}"
