"""Opens files named by the user for reading: only regular files, which neither block nor grow
without end.

Owns the one way in which models, data beside them, targets, calibration inputs and caches are
opened: without waiting, and only if what is there is a regular file. A pipe without a writer would
wait for ever, and a device may be endless or act when it is read. Knows no format.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)  # a pipe opens without a writer
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS = (
    (stat.S_ISDIR, "is a directory"),
    (stat.S_ISFIFO, "is a pipe, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)
STANDARD_INPUT = "-"
_PART_BYTES = 1 << 20


class NoFileError(OSError):
    """The path is not a regular file; `strerror` says what it is."""


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """A regular file, open for reading its bytes; the caller closes it.

    Raises:
        NoFileError: it is a folder, pipe, socket or device.
        OSError: it can't be opened.
        ValueError: the path has a NUL.
    """
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # of a socket
            raise NoFileError(error.errno, "is a socket, not a file", str(path)) from None
        raise
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            reason = next((text for is_it, text in _KINDS if is_it(mode)), "is no file")
            raise NoFileError(errno.EINVAL, reason, str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def contents(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file.

    Raises:
        NoFileError: it is none.
        OSError: it can't be read.
        ValueError: the path has a NUL.
    """
    with opened(path) as stream:
        return stream.read()


def text(path: str | os.PathLike[str]) -> str:
    """The text of a regular UTF-8 file.

    Raises:
        NoFileError: it is none.
        OSError: it can't be read.
        ValueError: it is no UTF-8, or the path has a NUL.
    """
    return contents(path).decode("utf-8")


def standard_input(most_bytes: int) -> bytes:
    """All bytes of standard input; an error if there are more than `most_bytes`.

    Raises:
        OSError: it has more, or can't be read.
    """
    parts: list[bytes] = []
    left = most_bytes
    while part := sys.stdin.buffer.read(min(_PART_BYTES, left + 1)):
        left -= len(part)
        if left < 0:
            raise OSError(errno.EFBIG, f"has more than {most_bytes} bytes")
        parts.append(part)
    return b"".join(parts)
