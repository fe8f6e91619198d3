"""The identity of a kernel as bytes: what a backend can see of it, and nothing else.

Two kernels have the same bytes exactly where they are built alike and share the same nodes, because
a backend computes a shared node once. Goes over the records' fields whatever they are, so a new one
cannot be forgotten. Unlike the text form it is not for people, and leaves out the kernel's name and
rules.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from aot.errors import InternalError
from aot.ir.dims import DimExpr
from aot.kernels.ir.nodes import Kernel

_FOR_PEOPLE = ("name", "rules")
_PLAIN = frozenset({int, str, bool, float, type(None)})


def fingerprint(kernel: Kernel) -> bytes:
    """Canonical bytes of all of `kernel` but its name and who built it.

    Raises:
        InternalError: the kernel holds something that has no canonical form.
    """
    parts: list[str] = []
    add = parts.append
    numbers: dict[int, int] = {}
    own = _record(Kernel)
    assert own is not None
    seen = [f for f in reversed(own.fields) if f not in _FOR_PEOPLE]
    stack: list[Any] = [getattr(kernel, f) for f in seen]
    while stack:
        item = stack.pop()
        kind = type(item)
        if (record := _record(kind)) is not None:
            known = numbers.get(id(item))
            if known is not None:
                add(f"#{known}")
                continue
            if record.is_compared_by_identity:
                numbers[id(item)] = len(numbers)
            add(record.name)
            stack.extend([getattr(item, name) for name in record.fields])
        elif kind is tuple:
            add(f"({len(item)}")
            stack.extend(reversed(item))
        elif kind in _PLAIN:
            add(repr(item))
        elif isinstance(item, Enum):
            add(f"{kind.__name__}.{item.name}")
        elif kind is DimExpr:
            add(f"<{item}>")
        elif isinstance(item, np.generic):
            add(f"{kind.__name__}:{item!r}")
        else:
            raise InternalError(
                f"kernel {kernel.name}: a {kind.__name__} has no place in a kernel's identity"
            )
    return "\n".join(parts).encode()


class _Record(NamedTuple):
    """The form in which instances of one class are written into a fingerprint. Fields are listed
    last first.
    """

    name: str
    fields: tuple[str, ...]
    is_compared_by_identity: bool


def _record(kind: type) -> _Record | None:
    """The fingerprint form of a class; None if it is no dataclass or is written in a form of its
    own."""
    if kind not in _records:
        made = None
        if is_dataclass(kind) and kind is not DimExpr:
            names = tuple(f.name for f in reversed(fields(kind)))
            made = _Record(kind.__name__, names, "__eq__" not in vars(kind))
        _records[kind] = made
    return _records[kind]


_records: dict[type, _Record | None] = {}
