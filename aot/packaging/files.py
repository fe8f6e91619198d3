"""The input and output of packaging formats: a module's contents, and files as bytes."""

from __future__ import annotations

from aot.base.records import dataclass
from aot.link.image import ModuleImage
from aot.link.notes import VariantNotes


@dataclass(frozen=True)
class PackageInput:
    """A module to package.

    Attributes:
        name: a C identifier; files and symbols are called after it.
        image: with the chosen variants only, and without notes.
        notes: of these variants; empty where the module has none.
    """

    name: str
    image: ModuleImage
    notes: tuple[VariantNotes, ...] = ()


@dataclass(frozen=True)
class File:
    """A file of a package; `name` is its path in the package's folder."""

    name: str
    data: bytes
    is_executable: bool = False
