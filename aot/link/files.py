"""Writes files atomically."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from aot.errors import CompileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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
    _remove_left_over(target)
    temporary, handle = _create_beside(target)
    try:
        try:
            for chunk in chunks:
                _write_all(handle, chunk)
            if target.exists():
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            # Not synced, as what can be made again need not be: it would take longer than many a
            # compile, and the file's checksums detect damage by a power failure.
            if fcntl is not None:  # while it is locked
                temporary.replace(target)
        finally:
            os.close(handle)
        if fcntl is None:
            temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _prefix(target: Path) -> str:
    return f".{target.name[:200]}."


def _create_beside(target: Path) -> tuple[Path, int]:
    """A new temporary file and its open handle, locked as long as it is open, also by a process
    that is killed."""
    while True:
        temporary = target.with_name(f"{_prefix(target)}{secrets.token_hex(6)}.tmp")
        # 0o666 less the umask, as for any new file; an existing file keeps its mode.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        _lock(handle, waits=True)
        if os.fstat(handle).st_nlink > 0:
            return temporary, handle
        os.close(handle)  # another process has taken it for left over, before it was locked


def _remove_left_over(target: Path) -> None:
    """Removes temporary files of writes to `target` whose processes were killed."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        for path in target.parent.glob(f"{glob.escape(_prefix(target))}{'[0-9a-f]' * 12}.tmp"):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if _lock(handle, waits=False):
                        path.unlink()
                finally:
                    os.close(handle)


def _lock(handle: int, *, waits: bool) -> bool:
    """Whether an open file is locked now; True where there are no locks."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError:  # another has it, or the file system has none
            return False
    return True
