"""Finds `aot-run`, the native tool that times modules."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from aot.errors import RuntimeFailure
from aot.runtime.loader import find_library

RUNNER_NAME = "aot-run"
RUNNER_VARIABLE = "AOT_RUN"


def find_runner() -> Path:
    """The native `aot-run`: $AOT_RUN if set, else beside the runtime's library, else on the path.

    Raises:
        RuntimeFailure: it is in none of these places; the message names them.
    """
    chosen = os.environ.get(RUNNER_VARIABLE)
    if chosen:
        if Path(chosen).is_file():
            return Path(chosen)
        raise RuntimeFailure(f"{RUNNER_VARIABLE} is {chosen}, which is no file", "not_found")
    beside = find_library().with_name(RUNNER_NAME)
    if beside.is_file():
        return beside
    found = shutil.which(RUNNER_NAME)
    if found is not None:
        return Path(found)
    raise RuntimeFailure(
        f"{RUNNER_NAME} is not there: neither {beside} nor on PATH; install the package, or build "
        f"runtime/ with CMake and set {RUNNER_VARIABLE}",
        "not_found",
    )
