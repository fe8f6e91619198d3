"""Reads the tensors of an archive: raw bytes, with each tensor's position in them.

Owns that a tensor stays inside its bytes. A pickle is read only as far as torch's `weights_only`
does, which makes tensors and runs nothing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import torch

from aot.errors import CompileError
from aot.frontends.torch.archive.entries import Entries
from aot.frontends.torch.archive.fields import Field, parsed

MOST_RANK = 64
EXPANDED = 64 << 20  # bytes of elements that strides may repeat, beyond twice those of the file
_STRIDED = 7
# Element types by the number that the file has for each.
DTYPES: Mapping[int, torch.dtype] = {
    number: getattr(torch, name)
    for number, name in {
        1: "uint8",
        2: "int8",
        3: "int16",
        4: "int32",
        5: "int64",
        6: "float16",
        7: "float32",
        8: "float64",
        9: "complex32",
        10: "complex64",
        11: "complex128",
        12: "bool",
        13: "bfloat16",
        28: "uint16",
        29: "float8_e4m3fn",
        30: "float8_e5m2",
        31: "float8_e4m3fnuz",
        32: "float8_e5m2fnuz",
        33: "float8_e8m0fnu",
        34: "uint32",
        35: "uint64",
    }.items()
    if hasattr(torch, name)
}


def dtype(field: Field) -> torch.dtype:
    """The torch element type that a field names by number.

    Raises:
        CompileError: there is none of that number.
    """
    found = DTYPES.get(field.integer())
    if found is None:
        raise field.error(f"is {field.value}, which is the number of no element type")
    return found


def check_layout(meta: Field) -> None:
    """Checks that a tensor is dense and unpacked, with a stride for each of its dims, which are
    few.

    Raises:
        CompileError: it is, or it has not.
    """
    layout = meta["layout"]
    if layout.integer() != _STRIDED:
        raise layout.error("is that of a sparse or packed tensor, which cannot be read")
    sizes, strides = meta["sizes"].items(), meta["strides"].items()
    if len(sizes) != len(strides) or len(sizes) > MOST_RANK:
        raise meta.error(
            f"has {len(sizes)} sizes and {len(strides)} strides, expected as many, at most "
            f"{MOST_RANK}"
        )


def has_gradient(meta: Field, kind: torch.dtype) -> bool:
    """Whether a tensor had gradients when it was saved."""
    return meta["requires_grad"].truth() and (kind.is_floating_point or kind.is_complex)


class Payloads:
    """Reads the tensors listed in a config, each file once, so that tensors share memory as they
    did.

    Args:
        entries: the archive.
        folder: of the files, as `data/weights/`.
    """

    def __init__(self, entries: Entries, folder: str) -> None:
        self._entries, self._folder = entries, folder
        self._bytes: dict[str, bytearray] = {}
        self._views: dict[tuple[Any, ...], torch.Tensor] = {}
        self._left = 2 * entries.file_bytes + EXPANDED  # bytes of elements that may follow

    def tensors(self, config: str) -> dict[str, torch.Tensor]:
        """The archive's tensors by name.

        Raises:
            CompileError: the config is wrong, or a tensor is more than its bytes.
        """
        found = parsed(self._entries.read(config), f"{self._entries.where}: {config}")
        payloads = found["config"]
        return {
            Field(name, "a tensor's name", payloads).path(): self._tensor(name, meta)
            for name, meta in payloads.entries()
        }

    def _tensor(self, name: str, payload: Field) -> torch.Tensor:
        path = payload["path_name"].text()
        if payload["use_pickle"].truth():
            return _unpickled(
                self._entries.read(self._folder + path), f"{self._entries.where}: tensor {name!r}"
            )
        meta = payload["tensor_meta"]
        tensor = self._strided(path, meta)
        if not payload["is_param"].truth():
            return tensor
        return torch.nn.Parameter(tensor, requires_grad=has_gradient(meta, tensor.dtype))

    def _strided(self, path: str, meta: Field) -> torch.Tensor:
        check_layout(meta)
        kind = dtype(meta["dtype"])
        sizes = [_known(size) for size in meta["sizes"].items()]
        strides = [_known(stride) for stride in meta["strides"].items()]
        offset = _known(meta["storage_offset"])
        key = (path, kind, tuple(sizes), tuple(strides), offset)
        if key not in self._views:
            self._check(meta, len(self._read(path)), kind.itemsize)
            flat = torch.zeros(0, dtype=kind)
            if 0 not in sizes:
                data = self._read(path)
                flat = torch.frombuffer(data, dtype=kind, count=len(data) // kind.itemsize)
            self._views[key] = flat.as_strided(sizes, strides, offset)
        return self._views[key]

    def _check(self, meta: Field, file_bytes: int, width: int) -> None:
        """Checks that a tensor is within its file, and that its strides do not repeat many
        elements."""
        sizes, strides = ([_known(n) for n in meta[key].items()] for key in ("sizes", "strides"))
        if 0 in sizes:
            return
        last = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
        end = (_known(meta["storage_offset"]) + last + 1) * width
        if end > file_bytes:
            raise meta.error(f"is a tensor up to byte {end} of a file of {file_bytes}")
        self._left -= math.prod(sizes) * width
        if self._left < 0:
            raise meta.error(
                f"is a tensor of {math.prod(sizes) * width} bytes in a file of {file_bytes}: save "
                "the program with contiguous tensors"
            )

    def _read(self, path: str) -> bytearray:
        if path not in self._bytes:
            self._bytes[path] = bytearray(self._entries.read(self._folder + path))
        return self._bytes[path]


def _known(field: Field) -> int:
    """A size that must be an integer; an error if it is symbolic."""
    kind, value = field.union()
    if kind != "as_int":
        raise field.error("is symbolic, expected an integer")
    return value.integer(0)


def pickled_tensors(data: bytes, where: str) -> dict[str, torch.Tensor]:
    """The tensors by name in a torch.save file, as archives before torch 2.8 contain them.

    Raises:
        CompileError: there is more in it than tensors.
    """
    if not data:
        return {}
    found = _unpickled(data, where)
    if not isinstance(found, dict):
        raise CompileError(f"{where}: is no dict of tensors")
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            raise CompileError(f"{where}: has {name!r}, which is no tensor")
        Field(name, where).path()
        if tensor.numel() * tensor.element_size() > len(data):
            raise CompileError(f"{where}: tensor {name!r} has more bytes than its file")
    return found


def _unpickled(data: bytes, where: str) -> Any:
    """The contents of a torch.save file, loaded by torch with `weights_only`."""
    with Entries(data, where):
        pass  # its check bounds what torch inflates; what is older than archives is refused
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # torch's own checks have no common base
        raise CompileError(
            f"{where} is a pickle of more than tensors, which could run code and is not read; if "
            "you trust the file, give torch.export.load of it to aot.compile"
        ) from error
