"""The digest of some cases' objects."""

from __future__ import annotations

import hashlib

from aot.backends.cpu.compile import compile_kernel
from tests.support.cpu_cases import access_cases
from tests.support.cpu_running import target_of


def digest(target: str) -> str:
    """Of some cases' objects."""
    record = target_of(target)
    result = hashlib.sha256()
    for case in access_cases()[::3]:
        if case.runs_on(record):
            result.update(compile_kernel(case.make(), record))
    return result.hexdigest()
