"""How many threads are worth having on this machine, as the C runtime tells it."""

from __future__ import annotations

import os
from ctypes import byref
from dataclasses import dataclass

from aot.runtime import loader


@dataclass(frozen=True)
class ChosenCores:
    """The fast cores that this process may use.

    Attributes:
        threads: one for each of them, and no more than a quota allows; what `threads="auto"` takes.
        cpus: the CPUs that stand for them, as the system numbers them; empty where it tells of
            none.
        leaves_slower: whether slower cores could be used as well; the threads are then kept to the
            chosen ones.
        reason: for people, such as `"4 of 8 cores: the others have at most 31 % of the fastest
            one's capacity"`.
    """

    threads: int
    cpus: tuple[int, ...]
    leaves_slower: bool
    reason: str


def find(root: str | os.PathLike[str] = "") -> ChosenCores:
    """Chooses cores as `aot/cores.h` describes.

    Args:
        root: what stands before the paths of the system's files.

    Raises:
        RuntimeFailure: the runtime's library is not there.
    """
    found = loader.Cores()
    loader.load_library().aot_cores_find(os.fsencode(root), None, byref(found))
    cpus = tuple(64 * n + bit for n, word in enumerate(found.cpus) for bit in _bits(word))
    return ChosenCores(
        int(found.threads), cpus, bool(found.leaves_slower), found.reason.decode(errors="replace")
    )


def _bits(word: int) -> list[int]:
    return [bit for bit in range(64) if word >> bit & 1]
