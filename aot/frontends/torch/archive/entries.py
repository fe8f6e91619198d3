"""The entries of an untrusted zip archive: names and sizes are checked before an entry is read.

Owns the bounds of an archive. torch stores its entries as they are; one that was packed again may
have them deflated, up to a bound for all of them together.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import IO

from aot.errors import CompileError
from aot.ir import input_files
from aot.ir.limits import most_inflated

MOST_ENTRIES = 1 << 18
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Entries:
    """An archive's entries by name, without their common folder; a context manager, which closes
    the file.

    Args:
        source: its path or bytes.
        where: what messages call it.

    Attributes:
        file_bytes: length of the archive.

    Raises:
        CompileError: it is no archive, or its entries have more bytes.
    """

    def __init__(self, source: Path | bytes, where: str) -> None:
        self.where = where
        try:
            self._file: IO[bytes] = (
                io.BytesIO(source) if isinstance(source, bytes) else input_files.opened(source)
            )
            self._zip = zipfile.ZipFile(self._file)
        except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
            raise CompileError(f"{where}: is a broken zip archive: {error}") from None
        infos = self._zip.infolist()
        self.file_bytes = self._file.seek(0, io.SEEK_END)
        most = most_inflated(self.file_bytes)
        total = sum(info.file_size for info in infos)
        if total > most:
            raise CompileError(
                f"{where}: its entries have {total} bytes in a file of {self.file_bytes}, expected "
                f"at most {most}: save it as torch does, without compression, or allow more with "
                "--limit-memory MIB (limit_memory)"
            )
        if len(infos) > MOST_ENTRIES:
            raise CompileError(
                f"{where}: has {len(infos)} entries, expected at most {MOST_ENTRIES}"
            )
        first = infos[0].filename.split("/")[0] + "/" if infos else ""
        is_nested = all(info.filename.startswith(first) for info in infos)
        prefix = first if is_nested and f"{first}archive_format" in self._zip.NameToInfo else ""
        self._infos = {info.filename.removeprefix(prefix): info for info in infos}
        if len(self._infos) != len(infos):
            raise CompileError(f"{where}: has two entries of one name")

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def names(self) -> list[str]:
        return list(self._infos)

    def read(self, name: str) -> bytes:
        """The bytes of an entry.

        Raises:
            CompileError: there is no such entry, or it can't be read.
        """
        info = self._infos.get(name)
        if info is None:
            raise CompileError(f"{self.where}: has no entry {name!r}")
        if info.compress_type not in _METHODS or info.flag_bits & 1:
            raise CompileError(f"{self.where}: entry {name!r} is encrypted or packed otherwise")
        try:
            return self._zip.read(info)
        except (OSError, EOFError, ValueError, NotImplementedError) as error:
            reason: object = error
        except (zipfile.BadZipFile, zlib.error) as error:
            reason = error
        raise CompileError(f"{self.where}: entry {name!r} can't be read: {reason}")
