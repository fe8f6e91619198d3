"""Reports failures of other inference engines as a CompileError that names the engine and the
model.

Imports no engine; exceptions of engines have no common base.
"""

from __future__ import annotations

import os

from aot.errors import CompileError
from aot.frontends import registry
from aot.frontends.registry import Frontend


def check_format(engine: str, model: str | os.PathLike[str], wanted: Frontend) -> None:
    """Checks that a model file is of the format that an engine reads.

    Raises:
        CompileError: it is of another one.
    """
    found = registry.find(model)
    if found is not wanted:
        raise CompileError(
            f"{engine} cannot run {os.fspath(model)}: it is {found.name}, expected {wanted.name}"
        )


def cannot_run(engine: str, model: str | os.PathLike[str], error: Exception) -> CompileError:
    """The error to raise if an engine fails on a model."""
    return CompileError(f"{engine} cannot run {os.fspath(model)}: {first_line(error)}")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
