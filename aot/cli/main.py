"""The command `aotc`: thin, everything it does is a call of the public Python API.

Owns options, exit codes (0, 1 for a failure, 2 for wrong usage, 130 when interrupted), and that a
user sees one clear line and never a traceback. Only results go to standard output.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click
from click.core import ParameterSource

import aot
from aot.cli import text as cli_text
from aot.cli.commands import Commands, complete
from aot.cli.compile import (
    REPORT_OPTION,
    TRACE_OPTION,
    check_report,
    compile_model,
    compile_options,
    module_source,
    write_reports,
)
from aot.cli.text import NamedArray, NamedShape, Pair, Threads, to_lists, to_mapping
from aot.errors import (
    AdviceWarning,
    AotError,
    BoundWarning,
    CacheWarning,
    CompileError,
    InternalError,
    RuntimeFailure,
    TuningWarning,
    advice,
    one_line,
    printable,
    shortened,
)
from aot.frontends.registry import is_compiled

if TYPE_CHECKING:
    from aot import Verification
    from aot.options import DeviceName

TRACEBACK_VARIABLE = "AOT_TRACEBACK"
# What the system says of a file that a user named, where nothing has said it before
_USERS_ERRORS = frozenset(
    (errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ELOOP)
)
ORACLE_NAMES = ("reference", "onnxruntime", "litert", "torch", "llama.cpp")  # imported when asked


@click.group(
    cls=Commands,
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


@cli.command(name="compile")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o", "--output", required=True, metavar="OUT.aotm", help="The file to write ('-': stdout)."
)
@compile_options
@click.option("--stats", metavar="FILE", help="Write counts and seconds as JSON ('-': stdout).")
@REPORT_OPTION
@TRACE_OPTION
def compile_command(
    models: tuple[str, ...],
    output: str,
    stats: str | None,
    report: str | None,
    trace: str | None,
    input_values: tuple[Pair, ...],
    **options: Any,
) -> None:
    """Compile a MODEL (ONNX, TFLite, GGUF, PyTorch, text IR), or several, to a module file.

    \b
    Examples:
      aotc compile model.onnx -o model.aotm
      aotc compile model.onnx -o model.aotm --target aarch64-android --target vulkan-1.1
      aotc compile det.onnx -o det.aotm --input-shape x=1x3xHxW
      aotc compile vad.onnx -o vad.aotm --input-value sr=16000 --state state=stateN
      aotc compile llm.onnx -o llm.aotm --input-shape 'past=1x8x?x64' \
        --state past=present:max=512
      aotc compile model.onnx -o model.aotm --report model.html
      aotc compile model.onnx -o model.aotm --tune 20
      aotc compile - -o - < model.onnx | ssh board 'cat > model.aotm'
      aotc compile det.onnx cls.onnx rec.onnx -o ocr.aotm --input-shape cls:x=1x3x48x192

    Of several models, each is an entry point that is called as its file without the extension, or
    NAME in FILE:NAME; they share code and constants, and options begin with whose input they mean.

    Names in a shape stay open: one file serves all their extents, or those within bounds, as in
    1x3xH:32..960xW. Separate dims by commas where a name has an x, and quote what a shell would
    read, such as '32*h' and '?'. The file is written whole or not at all, and is the same from any
    machine.
    """
    for model in models:
        if Path(output).exists() and Path(model).exists() and Path(output).samefile(model):
            raise click.UsageError("the output is the model itself")
    cli_text.check_output(output, stats)
    check_report(report, *models, output)
    check_report(trace, *models, output, *([report] if report else ()))
    started = time.perf_counter()
    values = to_mapping(input_values, "--input-value")
    has_details = report is not None or trace is not None
    module = compile_model(*models, input_values=values, details=has_details, **options)
    cli_text.write_module(module, output)
    if stats is not None or has_details:
        write_reports(module, models, output, stats=stats, report=report, trace=trace)
    if sys.stderr.isatty():
        seconds = time.perf_counter() - started
        with advice("the summary"):
            size = len(module.to_bytes())
            click.echo(cli_text.compile_summary(module.stats, output, size, seconds), err=True)


_INPUT = click.option(
    "--input",
    "inputs",
    multiple=True,
    type=NamedArray(allow_random=True),
    help="An input: FILE.npy, a number, a JSON list, or random (the default).",
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


_ENTRY = click.option(
    "--entry", metavar="NAME", help="Which entry point of a module that has several."
)
_THREADS = click.option(
    "--threads",
    type=Threads(),
    default=1,
    show_default=True,
    help="Threads that share the work on a CPU; the results are the same.  auto: one for each fast "
    "core, which aotc devices tells.",
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
@_ENTRY
@_DEVICE
@_THREADS
@_SEED
def run(
    module: str,
    inputs: tuple[Pair, ...],
    input_sizes: tuple[Pair, ...],
    output: str | None,
    entry: str | None,
    device: str,
    threads: int | Literal["auto"],
    seed: int,
) -> None:
    """Run a module file once and describe its outputs.

    \b
    Examples:
      aotc run model.aotm
      aotc run model.aotm --input x=image.npy --output results
      aotc run det.aotm --shape x=1x3x256x480
      aotc run ocr.aotm --entry det --shape x=1x3x256x480
      aotc compile model.onnx -o - | aotc run -
    """
    from aot.runtime.inputs import make_inputs
    from aot.runtime.loader import load, load_library
    from aot.tools.open_extents import with_followers

    source = module_source(module)
    load_library()  # what Python imports and links is no part of loading a module
    started = time.perf_counter()
    program = load(source, device, entry=entry, threads=threads)
    loaded = time.perf_counter()
    given, sizes = to_mapping(inputs, "--input"), to_mapping(input_sizes, "--shape")
    sizes = with_followers(program.inputs, given, sizes, program.states)
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
    type=click.Choice(ORACLE_NAMES),
    help="The engine to compare with. Default: that of the model's format where it is installed: "
    "ONNX Runtime, LiteRT, PyTorch or llama.cpp; else our interpreter, which runs our importer's "
    "graph.",
)
@_INPUT
@click.option(
    "--shape",
    "input_sizes",
    multiple=True,
    type=NamedShape(is_static=True),
    help="The shape of a random input whose dims are symbolic; given again, that of the next step.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest error, relative to an output's largest magnitude. Default: 0.0001, or what "
    "roundings explain: the model's own, and those of --storage, --arithmetic and --activations. "
    "Of a text, the largest mean KL divergence in nats. Default: 0.01.",
)
@click.option(
    "--text",
    "text_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="A text that a language model reads. Default: pages of a novel that come along, "
    "unless --input, --shape, --against, --steps or --noise asks for logits.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Of a text, how many are read at most.",
)
@click.option(
    "--noise",
    is_flag=True,
    help="Measure what roundings explain although all outputs agree.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Calls one after another on different random inputs. Default: 1, or 3 with --state.",
)
@compile_options
@_ENTRY
@_DEVICE
@_SEED
def verify(
    source: str,
    model: str | None,
    inputs: tuple[Pair, ...],
    input_sizes: tuple[Pair, ...],
    input_values: tuple[Pair, ...],
    against: str | None,
    tolerance: float | None,
    steps: int | None,
    noise: bool,
    text_file: str | None,
    tokens: int,
    entry: str | None,
    device: DeviceName,
    seed: int,
    **options: Any,
) -> None:
    """Compare what a compiled model computes with another engine; exit 1 where they disagree.

    MODEL is compiled first, with the options of 'aotc compile'; OUT.aotm is taken as it is. A
    language model reads a text: its predictions are compared with those of the model in f32.

    \b
    Examples:
      aotc verify model.onnx
      aotc verify model.onnx --against onnxruntime --input x=image.npy
      aotc verify cls.onnx --shape x=4x3x48x192 --tolerance 1e-3
      aotc verify model.aotm --model model.onnx
      aotc verify ocr.aotm --model cls.onnx --entry cls --shape x=1x3x48x192
      aotc verify SmolLM2.gguf --cache-type int8
      aotc verify SmolLM2.gguf --context 64 --shape tokens=12 --shape tokens=1
    """
    from aot.cli.text_verification import reads_text, report_text, text_of

    values = to_mapping(input_values, "--input-value")
    is_module = is_compiled(source)
    if is_module and model is None:
        raise click.UsageError("a module file does not hold its model: give it with --model")
    if not is_module and model is not None:
        raise click.UsageError("--model goes with a module file only")
    is_asked = inputs or input_sizes or against or steps or noise
    if text_file is not None and is_asked:
        raise click.UsageError(
            "--text compares predictions: it goes without --input, --shape, --against, --steps and "
            "--noise"
        )
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        path = source
        if not is_module:
            # Through a file, so that what is verified is what would be shipped.
            path = str(Path(folder) / "model.aotm")
            compile_model(source, input_values=values, **options).save(path)
        original = model or source
        if text_file is not None or (not is_asked and reads_text(path, original, device, entry)):
            read = aot.verify_text(
                path,
                original,
                text=text_of(text_file),
                tokens=tokens,
                tolerance=tolerance,
                device=device,
                entry=entry,
            )
            report_text(read)
            return
        result = aot.verify(
            path,
            original,
            against=against,
            inputs=to_mapping(inputs, "--input"),
            shapes=to_lists(input_sizes),
            input_values=values,
            states=to_mapping(options["states"], "--state"),
            steps=steps,
            tolerance=tolerance,
            seed=seed,
            device=device,
            entry=entry,
            noise=noise,
            **{name: options[name] for name in _precision_asked(is_module)},
        )
    _report_verification(result)


def _precision_asked(is_module: bool) -> list[str]:
    """The names of the precision options that `verify` goes by. A module notes its own: there only
    options on the command line count."""
    from aot.driver.ledger import PRECISION

    context = click.get_current_context()
    usual = ParameterSource.DEFAULT
    return [n for n in PRECISION if not is_module or context.get_parameter_source(n) is not usual]


def _report_verification(result: Verification) -> None:
    click.echo(cli_text.verification_table(result))
    if not result.agrees:
        raise CompileError(
            f"target {result.target} does not agree with {result.engine} "
            f"within {result.tolerance:g}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code. No exception leaves it."""
    signal.signal(signal.SIGTERM, _terminate)
    with warnings.catch_warnings():
        warnings.simplefilter("always", CacheWarning)
        warnings.simplefilter("always", TuningWarning)
        warnings.simplefilter("always", BoundWarning)
        warnings.simplefilter("always", AdviceWarning, append=True)  # the tests make it an error
        warnings.showwarning = _warn
        return _guarded(list(sys.argv[1:] if arguments is None else arguments))


def _guarded(arguments: list[str]) -> int:
    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        _say("aotc: interrupted")
        return 130
    except BrokenPipeError:
        _close_quietly()
        return 141
    except Exception as error:
        return _fail(error)


def _invoke(arguments: list[str]) -> int:
    completed = complete(cli)
    if completed is not None:
        return completed
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


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    text = f"aotc: warning: {one_line(str(message))}"
    if isinstance(message, AdviceWarning):
        text += f"; the module is complete, and {_request(_write_repro(message.error))}"
    _say(text)


def _request(repro: Path | None) -> str:
    """The request to report a bug of ours, with the path of its `.repro` file."""
    return "this is a bug of aotc, please report it" + (f" with {repro}" if repro else "")


def _say(text: str) -> None:
    with suppress(OSError):
        # Also where a bar that shows progress takes what is printed meanwhile.
        click.echo(printable(text), err=True)


def _close_quietly() -> None:
    # The interpreter flushes standard output at exit; there must be something to flush it to.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in _USERS_ERRORS and error.filename is not None:
        _say(f"aotc: error: {shortened(str(error.filename))}: {str(error.strerror).lower()}")
    elif isinstance(error, AotError) and not isinstance(error, InternalError):
        # The runtime's own message is one line, whatever names it has.
        _say(f"aotc: error: {one_line(str(error)) if isinstance(error, RuntimeFailure) else error}")
    else:
        _say(_bug_message(error))
    return 1


def _bug_message(error: Exception) -> str:
    """The message of an internal error: what happened, and which file to send with a report."""
    kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
    text = f"{kind}{' '.join(str(error).split()) or 'no message'}"
    if ".repro" not in text:  # a failing pass has written a better one
        text += f"; {_request(_write_repro(error))}"
    return f"aotc: error: internal error: {text} ({TRACEBACK_VARIABLE}=1 shows more)"


def _write_repro(error: Exception) -> Path | None:
    import platform

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


def entry() -> NoReturn:
    """`main` as a process of its own, which is not taken apart object by object at its end: for a
    small model that, and looking for cycles meanwhile, would be a third of the time. A look among a
    million objects takes a third of a second, and most models make fewer."""
    gc.set_threshold(1_000_000, 50, 50)
    cli_text.open_standard_streams()
    status = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, CompileError):  # which `main` has reported
            stream.flush()
    atexit._run_exitfuncs()
    os._exit(status)


if __name__ == "__main__":
    entry()
