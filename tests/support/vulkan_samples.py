"""The samples of all ops as modules for vulkan-1.1, many in an entry point."""

from __future__ import annotations

from functools import cache

from aot.errors import UnsupportedError
from tests.support.samples_module import NATIVE, compiled_apart

MOST = 24  # samples in a program


@cache
def compiled(entry: str) -> bytes:
    try:
        return compiled_apart("vulkan-1.1", entry, MOST)
    except UnsupportedError as error:
        first, *problems = str(error).splitlines()
        assert "has integers of 32 bits" in first
        assert all(line.strip().startswith("reduce_") for line in problems), problems
        return compiled_apart("vulkan-1.1", entry, MOST, targets=NATIVE[:1])
