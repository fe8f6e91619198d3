"""The ledger of deduplication: what each level met, kept and saved, as plain data.

Owns the keys of the statistics that tell of it, and of what a module's notes keep for
`aotc inspect --dedup`. Merges nothing. What was never made has no size and took no time: its bytes
and seconds are estimates, those of what was kept in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot.link.code_image import CodeImage

LEVELS = ("structural", "despecialised", "emitted")


@dataclass(frozen=True)
class Emitted:
    """What a backend's code for the executables of a variant became.

    Attributes:
        sizes: bytes of each executable's code, shared or not.
        kept: different pieces of code.
        bytes_met, bytes_kept: of code and its constants.
    """

    sizes: tuple[int, ...]
    kept: int
    bytes_met: int
    bytes_kept: int

    @staticmethod
    def of_image(image: CodeImage) -> Emitted:
        lengths = {part.offset: part.length for part in image.parts.functions}
        return Emitted(
            tuple(lengths[offset] for offset in image.offsets),
            image.functions_kept,
            image.function_bytes_met + image.constant_bytes_met,
            image.function_bytes_kept + image.constant_bytes_kept,
        )

    @staticmethod
    def of_shaders(shaders: Sequence[bytes]) -> Emitted:
        sizes = tuple(map(len, shaders))
        kept = set(shaders)
        return Emitted(sizes, len(kept), sum(sizes), sum(map(len, kept)))

    def with_(self, other: Emitted, sizes: tuple[int, ...]) -> Emitted:
        """Both together; `sizes` are those of all executables, in their order."""
        return Emitted(
            sizes,
            self.kept + other.kept,
            self.bytes_met + other.bytes_met,
            self.bytes_kept + other.bytes_kept,
        )


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
        "near_misses": section.get("near_misses", []),
    }
