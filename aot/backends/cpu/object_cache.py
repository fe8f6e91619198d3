"""A content-addressed cache of compiled objects on disk, safe to share and to lose.

Owns the folder, the files' form, their checksums and which of them go when there are too many.
Knows nothing of kernels: a key says everything that its object depends on. Whatever the disk does,
a compile goes on without it: what fails is said once, as a `CacheWarning`. What is found here is
linked into modules and run, and a checksum keeps nobody from writing it: only a folder that is the
user's own is used, and only files in it that are.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from aot.base.records import dataclass
from aot.errors import CacheWarning, CompileError

FOLDER_VARIABLE = "AOT_CACHE_DIR"
LIMIT_VARIABLE = "AOT_CACHE_MB"
DEFAULT_LIMIT_BYTES = 512 << 20

_MAGIC = b"AOTOBJ1\n"
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = len(_MAGIC) + 2 * 32 + _LENGTH.size
# Bytes added since entries were last counted, a line a compile: so that they need not be counted
# at every one.
_LEDGER = "ledger"
_LEDGER_LINES = 4096
# Keys of compiles whose objects were all kept, a line each; what is lost of it costs nothing.
_MET = "met"
_MET_LINES = 4096
_TEMPORARY = ".tmp"
# A temporary file of a process that was killed; one that lives is done in seconds.
_STALE_SECONDS = 3600
# What is kept when entries must go: enough below the limit that it is not soon reached again.
_KEPT = 0.75


@dataclass(frozen=True)
class CacheInfo:
    """Facts about a cache's folder.

    Attributes:
        folder: where it is; None where none can be found.
        entries: objects.
        bytes: their files' size.
        limit_bytes: where entries begin to go, those least recently used first.
    """

    folder: Path | None
    entries: int
    bytes: int
    limit_bytes: int


def default_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """`AOT_CACHE_DIR`, or the system's cache folder; None where none is known.

    Linux and others: `$XDG_CACHE_HOME/aotc`, else `~/.cache/aotc`. macOS: `~/Library/Caches/aotc`.
    Windows: `%LOCALAPPDATA%\\aotc\\cache`.
    """
    if given := environment.get(FOLDER_VARIABLE):
        return Path(given)
    if sys.platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return Path(local, "aotc", "cache") if local else None
    # The specification has relative paths in it ignored.
    if (xdg := environment.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():
        return Path(xdg, "aotc")
    home = environment.get("HOME")
    if not home or not Path(home).is_absolute():
        return None
    return Path(home, *(("Library", "Caches") if sys.platform == "darwin" else (".cache",)), "aotc")


def default_limit(environment: Mapping[str, str] = os.environ) -> int:
    """`AOT_CACHE_MB` in bytes, or the default.

    Raises:
        CompileError: the variable is no number of megabytes.
    """
    given = environment.get(LIMIT_VARIABLE)
    if not given:
        return DEFAULT_LIMIT_BYTES
    if not given.isdecimal():
        raise CompileError(f"{LIMIT_VARIABLE} is {given!r}, expected a number of megabytes")
    return int(given) << 20


def key_of(parts: Iterable[bytes]) -> str:
    """The cache key of an object made from `parts`, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_LENGTH.pack(len(part)))
        digest.update(part)
    return digest.hexdigest()


@dataclass
class ObjectCache:
    """The objects of one folder, for one compile.

    Any number of processes may use one folder: an entry appears whole, by a rename, and what two
    make at once is equal. Not to be shared by threads.

    Attributes:
        folder: None is a cache that has nothing and keeps nothing.
        hits, misses: answers of `get`.
    """

    folder: Path | None
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    hits: int = 0
    misses: int = 0
    _added_bytes: int = field(default=0, init=False)
    _is_writable: bool = field(default=True, init=False)
    _is_warned: bool = field(default=False, init=False)

    @staticmethod
    def at(folder: Path | None = None, *, is_used: bool = True) -> ObjectCache:
        """The cache in `folder`, or in the environment's. If it `is_used`, rather than just
        inspected or cleared, a folder that is not the user's own disables it.

        Raises:
            CompileError: the environment's limit is wrong.
        """
        found = ObjectCache(folder or default_folder(), default_limit())
        if found.folder is None:
            found._warn("there is no home folder to keep compiled code in")
        elif is_used and (reason := _distrust(found.folder)):
            found._warn(reason)
            found.folder = None
        return found

    def get(self, key: str, is_whole: Callable[[bytes], bool] | None = None) -> bytes | None:
        """The object under `key`; None where there is none. Damaged entries are removed; `is_whole`
        finds damage that the checksum does not."""
        data = self.find(key, is_whole)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data

    def find(self, key: str, is_whole: Callable[[bytes], bool] | None = None) -> bytes | None:
        """An entry as `get` returns it, for entries that are not objects and not counted."""
        return self._read(key, is_whole)

    def put(self, key: str, data: bytes) -> None:
        """Stores an object; does nothing if the folder cannot be written."""
        if self.folder is None or not self._is_writable:
            return
        path = self._path(key)
        digest = hashlib.sha256(data).digest()
        entry = b"".join((_MAGIC, bytes.fromhex(key), digest, _LENGTH.pack(len(data)), data))
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, entry)
        except OSError as error:
            self._is_writable = False
            self._warn(f"cannot write {self.folder}: {_reason(error)}")
            return
        self._added_bytes += len(entry)

    def has_met(self, key: str) -> bool:
        """Whether `meet` was called with `key`, so that its objects are probably cached."""
        if self.folder is None:
            return False
        try:
            return key.encode() in (_read_own(self.folder / _MET) or b"").split(b"\n")
        except OSError:
            return False

    def meet(self, key: str) -> None:
        """Records a compile whose objects are in the cache, so that a later one need not start
        workers early."""
        if self.folder is None or not self._is_writable:
            return
        path = self.folder / _MET
        with contextlib.suppress(OSError):
            lines = (_read_own(path) or b"").split(b"\n")[-_MET_LINES:-1] if path.exists() else []
            write_whole(path, b"\n".join((*lines, key.encode(), b"")))

    def close(self) -> None:
        """Updates the ledger, and removes the least recently used entries over the limit. To be
        called once, after the last `put`."""
        if self.folder is None or not self._added_bytes:
            return
        added, self._added_bytes = self._added_bytes, 0
        with contextlib.suppress(OSError):
            total = self._book(added)
            if total is None or total > self.limit_bytes:
                self._trim()

    def info(self) -> CacheInfo:
        """The folder's current contents."""
        entries = list(self._entries())
        return CacheInfo(self.folder, len(entries), sum(e.bytes for e in entries), self.limit_bytes)

    def clear(self) -> CacheInfo:
        """Removes all entries; returns their number and size as they were before.

        Raises:
            CompileError: an entry cannot be removed.
        """
        found = self.info()
        try:
            for entry in self._entries():
                entry.path.unlink(missing_ok=True)
            if self.folder is not None:
                self._remove_stale(0)
                (self.folder / _LEDGER).unlink(missing_ok=True)
                (self.folder / _MET).unlink(missing_ok=True)
        except OSError as error:
            raise CompileError(f"cannot clear {self.folder}: {_reason(error)}") from None
        return found

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / key[2:]

    def _read(self, key: str, is_whole: Callable[[bytes], bool] | None) -> bytes | None:
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            entry = _read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ENOTDIR:
                self._warn(f"cannot read {self.folder}: {_reason(error)}")
            return None
        data = None if entry is None else _checked(entry, key)
        if data is not None and is_whole is not None and not is_whole(data):
            data = None
        with contextlib.suppress(OSError):
            if data is None:
                path.unlink()
            else:
                os.utime(path)  # its time of use: many systems do not keep one themselves
        return data

    def _book(self, added: int) -> int | None:
        """Adds bytes to the ledger, and returns their total; None where the files must be
        counted."""
        assert self.folder is not None
        ledger = self.folder / _LEDGER
        is_new = not ledger.exists()
        with open(ledger, "ab", opener=_open_own) as stream:
            stream.write(b"%d\n" % added)
        if is_new:
            return None
        lines = (_read_own(ledger) or b"?\n").split(b"\n")[:-1]
        if len(lines) > _LEDGER_LINES or not all(line.isdigit() for line in lines):
            return None
        return sum(map(int, lines))

    def _trim(self) -> None:
        """Removes least recently used entries while the cache is over its limit."""
        assert self.folder is not None
        self._remove_stale(_STALE_SECONDS)
        entries = sorted(self._entries(), key=lambda e: (e.used, e.path.name))
        total = sum(e.bytes for e in entries)
        if total > self.limit_bytes:
            for entry in entries:
                if total <= self.limit_bytes * _KEPT:
                    break
                with contextlib.suppress(OSError):
                    entry.path.unlink(missing_ok=True)
                    total -= entry.bytes
        write_whole(self.folder / _LEDGER, b"%d\n" % total)

    def _entries(self) -> Iterator[_Entry]:
        for path in self._files():
            if path.suffix != _TEMPORARY:
                with contextlib.suppress(OSError):  # another process may have removed it
                    facts = path.stat()
                    yield _Entry(path, facts.st_size, facts.st_mtime_ns)

    def _remove_stale(self, seconds: float) -> None:
        assert self.folder is not None
        now = time.time()
        others = (p for name in (_LEDGER, _MET) for p in self.folder.glob(f"{name}.*"))
        for path in (*self._files(), *others):
            if path.suffix == _TEMPORARY:
                with contextlib.suppress(OSError):
                    if abs(now - path.stat().st_mtime) >= seconds:  # clocks jump
                        path.unlink()

    def _files(self) -> Iterator[Path]:
        """Files of the cache, recognised by their names, so that others in the folder are never
        removed.
        """
        if self.folder is None or not self.folder.is_dir():
            return
        for part in sorted(self.folder.iterdir()):
            if _is_hex(part.name, 2) and part.is_dir():
                for path in sorted(part.iterdir()):
                    if _is_hex(path.name[:62], 62) and path.suffix in ("", _TEMPORARY):
                        yield path

    def _warn(self, reason: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            warnings.warn(f"compiled code is not cached: {reason}", CacheWarning, stacklevel=2)


@dataclass(frozen=True)
class _Entry:
    path: Path
    bytes: int
    used: int


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and not set(text) - set("0123456789abcdef")


def _distrust(folder: Path) -> str | None:
    """Why files in a folder may have been written by others; None if the folder is the user's
    alone, or does not exist yet. Windows has no such owners: its default folder is in the user's
    profile.
    """
    try:
        facts = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if os.name == "posix" and stat.S_ISDIR(facts.st_mode) and facts.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}: 'chmod go-w' makes it the user's own"
    return None


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _open_own(path: str, flags: int) -> int:
    """Opens a file that is not a link, without blocking on the other end of a pipe."""
    more = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    return os.open(path, flags | sum(getattr(os, name, 0) for name in more), 0o600)


def _read_own(path: Path) -> bytes | None:
    """The bytes of a file owned by the user; None for a link, a pipe, a device or another's file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb", opener=_open_own) as stream:
            facts = os.fstat(stream.fileno())
            is_own = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
            return stream.read() if is_own and stat.S_ISREG(facts.st_mode) else None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def _checked(entry: bytes, key: str) -> bytes | None:
    """The object in an entry's bytes; None if they are damaged or belong to another key."""
    data = entry[_HEADER_BYTES:]
    head = (_MAGIC, bytes.fromhex(key), hashlib.sha256(data).digest(), _LENGTH.pack(len(data)))
    return data if entry[:_HEADER_BYTES] == b"".join(head) else None


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file completely or not at all. It is not synced: damage by a power cut is found by
    the checksum."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}{_TEMPORARY}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
