"""The PyTorch importer, for modules, exported programs and `.pt2` files.

Importing this package fills the table of ops and does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aot.frontends.torch.ops  # noqa: F401 - fills the table of ops
from aot.errors import CompileError, UnsupportedError
from aot.frontends.torch.importer import import_program
from aot.frontends.torch.program import Exported
from aot.frontends.torch.table import supported_ops
from aot.ir.graph import Module

__all__ = ["Exported", "calling_of", "exported_module", "import_torch", "opened", "supported_ops"]


def import_torch(source: Any, *, random_seed: int = 0) -> Module:
    """Imports a program; the module's function "main" is the program.

    Arguments have the names of the module's inputs, results those of its outputs; each op's origin
    is the path of its submodule and the name of its node.

    Args:
        source: a path or the bytes of a file of torch.export.save, a torch.export.ExportedProgram,
            or an `Exported`.
        random_seed: decides the numbers of random tensors, with the nodes' names.

    Raises:
        CompileError: the program is wrong, or torch is not installed.
        UnsupportedError: lists every node that can't be imported, and why.
    """
    exported = opened(source)
    try:
        return import_program(exported, random_seed)
    except CompileError as error:
        raise CompileError(f"{exported.where}: {error}") from error
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{exported.where}: not supported in this model ({len(error.items)}):", error.items
        ) from error


def opened(source: Any) -> Exported:
    """A source of `import_torch` as an exported, decomposed program.

    Raises:
        CompileError: the file can't be read, or torch is not installed.
    """
    if isinstance(source, Exported) and source.is_decomposed:
        return source
    exporting = _exporting()
    if isinstance(source, (str, os.PathLike, bytes)):
        loaded: Exported = exporting.load(source if isinstance(source, bytes) else Path(source))
    else:
        loaded = source if isinstance(source, Exported) else Exported(source)
    made: Exported = exporting.decomposed(loaded)
    return made


def exported_module(
    module: Any, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Exported:
    """A torch.nn.Module, exported with example arguments; see `exporting.export`.

    Raises:
        CompileError: torch can't export it.
    """
    return opened(_exporting().export(module, args, kwargs, dynamic_shapes))


def calling_of(exported: Exported) -> Any:
    """The calling convention of the program: a `calling.Calling`."""
    from aot.frontends.torch.calling import Calling

    return Calling.of(exported.program)


def _exporting() -> Any:
    try:
        from aot.frontends.torch import exporting
    except ImportError as error:
        raise CompileError("PyTorch is not installed: pip install 'aotc[torch]'") from error
    return exporting
