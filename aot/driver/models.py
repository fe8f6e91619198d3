"""The models of one compile: their names and options, and how they are joined in one module.

Owns names of entry points and which options are whose. Reads no model and runs no pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError
from aot.frontends import registry
from aot.ir.graph import Module
from aot.options import DEFAULT_ENTRY, OPTIONS, CompileOptions, check_entry_names, split_name
from aot.passes.base import PassContext


@dataclass(frozen=True)
class GivenModel:
    """One of the models passed to a compile.

    Attributes:
        label: what messages call it, where there are several.
        source: as `aot.compile` takes it.
        name: of its entry point; None of the only model of a compile, which has its own name.
        frontend: which reads it; None until it is recognised.
    """

    label: str
    source: Any
    name: str | None
    frontend: registry.Frontend | None = None


def given_models(model: Any, frontend: registry.Frontend | None = None) -> list[GivenModel]:
    """The models passed to a compile: a single one, a sequence, or a mapping from names.

    Args:
        frontend: which reads the only one, where that is known.

    Raises:
        CompileError: there is none, one has no name, or two have the same.
    """
    if isinstance(model, Mapping):
        found = [GivenModel(str(name), source, name) for name, source in model.items()]
    elif isinstance(model, (list, tuple)):
        found = [_named(number, *split_name(source)) for number, source in enumerate(model)]
    else:
        return [GivenModel("", model, None, frontend)]
    if not found:
        raise CompileError("there is no model to compile")
    check_entry_names((m.label, m.name) for m in found if m.name is not None)
    return found


def _named(number: int, source: Any, name: str | None) -> GivenModel:
    is_path = isinstance(source, (str, os.PathLike))
    if name is None and not is_path:
        raise CompileError(
            f"model {number + 1} is no file and has no name; give a mapping from names to models"
        )
    label = os.fspath(source) if is_path else f"model {number + 1}"
    return GivenModel(label, source, name or Path(label).stem)


def check_options(models: Sequence[GivenModel], options: CompileOptions) -> None:
    """Checks the options of several models: raises a CompileError for options that allow only one
    model, or that do not name theirs."""
    if models[0].name is None:
        return
    if options.entry_name is not None:
        raise CompileError("an entry name is for one model; name each of several as in FILE:NAME")
    if options.tune is not None:
        raise CompileError(
            "one model is tuned at a time; tune each with its own compile and the same tune cache, "
            "then compile them together with that cache"
        )
    names = [m.name for m in models]
    for option in (o for o in OPTIONS.values() if o.kind.is_table):
        for key in getattr(options, option.name):
            if key.partition(":")[0] not in names:
                expected = " or ".join(f"{name}:{key}" for name in names)
                raise CompileError(
                    f"{option.name}: {key!r} does not say which model it is for, expected "
                    f"{expected}"
                )


def recognised(model: GivenModel) -> GivenModel:
    """The model with the frontend that recognises it.

    Raises:
        CompileError: its file cannot be read, or no frontend reads what it is.
    """
    if model.frontend is not None:
        return model
    with naming(model):
        return replace(model, frontend=registry.find(model.source))


def options_of(model: GivenModel, options: CompileOptions) -> CompileOptions:
    """The options of one model, with its inputs under its own names."""
    if model.name is None:
        return options
    own: dict[str, Any] = {}
    for option in (o for o in OPTIONS.values() if o.kind.is_table):
        parts = {k: (*k.partition(":"), v) for k, v in getattr(options, option.name).items()}
        own[option.name] = {key: v for name, _, key, v in parts.values() if name == model.name}
    if options.dump_ir is not None:
        own["dump_ir"] = options.dump_ir / model.name
    return replace(options, **own)


@contextmanager
def naming(model: GivenModel) -> Iterator[None]:
    """A context in which messages start with the model's name, if there are several models."""
    try:
        yield
    except UnsupportedError as error:
        if model.name is None:
            raise
        summary = str(error).partition("\n")[0]
        raise UnsupportedError(f"{model.label}: {summary}", error.items) from error
    except CompileError as error:
        if model.name is None or str(error).startswith(model.label):
            raise
        raise CompileError(f"{model.label}: {error}") from error


def together(modules: Sequence[Module]) -> Module:
    """Joins the functions of several models in one module, in the order of the models.

    Raises:
        CompileError: a model has several functions, or vocabularies differ.
    """
    if len(modules) == 1:
        return modules[0]
    made = Module()
    for module in modules:
        if len(module.entry_points) != 1:
            names = ", ".join(f.name for f in module.entry_points)
            raise CompileError(f"a model has the entry points {names}: it is compiled by itself")
        (function,) = module.entry_points
        function.name = f"{DEFAULT_ENTRY}{len(made.functions)}"
        made.add(function)
    own = [m.vocabulary for m in modules if m.vocabulary is not None]
    if any(vocabulary != own[0] for vocabulary in own):
        raise CompileError(
            "models have different vocabularies, and a module has one; compile them by themselves"
        )
    made.vocabulary = own[0] if own else None
    return made


def metadata_of(
    models: Sequence[GivenModel], modules: Sequence[Module], options: CompileOptions
) -> dict[str, str]:
    """The metadata of a module: that of its models' files, and the options' in its place. An empty
    text leaves a key out. With several models a key begins with the model's name."""
    found: dict[str, str] = {}
    for model, module in zip(models, modules, strict=True):
        facts = {**module.metadata, **options_of(model, options).metadata}
        prefix = "" if model.name is None else f"{model.name}:"
        found |= {prefix + key: value for key, value in facts.items() if value}
    return found


def gathered(contexts: Sequence[PassContext], options: CompileOptions) -> PassContext:
    """A context that combines the statistics of all models' passes."""
    if len(contexts) == 1:
        return contexts[0]
    tables: dict[str, Any] = {o.name: {} for o in OPTIONS.values() if o.kind.is_table}
    made = PassContext(replace(options, **tables), is_stopped=any(c.is_stopped for c in contexts))
    for context in contexts:
        made.runs += context.runs
        for name, counts in context.statistics.items():
            for key, amount in counts.items():
                made.count(name, key, amount)
    return made
