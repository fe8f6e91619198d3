"""Reading NumPy's .npy and .npz files, with the header's claims checked against the file's size.

Owns what is said of a file that has none. NumPy allocates what a header claims before it reads, so
a file of a hundred bytes may ask for terabytes: the claim is compared with the file first.
"""

from __future__ import annotations

import math
import os
import zipfile
from typing import IO, Any

import numpy as np

from aot.errors import CompileError
from aot.ir import input_files

Array = np.ndarray[Any, Any]


def array(path: str | os.PathLike[str], where: str = "") -> Array:
    """The array of a .npy file.

    Args:
        where: what messages put before the file's name.

    Raises:
        CompileError: it can't be read, or has no array of numbers.
    """
    found = arrays(path, where)
    if isinstance(found, np.ndarray):
        return found
    raise CompileError(f"{where}{path} is not a .npy file of numbers")


def arrays(path: str | os.PathLike[str], where: str = "") -> Array | dict[str, Array]:
    """The array of a .npy file, or the arrays of a .npz file by name.

    Raises:
        CompileError: it can't be read, or has something else.
    """
    try:
        with input_files.opened(path) as stream:
            start = stream.read(4)
            stream.seek(0)
            if start[:2] != b"PK":
                return _array(stream, os.fstat(stream.fileno()).st_size)
            with zipfile.ZipFile(stream) as archive:
                return dict(_entry(archive, info) for info in archive.infolist())
    except OSError as error:
        raise CompileError(
            f"{where}cannot read {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    except MemoryError:
        raise CompileError(f"{where}{path} does not fit the memory of this machine") from None
    except Exception as error:  # NumPy's and zipfile's checks have no common base
        kind = "npz" if str(path).endswith(".npz") else "npy"
        raise CompileError(f"{where}{path} is not a .{kind} file of numbers") from error


def _entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[str, Array]:
    with archive.open(info) as stream:
        return info.filename.removesuffix(".npy"), _array(stream, info.file_size)


def _array(stream: IO[bytes], file_bytes: int) -> Array:
    """The array in a .npy stream of `file_bytes` bytes."""
    version = np.lib.format.read_magic(stream)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:
        raise ValueError(f"version {version} of .npy files is for names of fields")
    shape, is_fortran, dtype = header(stream)
    if dtype.hasobject:
        raise ValueError("it holds objects of Python")
    array_bytes = math.prod(shape) * dtype.itemsize
    if any(extent < 0 for extent in shape) or array_bytes > file_bytes - stream.tell():
        raise ValueError("it is shorter than its header says")
    data = bytearray(stream.read(array_bytes))
    made = np.frombuffer(data, dtype, math.prod(shape)) if data else np.zeros(shape, dtype)
    return made.reshape(shape[::-1]).transpose() if is_fortran else made.reshape(shape)
