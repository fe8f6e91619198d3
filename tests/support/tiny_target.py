"""Targets with tiny caches and scratch, where small extents reach every branch of a schedule."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from aot.target.files import directory

TINY = {"l1_bytes": 1024, "l2_bytes": 4096, "scratch_bytes": 2048}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="aot-tiny-")


@cache
def tiny(name: str) -> str:
    """The path of a file that says of a CPU target what is true, but for what it has room for."""
    text = (directory() / f"{name}.toml").read_text()
    for key in TINY:
        text = re.sub(rf"(?m)^{key} = .*\n", "", text)
    path = Path(_folder().name) / f"tiny-{name}.toml"
    path.write_text(text + "".join(f"{key} = {number}\n" for key, number in TINY.items()))
    return str(path)
