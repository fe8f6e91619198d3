"""Packages a module file for a project, the shell of a device, or a board.

    package("model.aotm", "source", "out")       sources, for CMake
    package("model.aotm", "executable", "out")   one program
    package("model.aotm", "static-library", "out")
    package("model.aotm", "wasm", "out")         for browsers and Node

Owns what all formats share: reading the module, choosing its variants, writing the folder. A format
says which files there are and compiles no model.

Files:
    source, executable, static_library, wasm: the formats
    files, header, names, contributors: what a format gets and gives; C headers and names; what
        takes most memory
    compiling, toolchain, runtime_sources: C compilers and the runtime's sources
    objects, apple, static_program: object files of bytes; programs for the static runtime
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.link.files import write_atomically
from aot.link.image import ModuleImage
from aot.link.notes import VariantNotes, decode_notes
from aot.link.reader import read_module
from aot.packaging.executable import ExecutableOptions, executable_files
from aot.packaging.files import File, PackageInput
from aot.packaging.names import identifier
from aot.packaging.source import source_files
from aot.packaging.static_library import LibraryLimits, library_files
from aot.packaging.wasm import wasm_files

FORMATS = ("source", "executable", "static-library", "wasm")


@dataclass(frozen=True)
class PackageOptions:
    """The options of packaging.

    Attributes:
        targets: the variants to keep, by name; all of them where it is empty.
        name: what files, and symbols of a library, are called; by default the module's own name.
        executable: of the formats executable and wasm, which compile.
        limits: of the format static-library.
        drop: devices whose variants are left out, such as "vulkan".
    """

    targets: Sequence[str] = ()
    name: str | None = None
    executable: ExecutableOptions = field(default_factory=ExecutableOptions)
    limits: LibraryLimits = field(default_factory=LibraryLimits)
    drop: Sequence[str] = ()


@dataclass(frozen=True)
class Package:
    """The result of packaging.

    Attributes:
        folder: where.
        files: names in it, with their bytes' count.
        facts: figures worth telling, such as an arena's bytes.
    """

    folder: Path
    files: Mapping[str, int]
    facts: Mapping[str, int]


def package(
    module: str | os.PathLike[str],
    format: str,
    folder: str | os.PathLike[str],
    options: PackageOptions | None = None,
) -> Package:
    """Writes the package of a module file to a folder, which is created if it is missing.

    Files that are in the folder already and have other names stay.

    Raises:
        CompileError: no such module, variant or format; a file can't be written; the format can't
            hold the module, or a limit is passed; a compiler is missing or fails.
    """
    options = options or PackageOptions()
    whole = read_module(module)
    kept = _chosen(whole, options, os.fspath(module))
    name = identifier(options.name or Path(module).name.removesuffix(".aotm"))
    image = replace(whole, variants=tuple(whole.variants[i] for i in kept), notes=b"")
    given = PackageInput(name, image, _notes(whole, kept))
    makers: dict[str, Callable[[], tuple[list[File], dict[str, int]]]] = {
        "source": lambda: source_files(given),
        "executable": lambda: executable_files(given, options.executable),
        "static-library": lambda: library_files(given, options.limits),
        "wasm": lambda: wasm_files(given, options.executable.compiler),
    }
    if format not in makers:
        raise CompileError(f"unknown format {format!r}: formats are {', '.join(FORMATS)}")
    files, facts = makers[format]()
    return Package(Path(folder), _write(Path(folder), files), facts)


def _chosen(image: ModuleImage, options: PackageOptions, where: str) -> list[int]:
    """The indices of the requested variants in the module; all if none is requested."""
    targets, known = options.targets, [variant.target for variant in image.variants]
    for target in targets:
        if target not in known:
            raise CompileError(f"{where} has no variant {target!r}, it has {', '.join(known)}")
    devices = [variant.device.name.lower() for variant in image.variants]
    for device in options.drop:
        if device not in devices:
            raise CompileError(
                f"{where} has no variant for {device}, which is to be left out; it has variants "
                f"for {', '.join(dict.fromkeys(devices))}"
            )
    kept = [
        i
        for i, (target, device) in enumerate(zip(known, devices, strict=True))
        if (not targets or target in targets) and device not in options.drop
    ]
    if not kept:
        raise CompileError(f"{where}: no variant is left to package")
    return kept


def _notes(image: ModuleImage, kept: Sequence[int]) -> tuple[VariantNotes, ...]:
    if not image.notes:
        return ()
    try:
        found = decode_notes(image.notes).variants
    except ValueError:  # another version's: they only serve to name things
        return ()
    return tuple(found[i] for i in kept)


def _write(folder: Path, files: Sequence[File]) -> dict[str, int]:
    for file in files:
        path = folder / file.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CompileError(f"cannot write {path.parent}: {reason}") from error
        write_atomically(path, [file.data])
        if file.is_executable:
            path.chmod(path.stat().st_mode | 0o111 & ~_umask())
    return {file.name: len(file.data) for file in files}


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
