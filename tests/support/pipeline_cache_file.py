"""The header of the Vulkan driver's pipeline cache file."""

from __future__ import annotations

import struct

import xxhash

# magic, version, vendor, device, driver version, pointer bytes, uuid, data bytes, checksums
LAYOUT = struct.Struct("<6I16sQQQ")

HEADER = LAYOUT.size


def header_of(whole: bytes, data: bytes, **changes: object) -> bytes:
    """The header of a file for `data`, otherwise that of `whole`; right but for the changes."""
    names = ("magic", "version", "vendor", "device", "driver", "pointer", "uuid")
    fields = dict(zip(names, LAYOUT.unpack_from(whole), strict=False)) | changes
    head = LAYOUT.pack(
        *(fields[name] for name in names), len(data), xxhash.xxh64_intdigest(data), 0
    )[:-8]
    return head + struct.pack("<Q", xxhash.xxh64_intdigest(head))
