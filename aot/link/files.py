"""Writes files atomically."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from aot.errors import CompileError


def write_atomically(path: str | os.PathLike[str], chunks: Iterable[bytes | memoryview]) -> None:
    """Writes `chunks` to `path` through a temporary file beside it; to devices and pipes directly.

    Raises:
        CompileError: it cannot be written; a file that was there is untouched.
    """
    try:
        target = Path(os.path.realpath(path))  # a link's target is replaced, not the link
        if target.is_dir():
            raise IsADirectoryError(None, "is a directory")
        if target.exists() and not target.is_file():
            with target.open("wb", buffering=0) as stream:
                for chunk in chunks:
                    _write_all(stream.fileno(), chunk)
        else:
            _replace(target, chunks)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot write {os.fspath(path)}: {reason}") from error


def _write_all(handle: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _replace(target: Path, chunks: Iterable[bytes | memoryview]) -> None:
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
    # 0o666 less the umask, as for any new file; an existing file keeps its mode.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            for chunk in chunks:
                _write_all(handle, chunk)
            if target.exists():
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
        finally:
            os.close(handle)
        # Not synced, as what can be made again need not be: it would take longer than many a
        # compile, and the file's checksums detect damage by a power failure.
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
