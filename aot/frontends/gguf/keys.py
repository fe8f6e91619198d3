"""Numbers of an architecture in a file's metadata: checked when read, and which of them were read.

Owns the ranges that values may have, and which keys change nothing. Knows no architecture: a part
of one reads the keys that it names (aot/frontends/gguf/parts.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from aot.errors import CompileError, InternalError
from aot.frontends.gguf.reader import GgufFile

MOST_SHOWN = 80  # characters of a text
LIKE = 0.7  # of 1, for what is equal
ELEMENTS_PER_BYTE = 8  # of a tensor, whatever its block type

# Keys below an architecture's name that no part reads, with a value by which they change nothing;
# None is any value.
NEUTRAL: Mapping[str, Any] = {
    "vocab_size": None,  # the embedding has as many rows
    "tensor_data_layout": None,  # which permutation the converter undid
    "rope.scaling.finetuned": None,
    "attention.layer_norm_epsilon": None,  # converters write both, of which norms read one
    "attention.layer_norm_rms_epsilon": None,
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.sliding_window": 0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "nextn_predict_layers": 0,
    "n_deepstack_layers": 0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that is most like one, or "" where none is much like it."""
    found = get_close_matches(name, sorted(known), n=1, cutoff=LIKE)
    return found[0] if found else ""


class Keys:
    """Numbers of an architecture in a file's metadata, by their keys below its name.

    Args:
        known: the keys of all of its parts.
        own: those that may be read.

    Attributes:
        read: keys that were asked for; views by `only` share it.
    """

    def __init__(
        self,
        file: GgufFile,
        name: str,
        known: Collection[str],
        own: Collection[str] = (),
        read: set[str] | None = None,
    ) -> None:
        self.file = file
        self.name = name
        self.known = known
        self.own = own
        self.read = set() if read is None else read

    def only(self, own: Collection[str]) -> Keys:
        """A view by which no other keys can be read."""
        return Keys(self.file, self.name, self.known, own, self.read)

    def error(self, key: str, value: Any, expected: str) -> CompileError:
        shown = repr(value[:MOST_SHOWN] if isinstance(value, str | list) else value)
        return CompileError(
            f"{self.file.where}: key {self.name + '.' + key!r} is {shown}, expected {expected}"
        )

    def get(self, key: str, default: Any) -> Any:
        if key not in self.own:
            raise InternalError(f"key {key!r} is read by a part that does not name it")
        self.read.add(key)
        found = self.file.metadata.get(f"{self.name}.{key}", default)
        if found is None:
            raise CompileError(
                f"{self.file.where}: key {self.name + '.' + key!r} is missing{self._likely(key)}"
            )
        return found

    def _likely(self, key: str) -> str:
        """What to add to a message that a key is missing: an unknown one that is much like it."""
        names = [k.removeprefix(f"{self.name}.") for k in self.file.metadata]
        found = nearest(key, [k for k in names if k not in self.known and k not in NEUTRAL])
        return f", the nearest that there is: {self.name + '.' + found!r}" if found else ""

    def unread(self, unused: Collection[str]) -> list[str]:
        """Keys below the architecture's name that no part read and whose values are not neutral.

        Args:
            unused: keys that need not be read.
        """
        found = []
        for whole, value in self.file.metadata.items():
            key = whole.removeprefix(f"{self.name}.")
            if key == whole or key in self.read or key in unused:
                continue
            if key in NEUTRAL and NEUTRAL[key] in (None, value):
                continue
            found.append(key)
        return sorted(found)

    # a number for the model, or for each layer

    def counts(
        self, key: str, layers: int, default: int | None = None, least: int = 1
    ) -> tuple[int, ...]:
        """A count for each layer, from a number for all or a list of `layers`."""
        found = self.get(key, default)
        values = found if isinstance(found, list) else [found] * layers
        if len(values) != layers:
            raise self.error(key, found, f"a number, or {layers} of them, one for each layer")
        return tuple(self._count(key, value, found, least) for value in values)

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        found = self.get(key, default)
        return self._count(key, found, found, least)

    def _count(self, key: str, value: Any, found: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            raise self.error(key, found, f"a whole number, {least} or more")
        return value

    def at_most(self, key: str, value: int, times: int = 1) -> int:
        """An extent of a tensor, with `times` others: the file has the elements."""
        most = ELEMENTS_PER_BYTE * sum(t.data.nbytes for t in self.file.tensors.values())
        if value * times > most:
            raise self.error(key, value, f"at most {most // times}, by the bytes of the tensors")
        return value

    def extent(self, key: str, default: int | None = None, times: int = 1) -> int:
        return self.at_most(key, self.count(key, default), times)

    def number(self, key: str, default: float | None = None) -> float:
        found = self.get(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self.error(key, found, "a number")
        if not math.isfinite(found) or found < 0:
            raise self.error(key, found, "a number, 0 or more")
        return float(found)

    def numbers(self, key: str, layers: int, default: float) -> tuple[float, ...]:
        """A number for each layer, or an infinity, from one for all or a list of `layers`."""
        found = self.get(key, default)
        values = found if isinstance(found, list) else [found] * layers
        if len(values) != layers:
            raise self.error(key, found, f"a number, or {layers} of them, one for each layer")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
                raise self.error(key, found, "numbers")
        return tuple(float(value) for value in values)

    def positive(self, key: str, default: float | None = None) -> float:
        found = self.number(key, default)
        if found == 0:
            raise self.error(key, found, "a number above 0")
        return found

    def flag(self, key: str, default: bool | None = None) -> bool:
        found = self.get(key, default)
        if not isinstance(found, bool):
            raise self.error(key, found, "true or false")
        return found

    def text(self, key: str, default: str, known: Sequence[str]) -> str:
        found = self.get(key, default)
        if not isinstance(found, str) or found not in known:
            raise self.error(key, found, f"{', '.join(known[:-1])} or {known[-1]}")
        return found
