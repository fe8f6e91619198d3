"""Produces programs for the importer: exports modules, reads files, and lets torch decompose ops
without an entry.

The only file that calls torch's exporter; what goes wrong there is told with torch's own hint.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from aot.errors import CompileError
from aot.frontends.torch.archive import read_program
from aot.frontends.torch.containers import in_places, register, registering_results
from aot.frontends.torch.dynamic import (
    OpenDims,
    bound_arguments,
    dim_names,
    distinct_tensors,
    grown_examples,
)
from aot.frontends.torch.program import Exported
from aot.frontends.torch.recurrent_shapes import known_shapes
from aot.frontends.torch.table import is_kept


def export(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Exported:
    """The exported program of a module, for calls with these arguments.

    The module is in eval mode meanwhile, and its parameters are not copied.

    Args:
        dynamic_shapes: as torch.export.export takes it; a dim may be its name, and of a dataclass
            they may be a dict by field.

    Raises:
        CompileError: torch can't export it; says why, and torch's own advice.
    """
    if not isinstance(args, (tuple, list)):
        raise CompileError(
            f"the arguments of a module are given as a tuple, found {type(args).__name__}: "
            "aot.compile(module, (x,))"
        )
    keywords = dict(kwargs or {})
    register((*args, keywords))
    if dynamic_shapes:
        args, keywords = distinct_tensors(args, keywords)
    shapes = _shapes_in_places(module, args, keywords, dynamic_shapes)
    open_dims = OpenDims(shapes)
    names = dim_names(module, args, keywords, shapes)
    examples, named, are_grown = grown_examples(module, args, keywords, shapes)
    with (
        in_eval_mode(module),
        registering_results(module),
        _quiet(),
        known_shapes(),
        torch.no_grad(),
    ):
        try:
            program = torch.export.export(
                module, examples, named, dynamic_shapes=open_dims.shapes, strict=False
            )
        except Exception as error:  # what may go wrong in user code has no common base
            raise _failure(module, error, are_grown) from error
    return Exported(program, names)


def _shapes_in_places(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> Any:
    if not isinstance(shapes, (Mapping, list, tuple)):
        return shapes
    try:
        return in_places(bound_arguments(module, args, kwargs, shapes), shapes)
    except TypeError:  # the arguments don't fit, of which torch tells
        return shapes


def _failure(module: Any, error: Exception, are_grown: bool) -> CompileError:
    """The error for a failed export: one line, with torch's advice below it."""
    lines = [line.rstrip() for line in str(error).strip().splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    advice = lines[1:]
    if are_grown:
        advice.append(
            "open extents of 1 in the example inputs were taken as 2, as torch.export makes 1 a "
            "constant: give examples with larger ones"
        )
    return CompileError(f"torch.export can't export {type(module).__name__}: {first}", advice)


@contextmanager
def in_eval_mode(module: Any) -> Iterator[None]:
    """A context in which a module is in eval mode; restores its mode afterwards."""
    training = [m for m in module.modules() if m.training]
    module.eval()
    try:
        yield
    finally:
        for inner in training:
            inner.training = True


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without torch's warnings and logs; failures are reported by exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def load(source: Path | bytes) -> Exported:
    """Reads the program in a file of torch.export.save; nothing in the file is run.

    Raises:
        CompileError: it can't be read.
    """
    where = "model" if isinstance(source, bytes) else str(source)
    with _quiet():
        program = read_program(source, where)
    length = len(source) if isinstance(source, bytes) else source.stat().st_size
    return Exported(program, where=where, file_bytes=length)


@cache
def _decompositions() -> Any:
    """torch's decompositions, without those of ops that have an entry in our table."""
    table = torch.export.default_decompositions()
    for op in list(table):
        if is_kept(str(op)):
            table.pop(op)
    return table


def decomposed(exported: Exported) -> Exported:
    """The program decomposed to ops of the table, as far as torch can; its graph is functional.

    Raises:
        CompileError: torch can't decompose it.
    """
    if exported.is_decomposed:
        return exported
    with _quiet(), known_shapes(), torch.no_grad():
        try:
            program = exported.program.run_decompositions(_decompositions().copy())
        except MemoryError:
            raise
        except Exception as error:  # torch's own checks have no common base
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise CompileError(
                f"{exported.where}: torch can't decompose the program: {reason}"
            ) from error
    return replace(
        exported,
        program=program,
        guards=tuple(getattr(exported.program, "_guards_code", None) or ()),
        is_decomposed=True,
    )
