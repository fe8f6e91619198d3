"""A plugin of pytest that writes down what each test lowers, for benchmarks/kernel_digests.py.

    AOT_KERNEL_DIGESTS=FILE python -m pytest -p tests.support.lowered_digests ...

It is loaded before the tests, which then import `lower` as it is replaced here. A line of the file
is a test, how many kernels it lowered and the digest of their fingerprints in order.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aot.kernels import lowering
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel

FILE = "AOT_KERNEL_DIGESTS"

_made: list[Kernel] = []
_lower = lowering.lower


def digest(kernels: Iterable[Kernel]) -> str:
    """How many kernels there are, and the digest of their fingerprints in order."""
    made, count = hashlib.sha256(), 0
    for kernel in kernels:
        made.update(fingerprint(kernel))
        count += 1
    return f"{count} {made.hexdigest()[:16]}"


@functools.wraps(_lower)
def _recorded(*args: Any, **kwargs: Any) -> Kernel:
    _made.append(_lower(*args, **kwargs))
    return _made[-1]


def pytest_configure() -> None:
    """Records every kernel from here on."""
    lowering.lower = _recorded


def pytest_runtest_teardown(item: Any) -> None:
    """Writes the line of a test."""
    if _made:
        with Path(os.environ[FILE]).open("a") as file:
            file.write(f"test {item.nodeid} {digest(_made)}\n")
        _made.clear()
