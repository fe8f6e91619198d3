"""The deduplication ledger: for each level, what it received, kept and saved, as plain data.

Owns the keys of the statistics that tell of it, and of what a module's notes keep for
`aotc inspect --dedup`. Merges nothing. What was never made has no size and took no time: its bytes
and seconds are estimates: those of `despecialise`, scaled by what was compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from aot.analysis.cost.code_size import CodeEstimate
from aot.backends.code import Emitted
from aot.errors import advice
from aot.options import CompileOptions

LEVELS = ("structural", "despecialised", "emitted")


# Of what executables take with kernels of their own: an estimate of what despecialising saved of it
# is within a quarter of what it did save where it is this much or more.
_SURE_SHARE = 0.25


def level_stats(
    outlined: Sequence[str],
    final: Sequence[str],
    names: Sequence[str],
    emitted: Emitted,
    seconds: float,
    estimate: CodeEstimate | None = None,
) -> dict[str, Any]:
    """Counts and savings of each level of deduplication.

    Args:
        outlined, final: the executable of each dispatch once equal ones are one, and once those
            that differ in extents are.
        names: of the executables, as `emitted` has their sizes.
        seconds: that lowering and compiling those took.
        estimate: of the code of both; None where nothing is known of it.

    Returns:
        The counts by level. `bytes_saved` and `seconds_saved` are None where what a level saved is
        not known to a quarter.
    """
    kept = {"structural": len(set(outlined)), "despecialised": len(names)}
    met = {"structural": len(final), "despecialised": kept["structural"]}
    saved: dict[str, int | None] = dict.fromkeys(kept)
    with advice("how many bytes deduplication saved"):
        sizes = dict(zip(names, emitted.sizes, strict=True))
        saved = _bytes_saved(outlined, final, sizes, estimate)
    total = sum(emitted.sizes) or 1
    stats: dict[str, Any] = {
        level: {
            "met": met[level],
            "kept": kept[level],
            "bytes_saved": count,
            "seconds_saved": None if count is None else round(seconds * count / total, 6),
        }
        for level, count in saved.items()
    }
    stats["emitted"] = {
        "met": len(names),
        "kept": emitted.kept,
        "bytes_saved": emitted.bytes_met - emitted.bytes_kept,
        "seconds_saved": 0.0,  # what became one had been compiled
    }
    return stats


def _bytes_saved(
    outlined: Sequence[str],
    final: Sequence[str],
    sizes: Mapping[str, int],
    estimate: CodeEstimate | None,
) -> dict[str, int | None]:
    """Code bytes saved by the structural and despecialised levels; None where the estimate is not
    accurate to a quarter.

    Args:
        sizes: bytes of code of each executable in the module.
    """
    members = _members(outlined, final)
    own = _own_bytes(members, sizes, estimate)
    dispatches = Counter(outlined)
    structural = sum((dispatches[name] - 1) * bytes for name, bytes in own.items())
    despecialised = sum(own.values()) - sum(sizes[name] for name in members)
    is_exact = len(own) == len(sizes)  # no executable serves what would have had another one
    is_known = is_exact or (estimate is not None and estimate.is_sure)
    is_sure = is_exact or (is_known and despecialised >= _SURE_SHARE * sum(own.values()))
    return {
        "structural": round(structural) if is_known else None,
        "despecialised": round(despecialised) if is_sure else None,
    }


def _members(outlined: Sequence[str], final: Sequence[str]) -> dict[str, list[str]]:
    """For each final executable, the outlined executables that were merged into it."""
    found: dict[str, list[str]] = {}
    for name, kept in dict.fromkeys(zip(outlined, final, strict=True)):
        found.setdefault(kept, []).append(name)
    return found


def _own_bytes(
    members: Mapping[str, Sequence[str]], sizes: Mapping[str, int], estimate: CodeEstimate | None
) -> dict[str, float]:
    """For each outlined executable, its code bytes, or the estimated bytes if it had a kernel of
    its own.

    What was compiled says how far the estimate is off: all of it, and the kernel that serves this
    executable. Neither alone is as near as what is between them.
    """
    kept = {} if estimate is None else estimate.kept
    known = [name for name in members if kept.get(name)]
    expected = sum(kept[name] for name in known)
    scale = sum(sizes[name] for name in known) / expected if expected else 0.0
    own: dict[str, float] = {}
    for name, served in members.items():
        here = (scale + sizes[name] / kept[name]) / 2 if kept.get(name) else 0.0
        for each in served:
            guess = 0.0 if estimate is None else here * estimate.own.get(each, 0.0)
            own[each] = guess if guess and len(served) > 1 else float(sizes[name])
    return own


def model_ledger(
    entry_points: Sequence[str],
    variants: Sequence[Mapping[str, Any]],
    rodata: Mapping[str, int],
    *,
    precision: Mapping[str, str] | None = None,
    timed: bool = False,
) -> dict[str, Any]:
    """The ledger of one model, from its statistics; it is stored in a module's notes.

    Args:
        precision: the options by which it rounds otherwise than by default, as `precision_of` has
            them.
        timed: include the seconds, which are other ones each time.
    """
    model: dict[str, Any] = {
        "entry_points": list(entry_points),
        "rodata": dict(rodata),
        "variants": [_variant_ledger(v, timed) for v in variants],
    }
    if precision:
        model["precision"] = dict(precision)
    return {"models": [model], "merges": []}


PRECISION = ("storage", "arithmetic", "activations")
"""The options by which a compiled model rounds otherwise than the model does."""


def precision_of(options: CompileOptions) -> dict[str, str]:
    """The values of the options in `PRECISION` that were set to something else than the default."""
    usual = CompileOptions()
    found = {name: getattr(options, name) for name in PRECISION}
    return {name: value for name, value in found.items() if value != getattr(usual, name)}


def noted_precision(ledger: Mapping[str, Any], entry: str) -> dict[str, str]:
    """What `precision_of` gave for the model of an entry point, from a module's ledger; empty where
    it says nothing."""
    for model in ledger.get("models", ()):
        if entry in model.get("entry_points", ()):
            noted = model.get("precision", {})
            return {name: str(noted[name]) for name in PRECISION if name in noted}
    return {}


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
