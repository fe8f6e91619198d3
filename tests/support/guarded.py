"""Memory beside pages without access: a read or a write past its end, or before its start, is a
fault. It ends the process, so tests of what may fail run elsewhere."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE


def _protect(address: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), PAGE, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


class Guarded:
    """Memory that ends where a page without access begins.

    Args:
        guards: where other such pages begin in it; then it is whole pages.
    """

    def __init__(self, data: bytes, guards: Sequence[int] = ()) -> None:
        self.size = len(data)
        assert not guards or self.size % PAGE == 0
        room = -(-max(self.size, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, room + PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.address = base + room - self.size
        ctypes.memmove(self.address, bytes(data), self.size)
        self.guards = [self.address + offset for offset in guards]
        for page in (base + room, *self.guards):
            _protect(page, _NONE)

    def read(self) -> bytes:
        """All of it, whose pages may be accessed from now on."""
        for page in self.guards:
            _protect(page, _READ_WRITE)
        return ctypes.string_at(self.address, self.size)


class GuardedArray:
    """An array that ends where a page without access begins, or begins where one ends."""

    def __init__(self, like: NDArray[np.generic], *, at_end: bool = True) -> None:
        size = like.nbytes
        filler = b"\xa5" * (-size % PAGE)
        data = like.tobytes()
        image = data if at_end else bytes(PAGE) + data + filler
        self._memory = Guarded(image, () if at_end else (0,))
        start = self._memory.address + (0 if at_end else PAGE)
        block = (ctypes.c_uint8 * size).from_address(start)
        self.array = np.frombuffer(memoryview(block), like.dtype).reshape(like.shape)
