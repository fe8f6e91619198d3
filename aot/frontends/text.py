"""Reads the IR's text form as an input: parses, checks, and adds the file's name to messages.

Owns nothing of the grammar, which is `aot.ir.text.parser`'s; does no optimising.
"""

from __future__ import annotations

from pathlib import Path

import aot.ops  # noqa: F401 - fills the op table
from aot.errors import CompileError
from aot.ir import input_files
from aot.ir.graph import Module
from aot.ir.text.parser import parse_module
from aot.ir.verifier import verify


def load_text(path: str | Path) -> Module:
    """The module in the file at `path`.

    Raises:
        CompileError: the file cannot be read, is not UTF-8, or what it says is wrong.
    """
    try:
        contents = input_files.contents(path)
    except OSError as error:
        raise CompileError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        text = contents.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CompileError(
            f"{path}: not UTF-8 text: byte {error.start} is 0x{contents[error.start]:02x}"
        ) from None
    return import_text(text, str(path))


def import_text(text: str, source: str = "") -> Module:
    """Parses and checks a module; `source` names it in messages.

    Raises:
        CompileError: the grammar, a shape rule or an invariant does not hold.
    """
    module = parse_module(text, source)
    if not module.entry_points:
        raise CompileError(f"{source or 'text'}: there is no function")
    verify(module, error=CompileError, during=source, is_ruled=True)
    return module
