"""Runs a C compiler, and shortens its errors to one line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from aot.errors import CompileError


def run_compiler(command: Sequence[str]) -> None:
    """Runs the command line of a C compiler; raises a CompileError if it fails.

    Raises:
        CompileError: it can't be run, or fails.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CompileError(f"cannot run the C compiler {command[0]}: {reason}") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        first = next(
            (line for line in lines if "error" in line), lines[0] if lines else "no output"
        )
        raise CompileError(f"the C compiler {command[0]} failed: {first.strip()}")
