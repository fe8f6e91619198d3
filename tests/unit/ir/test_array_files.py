"""Arrays in .npy and .npz files: what the file has bytes for, or one error."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from aot.errors import CompileError
from aot.ir.array_files import array, arrays

HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i8", "u1", "?", ">i4", "U3"])
def test_what_numpy_saves_is_read(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    count = int(np.prod(shape))
    made = np.arange(count).reshape(shape).astype(dtype)
    for number, one in enumerate((made, np.asfortranarray(made))):
        path = tmp_path / f"{number}.npy"
        np.save(path, one)
        found = array(path)
        assert (found.dtype, found.shape) == (one.dtype, one.shape)
        np.testing.assert_array_equal(found, one)
    np.savez(tmp_path / "z.npz", a=made, b=made.ravel())
    several = arrays(tmp_path / "z.npz")
    assert isinstance(several, dict) and list(several) == ["a", "b"]
    np.testing.assert_array_equal(several["a"], made)


def _zipped(**entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


WRONG = {
    "nothing": b"",
    "text": b"hello",
    "a shape beyond the file": npy(HEADER % "1 << 50,"),
    "an extent beyond the file": npy(HEADER % f"{1 << 50},"),
    "extents whose product is beyond the file": npy(HEADER % f"{1 << 40}, {1 << 40}"),
    "extents of both signs": npy(HEADER % "-2, -2", bytes(16)),
    "one byte too few": npy(HEADER % "4,", bytes(15)),
    "no header": npy("x"),
    "a header without an end": npy("{'descr': '<f4'"),
    "nested brackets": npy("(" * 9000),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps([1])),
    "another version": npy(HEADER % "1,", bytes(4), b"\7\0"),
    "a pickle": pickle.dumps([1, 2]),
    "half an archive": _zipped(a=npy(HEADER % "1,", bytes(4)))[:40],
    "an entry that is no array": _zipped(a=b"hello"),
    "an entry that is too short": _zipped(a=npy(HEADER % "9,", bytes(4))),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(WRONG[name])
    with pytest.raises(CompileError) as failure:
        arrays(path)
    assert str(failure.value) == f"{path} is not a .npy file of numbers"


def test_several_arrays_are_not_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with pytest.raises(CompileError, match=r"^input: .*a\.npz is not a \.npy file of numbers$"):
        array(tmp_path / "a.npz", "input: ")
