"""`--format static-library`: an archive of code, weights and programs, with its header and the
loader.

Owns the choice of the variant, the limits of a board and who is named when they are passed. Needs
no compiler: the object is written by `objects`, the loader is one C file that the app compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.link.image import Arch, Device, VariantImage
from aot.packaging.apple import apple_archive, macho_object
from aot.packaging.contributors import arena_contributors, flash_contributors
from aot.packaging.files import File, PackageInput
from aot.packaging.header import HeaderEntry, header_text
from aot.packaging.names import identifiers
from aot.packaging.objects import Blob, archive, elf_object
from aot.packaging.runtime_sources import runtime_sources
from aot.packaging.static_program import static_program

_LOADER = ("packaging/static/aot_static.h", "packaging/static/aot_static.c")
_WEIGHTS_ALIGNMENT = 64
_PROGRAM_ALIGNMENT = 8


@dataclass(frozen=True)
class LibraryLimits:
    """Size limits of a static library on a board; None is no limit.

    Attributes:
        arena_bytes: RAM that the caller must give, for the entry point that needs most.
        flash_bytes: code, weights and programs.
    """

    arena_bytes: int | None = None
    flash_bytes: int | None = None


def library_files(given: PackageInput, limits: LibraryLimits) -> tuple[list[File], dict[str, int]]:
    """(files, sizes by name) of a package with a static library.

    Raises:
        CompileError: not one CPU variant, or a limit is passed.
        UnsupportedError: a program needs an allocator.
    """
    variant = _only_variant(given.image.variants)
    weights = bytes(given.image.rodata)
    entries = _entries(given.name, variant, len(weights))
    blobs = [
        Blob(f"{given.name}_code", variant.code, variant.page_bytes, is_code=True),
        Blob(f"{given.name}_weights", weights, _WEIGHTS_ALIGNMENT),
        *(Blob(e.program_symbol, e.program.data, _PROGRAM_ALIGNMENT) for e in entries),
    ]
    sources = runtime_sources()
    program_bytes = sum(len(e.program.data) for e in entries)
    arena_bytes = max(e.program.memory_bytes for e in entries)
    flash_bytes = len(variant.code) + len(weights) + program_bytes
    _check(limits.arena_bytes, arena_bytes, "arena", lambda: arena_contributors(given, entries))
    _check(
        limits.flash_bytes, flash_bytes, "flash", lambda: flash_contributors(given, program_bytes)
    )
    files = [
        File(f"lib{given.name}.a", _archive(given.name, variant, blobs)),
        File(f"{given.name}.h", header_text(given.name, variant.target, entries).encode()),
        *(File(name.rpartition("/")[2], sources.read(name)) for name in _LOADER),
    ]
    facts = {
        "arena_bytes": arena_bytes,
        "flash_bytes": flash_bytes,
        "code_bytes": len(variant.code),
        "weights_bytes": len(weights),
        "program_bytes": program_bytes,
    }
    return files, facts


def _archive(name: str, variant: VariantImage, blobs: Sequence[Blob]) -> bytes:
    symbols = [blob.symbol for blob in blobs]
    if variant.arch is Arch.AARCH64 and "apple" in variant.target:
        return apple_archive(f"{name}.o", macho_object(blobs), symbols)
    data = elf_object(variant.arch, variant.features, blobs)
    return archive(f"{name}.o", data, symbols)


def _only_variant(variants: Sequence[VariantImage]) -> VariantImage:
    found = [v for v in variants if v.device is Device.CPU]
    if len(found) != 1:
        names = ", ".join(v.target for v in found) or "none for a CPU"
        raise CompileError(
            f"a static library holds one variant, the module has {names}: choose with --target"
        )
    if found[0].arch is Arch.WASM32:
        raise CompileError(f"{found[0].target} has no static libraries: take --format wasm")
    return found[0]


def _entries(name: str, variant: VariantImage, weights_bytes: int) -> list[HeaderEntry]:
    """The entry points with their C names; a single one takes the name of the library."""
    points = variant.entry_points
    names = identifiers(e.name for e in points)
    found = []
    for own, entry in zip(names, points, strict=True):
        prefix = name if len(points) == 1 else f"{name}_{own}"
        program = static_program(variant, entry, weights_bytes)
        found.append(HeaderEntry(prefix, f"{prefix}_program", entry, program))
    return found


def _check(limit: int | None, size: int, what: str, largest: Callable[[], list[str]]) -> None:
    if limit is not None and size > limit:
        raise CompileError(
            f"--max-{what} is {limit}, the library needs {size} bytes: {', '.join(largest())}"
        )
