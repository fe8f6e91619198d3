"""The identity of a kernel as bytes: what a backend can see of it, and nothing else.

Two kernels have the same bytes exactly where they are built alike and share the same nodes, because
a backend computes a shared node once. Goes over the records' fields whatever they are, so a new one
cannot be forgotten. Unlike the text form it is not for people, and leaves out the kernel's name.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from aot.errors import InternalError
from aot.ir.dims import DimExpr
from aot.kernels.ir.nodes import Kernel

_PLAIN = (int, str, bool, float, type(None))


def fingerprint(kernel: Kernel) -> bytes:
    """Canonical bytes of all of `kernel` but its name.

    Raises:
        InternalError: the kernel holds something that has no canonical form.
    """
    parts: list[str] = []
    add = parts.append
    numbers: dict[int, int] = {}
    stack: list[Any] = [getattr(kernel, f) for f in reversed(_fields(Kernel) or ()) if f != "name"]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is tuple:
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
        elif (names := _fields(kind)) is not None:
            known = numbers.get(id(item))
            if known is not None:
                add(f"#{known}")
                continue
            if _is_compared_by_identity(kind):
                numbers[id(item)] = len(numbers)
            add(kind.__name__)
            stack.extend([getattr(item, name) for name in names])
        else:
            raise InternalError(
                f"kernel {kernel.name}: a {kind.__name__} has no place in a kernel's identity"
            )
    return "\n".join(parts).encode()


def _is_compared_by_identity(kind: type) -> bool:
    return "__eq__" not in vars(kind)


def _fields(kind: type) -> tuple[str, ...] | None:
    """Names of a record's fields, last first; None for what is no record."""
    if kind not in _known_fields:
        names = tuple(f.name for f in reversed(fields(kind))) if is_dataclass(kind) else None
        _known_fields[kind] = names
    return _known_fields[kind]


_known_fields: dict[type, tuple[str, ...] | None] = {}
