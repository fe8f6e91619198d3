"""What the commands that compile a model share: its options, and how a compile shows itself.

Owns the options' names and help; what they mean is `aot.options`'. Reads no model itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

import aot
from aot.cli import text as cli_text
from aot.cli.text import NamedArray, NamedShape, to_mapping
from aot.errors import CompileError
from aot.options import OPTIMIZE_LEVELS, SHAPE_MODES, STORAGE_TYPES, Progress

if TYPE_CHECKING:
    from aot import CompiledModule

MODULE_MAGIC = b"AOTM"

F = TypeVar("F", bound=Callable[..., Any])

FUSION_OPTION = click.option(
    "--fusion/--no-fusion",
    default=True,
    help="Whether ops may share a dispatch; without, each is its own.",
)

REPORT_OPTION = click.option(
    "--report", metavar="FILE.html", help="Write a page that shows what happened."
)


def compile_options(command: F) -> F:
    """The options that say how to compile a model, all but whether ops may share a dispatch."""
    for option in reversed(
        (
            click.option(
                "--target",
                "targets",
                multiple=True,
                metavar="NAME|FILE.toml",
                help="What to compile for; repeatable. Default: host.",
            ),
            click.option(
                "--input-shape",
                "input_shapes",
                multiple=True,
                type=NamedShape(),
                help="An input's shape: a number binds, a name leaves open, H<=960 bounds, '?' "
                "keeps the model's.",
            ),
            click.option(
                "--input-value",
                "input_values",
                multiple=True,
                type=NamedArray(),
                help="Compile an input in as a constant: a number, a list or FILE.npy.",
            ),
            click.option(
                "--state",
                "states",
                multiple=True,
                type=cli_text.NamedState(),
                help="Keep output PRESENT, which is input PAST of the next run; :max=N where it "
                "grows.",
            ),
            click.option(
                "--optimize",
                type=click.Choice(OPTIMIZE_LEVELS),
                default="balanced",
                show_default=True,
                help="What sharing code between dispatches may cost.",
            ),
            click.option(
                "--storage",
                type=click.Choice(STORAGE_TYPES),
                default="fp32",
                show_default=True,
                help="How float32 weights and activations lie in memory; fp16 rounds them.",
            ),
            click.option(
                "--shapes",
                type=click.Choice(SHAPE_MODES),
                default="lazy",
                show_default=True,
                help="When users of a changed value are told; the file is the same.",
            ),
            click.option(
                "--winograd/--no-winograd",
                default=True,
                help="Whether 3x3 convolutions may be computed by Winograd's algorithm.",
            ),
            click.option(
                "--despecialise/--no-despecialise",
                default=True,
                help="Whether executables that differ in extents only may become one.",
            ),
            click.option(
                "--share-constants/--no-share-constants",
                default=True,
                help="Whether equal constants are stored once; without, each where it was met.",
            ),
            click.option(
                "--entry-name",
                metavar="NAME",
                help="What the entry point is called in the module file. Default: main.",
            ),
            click.option(
                "--strip",
                is_flag=True,
                help="Leave out the notes that merge and inspect --dedup need.",
            ),
            click.option(
                "--dump-ir",
                type=click.Path(file_okay=False),
                metavar="DIR",
                help="Write the IR after each pass to this folder.",
            ),
            click.option(
                "--cache/--no-cache",
                default=True,
                help="Whether compiled code may be kept on disk and found there.",
            ),
            click.option(
                "--cache-dir",
                type=click.Path(file_okay=False),
                metavar="DIR",
                help="Where it is kept; 'aotc cache' shows the default.",
            ),
            click.option(
                "--jobs",
                type=click.IntRange(min=0),
                default=0,
                help="Processes that may compile code at a time. Default: one a processor.",
            ),
            click.option(
                "--tune",
                type=click.FloatRange(min=0),
                metavar="SECONDS",
                help="Measure how kernels run fastest, for so long; later compiles remember.",
            ),
            click.option(
                "--tune-runner",
                metavar="CMD",
                help="Measure on a device: CMD gets a module and options, as aot-run does.",
            ),
            click.option(
                "--tune-cache",
                type=click.Path(dir_okay=False),
                metavar="FILE",
                help="Where what was measured is kept; without --tune it is used as it is.",
            ),
        )
    ):
        command = option(command)
    return command


def refuse_compile_options(options: Iterable[str]) -> None:
    """Ends the command if one of the options was given: they are for a model that is compiled."""
    context = click.get_current_context()
    given = {p.name: p.opts[0] for p in context.command.params if isinstance(p, click.Option)}
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{given[name]} goes with a model; a module file is compiled")


def check_report(report: str | None, *others: str) -> None:
    """Ends the command before it has worked for nothing: where its report would be written over one
    of its other files, or in no folder."""
    if report is None:
        return
    for other in others:
        if os.path.realpath(other) == os.path.realpath(report):
            raise click.UsageError(f"the report would be written over {other}")
    if not Path(report).absolute().parent.is_dir():
        raise CompileError(f"cannot write {report}: its folder is not there")


def compile_model(model: str, **options: Any) -> CompiledModule:
    """Compiles a file with options as the command line has them."""
    check_readable(model)
    with shown_progress() as progress:
        return aot.compile(model, progress=progress, **compile_keywords(options))


def compile_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """What `aot.compile` takes, of the options of `compile_options`; values may be a mapping."""
    values = options["input_values"]
    if isinstance(values, tuple):
        values = to_mapping(values, "--input-value")
    return {
        **options,
        "input_shapes": to_mapping(options["input_shapes"], "--input-shape"),
        "input_values": values,
        "states": to_mapping(options["states"], "--state"),
        "targets": options["targets"] or ("host",),
    }


@contextmanager
def shown_progress() -> Iterator[Progress | None]:
    """Shows progress where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with cli_text.TerminalProgress(sys.stderr) as progress:
        yield progress


def check_readable(path: str) -> bytes:
    """The first bytes of a file, so that a missing one is one line whoever would open it."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(4)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot read {path}: {reason}") from error
