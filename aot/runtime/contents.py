"""What a module has beside its programs, through aot/contents.h. Opens and runs nothing."""

from __future__ import annotations

import ctypes
from typing import Any

from aot.runtime.tensors import text_of

_NUMBERED = ("aot_module_metadata_key", "aot_module_metadata_value")


def metadata_of(library: ctypes.CDLL, module: Any) -> dict[str, str]:
    """The facts about the model that an open module keeps, by key."""
    count = library.aot_module_metadata_count
    count.restype, count.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    for name in _NUMBERED:
        function = getattr(library, name)
        function.restype = ctypes.c_char_p
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    key, value = (getattr(library, name) for name in _NUMBERED)
    return {text_of(key(module, n)): text_of(value(module, n)) for n in range(count(module))}
