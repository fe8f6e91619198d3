"""GGUF files that were split: the parts of a model, found by their names and joined.

A part has the keys split.no and split.count, and a name that ends in its number and theirs, such as
-00002-of-00003.gguf. The first has the metadata; tensors may be in any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aot.errors import CompileError
from aot.frontends.gguf.reader import GgufFile, Tensor, read_file

MOST_PARTS = 1 << 16  # split.count has 16 bits
_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL)


def read_gguf(source: str | os.PathLike[str] | bytes) -> GgufFile:
    """Reads a GGUF file, together with the other files of a split model. All stay mapped as long as
    a tensor is used.

    Raises:
        CompileError: one cannot be read, is no GGUF file of a version that is known, or is not the
            part that its name says.
    """
    file = read_file(source)
    count = _number(file, "split.count", 1)
    if count < 2:
        return file
    if isinstance(source, bytes):
        raise CompileError(
            f"{file.where}: is one of {count} parts, which are found by name: give the path of one"
        )
    names = _names(file.where, count)
    return _joined(file, [Path(file.where).with_name(name) for name in names])


def others(path: Path) -> Sequence[str]:
    """The names of the other parts of a model, as far as the name of one says them."""
    found = _NAME.fullmatch(path.name)
    count = int(found[3]) if found else 1
    return [n for n in _names(str(path), count) if n != path.name] if 1 < count < MOST_PARTS else []


def _number(file: GgufFile, key: str, default: int | None = None) -> int:
    found: Any = file.metadata.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < MOST_PARTS:
        raise CompileError(f"{file.where}: key {key!r} is {found!r}, expected a number of parts")
    return found


def _names(where: str, count: int) -> list[str]:
    """The names of all parts, by that of one."""
    found = _NAME.fullmatch(Path(where).name)
    if not found or int(found[3]) != count or not 1 <= int(found[2]) <= count:
        raise CompileError(
            f"{where}: is one of {count} parts, expected a name that ends in -00001-of-{count:05}"
            ".gguf, or another number of a part"
        )
    return [f"{found[1]}-{n + 1:05}-of-{count:05}{found[4]}" for n in range(count)]


def _joined(file: GgufFile, paths: list[Path]) -> GgufFile:
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise CompileError(
            f"{file.where}: is one of {len(paths)} parts, of which {len(missing)} are missing:",
            [str(path) for path in missing],
        )
    own = Path(file.where)
    parts = [file if path == own else read_file(path) for path in paths]
    tensors: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        found = _number(part, "split.no"), _number(part, "split.count", 1)
        if found != (number, len(parts)):
            raise CompileError(
                f"{part.where}: is part {found[0] + 1} of {found[1]} by its keys, and {number + 1} "
                f"of {len(parts)} by its name"
            )
        for name in part.tensors:
            if name in tensors:
                raise CompileError(f"{part.where}: has tensor {name!r}, which another part has")
        tensors |= part.tensors
    total = parts[0].metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise CompileError(
            f"{parts[0].where}: key 'split.tensors.count' is {total!r}, and the parts have "
            f"{len(tensors)} tensors"
        )
    memories = tuple(memory for part in parts for memory in part.memories)
    return replace(parts[0], tensors=tensors, memories=memories)
