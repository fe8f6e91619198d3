"""The memory limit of an import, and of the folding after it, beyond what the process has: 64 times
the model's bytes plus 256 MiB, or the user's limit.

A file of a few kilobytes can ask for terabytes: a constant that is repeated, a loop that grows, an
archive that inflates. Where the system can, it enforces the limit itself: then whatever takes more
ends in a MemoryError, which `limited` turns into the user's error. That is done in a process of one
thread only, since the system's limit holds for all threads. Knows no format.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from aot.errors import CompileError

FACTOR = 64  # bytes of memory for each byte of a model
FREE_BYTES = 256 << 20  # for a model of any size
INFLATED_PART = 16  # of the limit: what an archive's entries may have, which are then taken apart
_STATUS = Path("/proc/self/status")


def limit_of(model_bytes: int, given_mib: int) -> int:
    """The memory limit in bytes for a model of `model_bytes`; `given_mib` is the user's limit, 0
    for the default."""
    return given_mib << 20 if given_mib else FACTOR * model_bytes + FREE_BYTES


class Limit:
    """The memory limit of one import.

    Args:
        most_bytes: that it may take beyond what the process has.
        grows: whether bytes of the model that are found later add to it.

    Attributes:
        most_bytes: as of now.
    """

    def __init__(self, most_bytes: int, grows: bool) -> None:
        self.most_bytes, self._grows = most_bytes, grows
        self._taken = 0  # by the process, before
        self._former: tuple[int, int] | None = None

    def extend(self, model_bytes: int) -> None:
        """Raises the limit for further bytes of the model in another file."""
        if self._grows:
            self.most_bytes += FACTOR * model_bytes
            if self._former is not None:
                self._enforce()

    def begin(self) -> None:
        """Makes the operating system enforce the limit, where it can."""
        self._taken = _data_bytes()
        if not self._taken or threading.active_count() > 1:
            return
        with suppress(ImportError, OSError, ValueError):
            import resource

            self._former = resource.getrlimit(resource.RLIMIT_DATA)
            self._enforce()

    def _enforce(self) -> None:
        import resource

        assert self._former is not None
        wanted = self._taken + self.most_bytes
        known = [limit for limit in self._former if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *known]), self._former[1]))

    def end(self) -> None:
        """Restores the limit that the process had before."""
        if self._former is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, self._former)


_NONE = Limit(0, grows=False)
_limit: ContextVar[Limit] = ContextVar("limit", default=_NONE)  # of the import that is under way


def extend(model_bytes: int) -> None:
    """Raises the current import's limit for more bytes of the model, in a file beside it."""
    _limit.get().extend(model_bytes)


def most_inflated(file_bytes: int) -> int:
    """The largest total size of an archive's inflated entries."""
    most = _limit.get().most_bytes or limit_of(file_bytes, 0)
    return max(most // INFLATED_PART, file_bytes)


@contextmanager
def enforced(most_bytes: int) -> Iterator[None]:
    """A context in which allocating more than `most_bytes` beyond the process's present memory
    raises a MemoryError, on systems that support such a limit.
    """
    limit = Limit(most_bytes, grows=False)
    try:
        limit.begin()
        yield
    finally:
        limit.end()


@contextmanager
def limited(model_bytes: int, given_mib: int, where: str = "") -> Iterator[None]:
    """A context that limits the memory of an import.

    Args:
        model_bytes: length of the model's file; 0 of an object in memory.
        given_mib: the user's own limit; 0 for the default.
        where: what messages call the model.

    Raises:
        CompileError: the import takes more.
    """
    limit = Limit(limit_of(model_bytes, given_mib), grows=not given_mib)
    before = _limit.set(limit)
    try:
        limit.begin()
        yield
    except MemoryError:
        raise CompileError(
            f"{where or 'model'}: importing it takes more than {limit.most_bytes >> 20} MiB of "
            "memory; --limit-memory MIB (limit_memory) allows more"
        ) from None
    finally:
        limit.end()
        _limit.reset(before)


def _data_bytes() -> int:
    """The process's data bytes that the system's limit counts; 0 where the system does not report
    them.
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        line = next(line for line in lines if line.startswith("VmData:"))
        return int(line.split()[1]) << 10
    return 0
