"""Calls of a program by an extension of CPython, for arrays as they were in the call before.

A call through ctypes takes microseconds, which is more than a small model runs. The extension
(runtime/python/call.c) does the same steps. Where it was not built, or on another Python, all calls
go through ctypes. Owns its loading, and which calls are its.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aot.runtime.tensors import CODES

NAME = "_aot_call"
LIBRARY_NAME = f"{NAME}.abi3.so"
_FUNCTIONS = ("aot_program_set_input", "aot_program_set_output", "aot_program_run")


class FastCall(Protocol):
    """A program with the types and shapes of its arrays."""

    def run(self, arrays: list[Any] | dict[str, Any], /) -> Any:
        """The results, in a list or by name as the arrays are; the number of the runtime's status
        where it failed, with its error in the program's; None where an array is another one than
        was said, or there is no memory for a result: nothing has been run then.
        """


def fast_call(
    library: ctypes.CDLL,
    program: int,
    error: int,
    arrays: Sequence[NDArray[Any]],
    results: Sequence[NDArray[Any]],
    names: tuple[Sequence[str], Sequence[str]],
) -> FastCall | None:
    """A call of a program with arrays of the types and shapes of `arrays`, and new results like
    `results`; None where there is no extension, or for what it does not take.

    Args:
        program: the address of the program.
        error: the address of the error that a failure fills.
        names: of the arrays, and of the results.
    """
    made = _extension(Path(str(library._name)).parent)
    if made is None or any(array.size == 0 for array in (*arrays, *results)):
        return None
    functions = (ctypes.cast(library[name], ctypes.c_void_p).value for name in _FUNCTIONS)
    try:
        inputs = tuple(
            (memoryview(a).format, CODES[a.dtype], a.shape, a.nbytes)  # type: ignore[arg-type]
            for a in arrays
        )
        found: FastCall = made.Call(
            (program, error, *functions),
            (np.ndarray, np.empty),
            inputs,
            tuple((a.shape, a.dtype) for a in results),
            tuple(map(tuple, names)),
        )
    except ValueError:  # elements without a format of their own, such as bfloat16
        return None
    return found


@cache
def _extension(folder: Path) -> Any:
    """The extension beside the runtime's library; None if this Python can't have it."""
    place = folder / LIBRARY_NAME
    if sys.implementation.name != "cpython" or not place.is_file():
        return None
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(place))
    spec = importlib.util.spec_from_file_location(NAME, place, loader=loader)
    if spec is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:  # of another machine or C library
        return None
    return module
