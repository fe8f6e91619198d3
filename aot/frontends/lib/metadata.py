"""What a model's file says about itself, as texts by key, for the module's metadata.

Owns how much of it is taken. Importers say where their format keeps it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

MOST_VALUE_BYTES = 1 << 16  # labels of thousands of classes fit; tables of other sorts don't
MOST_KEYS = 1024


class MetadataWarning(UserWarning):
    """A fact that a model's file has and the module will not."""


def taken(facts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The facts that a module keeps: of equal keys the last, without empty keys and values.

    A value above MOST_VALUE_BYTES, and keys behind MOST_KEYS, are left out with a warning: they
    would be in the memory of every process that opens the module.
    """
    found: dict[str, str] = {}
    for key, value in facts:
        if not key or not value or "\0" in key + value:
            continue
        size = len(value.encode(errors="replace"))
        if size > MOST_VALUE_BYTES:
            reason = f"{size:,} bytes, at most {MOST_VALUE_BYTES:,} are kept"
        elif len(found) == MOST_KEYS and key not in found:
            reason = f"the model has more than {MOST_KEYS:,}"
        else:
            found[key] = value.encode(errors="replace").decode()
            continue
        message = f"metadata {key[:80]!r} is left out of the module: {reason}"
        warnings.warn(message, MetadataWarning, stacklevel=2)
    return found
