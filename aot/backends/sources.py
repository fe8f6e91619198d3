"""Content hashes of the compiler's sources: a version does not distinguish two states of a
checkout.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def digest(*places: str) -> bytes:
    """The SHA-256 of the sources in some folders and files of this package, `.` for all: the same
    on every system.
    """
    found = hashlib.sha256()
    root = Path(__file__).parents[1]
    for place in places:
        path = root / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
            data = file.read_bytes().replace(b"\r\n", b"\n")
            found.update(f"{file.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return found.digest()
