"""The command `aotc`: thin, everything it does is a call of the public Python API.

Owns options, exit codes (0, 1 for a failure, 2 for wrong usage, 130 when interrupted), and that a
user sees one clear line and never a traceback. Only results go to standard output.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

import aot
from aot import cli_text
from aot.cli_text import NamedArray, NamedShape, Pair, to_mapping
from aot.errors import AotError, CompileError, InternalError
from aot.options import OPTIMIZE_LEVELS, SHAPE_MODES, STORAGE_TYPES, Progress

if TYPE_CHECKING:
    from aot import CompiledModule, Verification

TRACEBACK_VARIABLE = "AOT_TRACEBACK"
MODULE_MAGIC = b"AOTM"
ENGINES = ("reference", "onnxruntime")

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="'aotc COMMAND --help' explains a command, with examples.",
)
@click.version_option(aot.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Compiles a trained model ahead of time into one file that a small C runtime maps and runs.

    \b
    A first session:
      aotc compile model.onnx -o model.aotm     compile for this machine
      aotc inspect model.aotm                   see what is in the file
      aotc run model.aotm                       run it on random inputs
      aotc verify model.onnx                    compare it with the reference
    """


def _compile_options(command: F) -> F:
    """The options that say how to compile a model, shared by the commands that do."""
    for option in reversed(
        (
            click.option(
                "--target",
                "targets",
                multiple=True,
                metavar="NAME|FILE.toml",
                help="What to compile for; repeatable, best first. Default: host.",
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
                "--fusion/--no-fusion",
                default=True,
                help="Whether ops may share a dispatch; without, each is its own.",
            ),
            click.option(
                "--despecialise/--no-despecialise",
                default=True,
                help="Whether executables that differ in extents only may become one.",
            ),
            click.option(
                "--dump-ir",
                type=click.Path(file_okay=False),
                metavar="DIR",
                help="Write the IR after each pass to this folder.",
            ),
        )
    ):
        command = option(command)
    return command


@cli.command(name="compile")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", required=True, metavar="OUT.aotm", help="The file to write.")
@_compile_options
@click.option("--stats", metavar="FILE", help="Write counts and seconds as JSON ('-': stdout).")
def compile_command(
    model: str, output: str, stats: str | None, input_values: tuple[Pair, ...], **options: Any
) -> None:
    """Compile MODEL (ONNX, or text IR) to a module file.

    \b
    Examples:
      aotc compile model.onnx -o model.aotm
      aotc compile model.onnx -o model.aotm --target aarch64-android --target vulkan-1.1
      aotc compile det.onnx -o det.aotm --input-shape x=1x3xHxW
      aotc compile vad.onnx -o vad.aotm --input-value sr=16000 --stats vad.json

    Names in a shape stay open: one file serves all their extents, or those within bounds, as in
    1x3xH<=960xW. Separate dims by commas where a name has an x. The file is written whole or not at
    all, and is the same from any machine.
    """
    if Path(output).exists() and Path(model).exists() and Path(output).samefile(model):
        raise click.UsageError("the output is the model itself")
    started = time.perf_counter()
    module = _compile(model, input_values=to_mapping(input_values, "--input-value"), **options)
    module.save(output)
    if stats is not None:
        cli_text.write_stats(module.stats, stats)
    if sys.stderr.isatty():
        seconds = time.perf_counter() - started
        size = len(module.to_bytes())
        click.echo(cli_text.compile_summary(module.stats, output, size, seconds), err=True)


def _compile(model: str, **options: Any) -> CompiledModule:
    _check_readable(model)
    options["input_shapes"] = to_mapping(options["input_shapes"], "--input-shape")
    options["targets"] = options["targets"] or ("host",)
    with _progress() as progress:
        return aot.compile(model, progress=progress, **options)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    with cli_text.TerminalProgress(sys.stderr) as progress:
        yield progress


def _check_readable(path: str) -> bytes:
    """The first bytes of a file, so that a missing one is one line whoever would open it."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(4)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot read {path}: {reason}") from error


_INPUT = click.option(
    "--input",
    "inputs",
    multiple=True,
    type=NamedArray(allow_random=True),
    help="An input: FILE.npy, a number, a list, or random (the default).",
)
_SHAPE = click.option(
    "--shape",
    "input_sizes",
    multiple=True,
    type=NamedShape(is_static=True),
    help="The shape of a random input whose dims are symbolic.",
)
_SEED = click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
_DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "vulkan"]),
    default="auto",
    show_default=True,
    help="Where to run; auto takes the first variant that runs here.",
)


@cli.command()
@click.argument("module", type=click.Path())
@_INPUT
@_SHAPE
@click.option(
    "--output",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write each output to NAME.npy in this folder.",
)
@_DEVICE
@_SEED
def run(
    module: str,
    inputs: tuple[Pair, ...],
    input_sizes: tuple[Pair, ...],
    output: str | None,
    device: str,
    seed: int,
) -> None:
    """Run a module file once and describe its outputs.

    \b
    Examples:
      aotc run model.aotm
      aotc run model.aotm --input x=image.npy --output results
      aotc run det.aotm --shape x=1x3x256x480
    """
    from aot.inputs import make_inputs

    _check_readable(module)
    started = time.perf_counter()
    program = aot.load(module, device)
    loaded = time.perf_counter()
    given, sizes = to_mapping(inputs, "--input"), to_mapping(input_sizes, "--shape")
    arrays = make_inputs(program.inputs, given, sizes, seed)
    called = time.perf_counter()
    results = program(arrays)
    ended = time.perf_counter()
    if output is not None:
        cli_text.save_arrays(results, Path(output))
    click.echo(cli_text.outputs_table(results))
    click.echo(
        f"target {program.target} on {program.device}, code {program.code_mapping}: "
        f"loaded in {1e3 * (loaded - started):.2f} ms, "
        f"first run in {1e3 * (ended - called):.2f} ms",
        err=True,
    )


@cli.command()
@click.argument("source", metavar="MODEL|OUT.aotm", type=click.Path())
@click.option("--model", type=click.Path(), help="The model that OUT.aotm was compiled from.")
@click.option(
    "--against",
    type=click.Choice(ENGINES),
    default="reference",
    show_default=True,
    help="The engine to compare with: our numpy interpreter, or ONNX Runtime.",
)
@_INPUT
@_SHAPE
@click.option(
    "--tolerance",
    default=1e-4,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Largest error, relative to an output's largest magnitude.",
)
@_compile_options
@_DEVICE
@_SEED
def verify(
    source: str,
    model: str | None,
    inputs: tuple[Pair, ...],
    input_sizes: tuple[Pair, ...],
    input_values: tuple[Pair, ...],
    against: str,
    tolerance: float,
    device: str,
    seed: int,
    **options: Any,
) -> None:
    """Compare what a compiled model computes with another engine; exit 1 where they disagree.

    MODEL is compiled first, with the options of 'aotc compile'; OUT.aotm is taken as it is.

    \b
    Examples:
      aotc verify model.onnx
      aotc verify model.onnx --against onnxruntime --input x=image.npy
      aotc verify cls.onnx --shape x=4x3x48x192 --tolerance 1e-3
      aotc verify model.aotm --model model.onnx
    """
    values = to_mapping(input_values, "--input-value")
    is_module = _check_readable(source) == MODULE_MAGIC
    if is_module and model is None:
        raise click.UsageError("a module file does not hold its model: give it with --model")
    if not is_module and model is not None:
        raise click.UsageError("--model goes with a module file only")
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        path = source
        if not is_module:
            # Through a file, so that what is verified is what would be shipped.
            path = str(Path(folder) / "model.aotm")
            _compile(source, input_values=values, **options).save(path)
        result = aot.verify(
            path,
            model or source,
            against=against,
            inputs=to_mapping(inputs, "--input"),
            shapes=to_mapping(input_sizes, "--shape"),
            input_values=values,
            tolerance=tolerance,
            seed=seed,
            device=device,
        )
    _report_verification(result)


def _report_verification(result: Verification) -> None:
    click.echo(cli_text.verification_table(result))
    if not result.agrees:
        raise CompileError(
            f"target {result.target} does not agree with {result.engine} "
            f"within {result.tolerance:g}"
        )


@cli.command()
@click.argument("module", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
@click.option("--verify", is_flag=True, help="Also check every checksum of the constants.")
@click.option("--program", is_flag=True, help="Show the programs' instructions.")
def inspect(module: str, as_json: bool, verify: bool, program: bool) -> None:
    """Show what is in a module file: variants, signatures, executables, segments.

    \b
    Examples:
      aotc inspect model.aotm
      aotc inspect model.aotm --program
      aotc inspect model.aotm --verify --json
    """
    from aot.inspection import format_inspection

    facts = aot.inspect(module, verify=verify, program=program)
    click.echo(json.dumps(facts, indent=2) if as_json else format_inspection(facts))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def targets(as_json: bool) -> None:
    """List the targets that come with the compiler; a path to a .toml file is one too."""
    found = aot.targets()
    if as_json:
        rows = [
            {"name": t.name, "device": t.device, "arch": t.arch, "summary": t.summary}
            for t in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    from aot.target import host

    with suppress(AotError):
        click.echo(f"host is {host().name}\n")
    table_rows = [[t.name, t.device, t.arch, t.summary] for t in found]
    click.echo(cli_text.table(("target", "device", "arch", "summary"), table_rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code. No exception leaves it."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _invoke(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        _say("aotc: interrupted")
        return 130
    except BrokenPipeError:
        _close_quietly()
        return 141
    except Exception as error:
        return _fail(error)


def _invoke(arguments: list[str]) -> int:
    try:
        with cli.make_context("aotc", arguments) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        sys.stdout.flush()
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.format_message())
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "aotc"
        message = error.format_message()
        message = message if message.endswith("...") else message.removesuffix(".")
        _say(f"aotc: error: {message[:1].lower()}{message[1:]}\ntry '{command} --help'")
        return 2
    return 0


def _terminate(signum: int, frame: object) -> NoReturn:
    # As an exception, so that temporary files are removed.
    raise SystemExit(128 + signum)


def _say(text: str) -> None:
    with suppress(OSError):
        click.echo(text, err=True)


def _close_quietly() -> None:
    # The interpreter flushes standard output at exit; there must be something to flush it to.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, AotError) and not isinstance(error, InternalError):
        _say(f"aotc: error: {error}")
    else:
        _say(_bug_message(error))
    return 1


def _bug_message(error: Exception) -> str:
    """What a user reads when it is our bug: what happened and which file to send us."""
    kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
    text = f"{kind}{' '.join(str(error).split()) or 'no message'}"
    if ".repro" not in text:  # a failing pass has written a better one
        path = _write_repro(error)
        text += "; this is a bug of aotc, please report it" + (f" with {path}" if path else "")
    return f"aotc: error: internal error: {text} ({TRACEBACK_VARIABLE}=1 shows more)"


def _write_repro(error: Exception) -> Path | None:
    lines = [
        f"aotc {aot.__version__}, python {platform.python_version()}, {platform.machine()}",
        f"command: {' '.join(sys.argv)}",
        "",
        *traceback.format_exception(error),
    ]
    try:
        handle, name = tempfile.mkstemp(prefix="aotc-", suffix=".repro")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines))
    except OSError:
        return None
    return Path(name)


if __name__ == "__main__":
    sys.exit(main())
