"""The ledger of deduplication: what each level met, kept and saved, as plain data.

Owns the keys of the statistics that tell of it, and of what a module's notes keep for
`aotc inspect --dedup`. Merges nothing. What was never made has no size and took no time: its bytes
and seconds are estimates, those of what was kept in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from aot.backends.code import Emitted

LEVELS = ("structural", "despecialised", "emitted")


def level_stats(
    outlined: Sequence[str],
    final: Sequence[str],
    names: Sequence[str],
    emitted: Emitted,
    seconds: float,
) -> dict[str, Any]:
    """What each level met, kept and saved.

    Args:
        outlined, final: the executable of each dispatch once equal ones are one, and once those
            that differ in extents are.
        names: of the executables, as `emitted` has their sizes.
        seconds: that lowering and compiling those took.
    """
    sizes = dict(zip(names, emitted.sizes, strict=True))
    total = sum(emitted.sizes) or 1
    dispatches = Counter(final)
    members = dict.fromkeys(names, 0)
    for _, name in dict.fromkeys(zip(outlined, final, strict=True)):
        members[name] += 1
    structural = sum((dispatches[n] - members[n]) * sizes[n] for n in names)
    despecialised = sum((members[n] - 1) * sizes[n] for n in names if members[n])
    saved = {
        "structural": (len(final), len(set(outlined)), structural),
        "despecialised": (len(set(outlined)), len(names), despecialised),
    }
    stats: dict[str, Any] = {
        level: {
            "met": met,
            "kept": kept,
            "bytes_saved": count,
            "seconds_saved": round(seconds * count / total, 6),
        }
        for level, (met, kept, count) in saved.items()
    }
    stats["emitted"] = {
        "met": len(names),
        "kept": emitted.kept,
        "bytes_saved": emitted.bytes_met - emitted.bytes_kept,
        "seconds_saved": 0.0,  # what became one had been compiled
    }
    return stats


def model_ledger(
    entry_points: Sequence[str],
    variants: Sequence[Mapping[str, Any]],
    rodata: Mapping[str, int],
    *,
    timed: bool = False,
) -> dict[str, Any]:
    """The ledger of one model, from its statistics; a module's notes keep it.

    Args:
        timed: include the seconds, which are other ones each time.
    """
    return {
        "models": [
            {
                "entry_points": list(entry_points),
                "rodata": dict(rodata),
                "variants": [_variant_ledger(v, timed) for v in variants],
            }
        ],
        "merges": [],
    }


def _variant_ledger(section: Mapping[str, Any], timed: bool) -> dict[str, Any]:
    levels = section["executables"]
    kept = ("met", "kept", "bytes_saved", *(("seconds_saved",) if timed else ()))
    return {
        "target": section["target"],
        "dispatches": section["dispatches"],
        "code_bytes": section["code_bytes"],
        "executables": {level: {k: levels[level][k] for k in kept} for level in LEVELS},
        "missed_merges": section.get("missed_merges", []),
    }
