"""JSON values that know their position in the file, for error messages.

Owns the rules of single values: texts, integers in bounds, unions, names. Knows no torch.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Sequence
from typing import Any

from aot.errors import CompileError

MOST_NAME = 1024  # characters of a name
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"'\\]")


def parsed(data: bytes, where: str) -> Field:
    """The JSON in an archive entry, called `where` in messages.

    Raises:
        CompileError: it is no JSON, or nested too deep.
    """
    try:
        return Field(json.loads(data), where)
    except RecursionError:
        raise CompileError(f"{where}: is nested too deep") from None
    except ValueError as error:  # of JSON or UTF-8, or of an integer of thousands of digits
        raise CompileError(f"{where}: is no JSON: {error}") from None


class Field:
    """A JSON value with its path in the file.

    Attributes:
        value: as Python has it.
    """

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: Any, key: str | int, parent: Field | None = None) -> None:
        self.value, self._key, self._parent = value, key, parent

    @property
    def place(self) -> str:
        """The field's path in the file, such as `models/model.json: graph.nodes[3].target`."""
        keys: list[str | int] = []
        field: Field | None = self
        while field is not None:
            keys.append(field._key)
            field = field._parent
        path = "".join(f"[{k}]" if isinstance(k, int) else f".{k[:80]}" for k in keys[-2::-1])
        return f"{keys[-1]}: {path.removeprefix('.')}" if path else str(keys[-1])

    def error(self, message: str) -> CompileError:
        """An error in the file at this field."""
        return CompileError(f"{self.place} {message}")

    def _expected(self, what: str) -> CompileError:
        return self.error(f"is {_short(self.value)}, expected {what}")

    def __getitem__(self, name: str) -> Field:
        """A field of an object.

        Raises:
            CompileError: this is no object, or has no such field.
        """
        found = self.get(name)
        if found is None:
            raise self.error(f"has no {name!r}")
        return found

    def get(self, name: str) -> Field | None:
        """A field of an object; None where it is absent or null."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        found = self.value.get(name)
        return None if found is None else Field(found, name, self)

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The fields of an object, in the file's order."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        return ((name, Field(value, name, self)) for name, value in self.value.items())

    def items(self) -> Sequence[Field]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self._expected("a list")
        return [Field(value, place, self) for place, value in enumerate(self.value)]

    def union(self) -> tuple[str, Field]:
        """(name, field) of an object's only field."""
        if not isinstance(self.value, dict) or len(self.value) != 1:
            raise self._expected("an object of one field")
        ((kind, value),) = self.value.items()
        return kind, Field(value, kind, self)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._expected("a text")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self._expected("true or false")
        return self.value

    def integer(self, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
        """An integer from `low` to `high`."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._expected("an integer")
        if not low <= self.value <= high:
            raise self._expected(f"an integer from {low} to {high}")
        return self.value

    def number(self) -> float:
        """The field's value as a float; infinities and NaN are texts in the file."""
        if isinstance(self.value, str) and self.value in _INFINITE:
            return _INFINITE[self.value]
        if not isinstance(self.value, (int, float)) or isinstance(self.value, bool):
            raise self._expected("a number")
        try:
            return float(self.value)
        except OverflowError:
            raise self._expected("a number of 64 bits") from None

    def name(self) -> str:
        """An identifier that is no keyword of Python and does not begin with two underscores."""
        found = self.text()
        if len(found) > MOST_NAME or not found.isidentifier() or keyword.iskeyword(found):
            raise self._expected("a name")
        if found.startswith("__"):
            raise self._expected("a name that does not begin with two underscores")
        return found

    def path(self) -> str:
        """The path of a parameter or buffer in its module: valid names, separated by dots."""
        found = self.text()
        if len(found) > MOST_NAME or not is_plain(found):
            raise self._expected("a path of attributes")
        if any(not part or part.startswith("__") for part in found.split(".")):
            raise self._expected("a path of attributes")
        return found


def is_plain(text: str) -> bool:
    """Whether a text has no quotes, backslashes or control characters, so that it can be quoted as
    it is in Python code."""
    return _UNSAFE.search(text) is None


def _short(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
