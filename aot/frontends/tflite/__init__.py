"""The TFLite importer, for files and their bytes. Importing this package fills the table of
operators."""

from __future__ import annotations

import os

import aot.frontends.tflite.ops  # noqa: F401 - fills the table of operators
from aot.errors import CompileError, UnsupportedError
from aot.frontends.lib.metadata import taken
from aot.frontends.tflite.control import supported_ops
from aot.frontends.tflite.facts import facts_of
from aot.frontends.tflite.flatbuffer import DamagedError
from aot.frontends.tflite.importer import import_model
from aot.frontends.tflite.model import Model
from aot.ir.graph import Module

__all__ = ["import_tflite", "supported_ops"]


def import_tflite(source: str | os.PathLike[str] | bytes) -> Module:
    """Imports a model; the module has a function for each signature, named "main" if there is only
    one.

    Inputs and outputs have the names of the signature, of tensors where there is none; each op's
    origin is the name of the tensor that its operator makes.

    Raises:
        CompileError: the file is damaged or wrong.
        UnsupportedError: lists every operator that can't be imported, and why.
    """
    where = "model" if isinstance(source, bytes) else os.fspath(source)
    try:
        model = Model(source)
        module = import_model(model)
        module.metadata = taken(facts_of(model))
        return module
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{where}: not supported in this model ({len(error.items)}):", error.items
        ) from error
    except (CompileError, DamagedError) as error:
        raise CompileError(f"{where}: {error}") from error
