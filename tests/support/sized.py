"""Structures that begin with their size, as other headers may have them."""

from __future__ import annotations

import ctypes
from typing import Any

from aot.runtime import tensors

WORD = ctypes.sizeof(ctypes.c_size_t)
NO_SIZES = (0, 1, WORD - 1, 4097, 2 ** (8 * WORD) - 1)
"""Sizes that no structure has."""


def longer(structure: tensors.Sized, more: bytes) -> Any:
    """The structure as a later header may have it, with fields behind."""
    size = ctypes.sizeof(structure)
    memory = ctypes.create_string_buffer(bytes(structure) + more, size + len(more))
    ctypes.c_size_t.from_buffer(memory).value = size + len(more)
    return memory
