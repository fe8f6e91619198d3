"""Shared parts of the commands that compile a model: their options, and progress.

Owns how the command line spells values; the options are `aot.options`'. Reads no model itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

import aot
from aot.cli import text as cli_text
from aot.cli.commands import command_line
from aot.cli.text import NamedArray, NamedExtent, NamedShape, NamedState, NamedText, to_mapping
from aot.errors import CompileError, advice
from aot.frontends.registry import check_is_module
from aot.ir.input_files import STANDARD_INPUT, standard_input
from aot.ir.limits import limit_of
from aot.options import OPTIONS, Option, Progress

if TYPE_CHECKING:
    from aot import CompiledModule

MOST_MODULE_MIB = 4096
"""MiB of a module file that may come through standard input."""

F = TypeVar("F", bound=Callable[..., Any])

REPORT_OPTION = click.option(
    "--report", metavar="FILE.html", help="Write a page that shows what happened."
)
TRACE_OPTION = click.option(
    "--trace", metavar="FILE.json", help="Write where the time went, for ui.perfetto.dev."
)


def complete_target(context: Any, parameter: Any, incomplete: str) -> list[Any]:
    """Names of targets that begin so, with their summaries, for a shell's completion."""
    from click.shell_completion import CompletionItem

    from aot.target.files import HOST, summaries

    named = {HOST: "this machine", **summaries()}
    return [
        CompletionItem(name, help=summary)
        for name, summary in named.items()
        if name.startswith(incomplete)
    ]


# How the command line spells values of a kind; a type reads them, where text would not do.
_SPELLINGS: Mapping[str, Callable[[Option], dict[str, Any]]] = {
    "targets": lambda option: {"multiple": True, "shell_complete": complete_target},
    "passes": lambda option: {"multiple": True, "type": click.Choice(option.choices)},
    "shapes": lambda option: {"multiple": True, "type": NamedShape()},
    "values": lambda option: {"multiple": True, "type": NamedArray()},
    "states": lambda option: {"multiple": True, "type": NamedState()},
    "metadata": lambda option: {"multiple": True, "type": NamedText()},
    "extents": lambda option: {"multiple": True, "type": NamedExtent()},
    "choice": lambda option: {"type": click.Choice(option.choices), "show_default": True},
    "switch": lambda option: {"is_flag": True},
    "text": lambda option: {},
    "file": lambda option: {"type": click.Path(dir_okay=False)},
    "folder": lambda option: {"type": click.Path(file_okay=False)},
    "count": lambda option: {"type": click.IntRange(min=0)},
    "seconds": lambda option: {"type": click.FloatRange(min=0)},
}


def compile_options(command: F) -> F:
    """The options that say how to compile a model: all of CompileOptions."""
    for option in reversed(list(OPTIONS.values())):
        how = _SPELLINGS[option.kind.name](option)
        if not how.get("multiple"):
            how["default"] = option.default
        add = click.option(
            option.flags, option.name, metavar=option.metavar, help=option.help, **how
        )
        command = add(command)
    return command


def refuse_compile_options(options: Iterable[str]) -> None:
    """Ends the command if one of the options was given: they are for a model that is compiled."""
    context = click.get_current_context()
    given = {p.name: p.opts[0] for p in context.command.params if isinstance(p, click.Option)}
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{given[name]} goes with a model; a module file is compiled")


def check_report(report: str | None, *others: str) -> None:
    """Ends the command before it has worked for nothing: where its report, or its trace, would be
    written over one of its other files, or in no folder."""
    if report is None:
        return
    for other in others:
        if os.path.realpath(other) == os.path.realpath(report):
            raise click.UsageError(f"the report would be written over {other}")
    if not Path(report).absolute().parent.is_dir():
        raise CompileError(f"cannot write {report}: its folder is not there")


def write_reports(
    module: CompiledModule,
    models: Sequence[str],
    output: str,
    *,
    stats: str | None,
    report: str | None,
    trace: str | None,
) -> None:
    """Writes what was asked for beside a module: statistics, a page, a trace."""
    from aot.driver.provenance import model_facts, provenance

    size = {"bytes": len(module.to_bytes())}
    run = provenance("compile", command_line(), models=model_facts(models), module=size)
    if stats is not None:
        with advice("the file of statistics", writes=True):
            cli_text.write_stats({"run": run, **module.stats}, stats)
    if report is not None:
        with advice("the report", writes=True):
            module.save_report(report, Path(output).name, run=run)
    if trace is not None and module.details is not None:
        from aot.tools.traces import compile_trace, write_trace

        with advice("the trace", writes=True):
            write_trace(compile_trace(module.details, run), trace)


def compile_model(*models: str, **options: Any) -> CompiledModule:
    """Compiles a file, standard input (`-`), or several files together, with options as the command
    line has them."""
    given: Any = models[0] if len(models) == 1 else models
    if STANDARD_INPUT in models:
        if len(models) > 1:
            raise click.UsageError("'-' is one model, which is compiled alone")
        given = _standard_input(options["limit_memory"])
    with shown_progress() as progress:
        return aot.compile(given, progress=progress, **compile_keywords(options))


def module_source(path: str) -> str | bytes:
    """What a command reads a module from: a file's path, or the bytes of standard input for "-".

    Raises:
        CompileError: the file or standard input cannot be read, or is a model.
    """
    if path != STANDARD_INPUT:
        check_is_module(path)
        return path
    return _standard_input(MOST_MODULE_MIB)


@contextmanager
def module_path(path: str) -> Iterator[str]:
    """A context with the path of a module file for what needs one: of standard input, for "-",
    that of a temporary file.

    Raises:
        CompileError: the file or standard input cannot be read, or is a model.
    """
    source = module_source(path)
    if isinstance(source, str):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        file = Path(folder) / "model.aotm"
        file.write_bytes(source)
        yield os.fspath(file)


def _standard_input(most_mib: int) -> bytes:
    """All bytes of standard input, up to `most_mib` MiB; 0 is what an import may take."""
    try:
        return standard_input(limit_of(0, most_mib))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CompileError(f"cannot read standard input: {reason}") from error


def compile_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Keywords for `aot.compile`, from parsed command options."""
    found = dict(options)
    for option in OPTIONS.values():
        value = found[option.name]
        if option.kind.is_table and isinstance(value, tuple):
            found[option.name] = to_mapping(value, option.flags)
        elif option.kind.is_list:
            found[option.name] = value or option.default
    return found


@contextmanager
def shown_progress(
    stage: str = "reading the model", *, is_still: bool = False
) -> Iterator[Progress | None]:
    """Shows progress where standard error is a terminal.

    Args:
        stage: what runs before a progress is reported, or all the time.
        is_still: as of `TerminalProgress`.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with cli_text.TerminalProgress(sys.stderr, stage, is_still=is_still) as progress:
        yield progress
