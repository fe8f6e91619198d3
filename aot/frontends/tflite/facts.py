"""What a TFLite file says about itself: its description, and the texts of TFLite Metadata.

Owns the fields of `ModelMetadata` (tflite-support's metadata_schema.fbs) that are texts. Files that
are packed behind a model, such as lists of labels, are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

from aot.frontends.tflite.model import Model

_METADATA = "TFLITE_METADATA"  # the name of the buffer that holds a ModelMetadata
_IDENTIFIER = b"M001"
# The numbers of the fields of ModelMetadata that are texts.
_TEXTS = {0: "name", 1: "description", 2: "version", 4: "author", 5: "license"}


def facts_of(model: Model) -> Iterator[tuple[str, str]]:
    """The facts by key, in the file's order; TFLite Metadata comes after the plain description."""
    if model.description:
        yield "description", model.description
    for name, data in model.metadata():
        if name == _METADATA:
            yield from _texts(data)
        elif data is not None and name == "min_runtime_version":
            yield name, bytes(data).split(b"\0", 1)[0].decode(errors="replace")


def _texts(data: memoryview | None) -> Iterator[tuple[str, str]]:
    """The texts of a ModelMetadata; nothing where it is damaged, as nothing else depends on it."""
    if data is None or bytes(data[4:8]) != _IDENTIFIER:
        return
    with suppress(struct.error, IndexError):
        (root,) = struct.unpack_from("<I", data, 0)
        (distance,) = struct.unpack_from("<i", data, root)
        vtable = root - distance
        if vtable < 0:
            return
        (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
        for number, key in _TEXTS.items():
            if 6 + 2 * number > vtable_bytes:
                continue
            (place,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
            if place:
                yield key, _text(data, root + place)


def _text(data: memoryview, at: int) -> str:
    (offset,) = struct.unpack_from("<I", data, at)
    (count,) = struct.unpack_from("<I", data, at + offset)
    first = at + offset + 4
    if first + count > len(data):
        raise IndexError
    return bytes(data[first : first + count]).decode(errors="replace")
