"""`aot.merge`: merges compiled models into one module, with an entry point each.

Owns how entry points get their names and what may be given; the merging is `aot.link.merge`'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aot.api import CompiledModule
from aot.errors import CompileError
from aot.frontends.registry import check_is_module
from aot.link.image import ModuleImage
from aot.link.merge import MergeInput, merge_modules
from aot.link.reader import read_module
from aot.options import DEFAULT_ENTRY, check_entry_name, split_name

Source = str | os.PathLike[str] | bytes | CompiledModule


def merge(
    modules: Sequence[Source] | Mapping[str, Source], *, share_constants: bool = True
) -> CompiledModule:
    """Merges modules into one with the entry points of all, which share code, shaders and
    constants.

    Results and speed of each are what they were alone. `aot.load(..., entry=NAME)` opens one.

    Args:
        modules: paths, bytes or compiled modules. An entry point keeps the name that it was
            compiled with; where it was given none, it is called as its file without the extension.
            "FILE:NAME", or a mapping from names, says what the one entry point of a module is
            called.
        share_constants: whether equal constants are stored once.

    Raises:
        CompileError: the modules are for unlike targets, two entry points have one name, a module
            was compiled with `strip`, or a file cannot be read.
    """
    if isinstance(modules, Mapping):
        inputs = [_input(source, name) for name, source in modules.items()]
    else:
        inputs = [_input(*split_name(source)) for source in modules]
    merged = merge_modules(inputs, shares_rodata=share_constants)
    return CompiledModule(merged.image, {"merge": merged.counts})


def _input(source: Source, name: str | None) -> MergeInput:
    image, label = _read(source)
    names = [e.name for e in image.variants[0].entry_points]
    if name is not None:
        check_entry_name(name)
        if len(names) != 1:
            raise CompileError(
                f"{label} has the entry points {', '.join(names)}: only the one of a module with "
                f"one can be named {name!r}"
            )
        return MergeInput(label, image, {names[0]: name})
    if names == [DEFAULT_ENTRY] and isinstance(source, str | os.PathLike):
        return MergeInput(label, image, {DEFAULT_ENTRY: Path(source).stem})
    return MergeInput(label, image)


def _read(source: Source) -> tuple[ModuleImage, str]:
    if isinstance(source, CompiledModule):
        return source.image, "a module"
    if isinstance(source, bytes):
        return read_module(source), "a module"
    check_is_module(source)
    return read_module(source), os.fspath(source)
