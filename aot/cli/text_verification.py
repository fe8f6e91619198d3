"""What `aotc verify` says of a language module that has read a text.

Owns when a text is what a module is verified with, and the words of the outcome.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.cli.text import table
from aot.errors import CompileError
from aot.frontends import registry
from aot.ir import input_files

if TYPE_CHECKING:
    from aot.options import DeviceName
    from aot.tools.text_verification import TextVerification


def reads_text(path: str, model: str, device: DeviceName, entry: str | None) -> bool:
    """Whether a module of a GGUF file is verified by a text although none was given."""
    from aot.api import load
    from aot.tools.text_verification import can_verify_text

    if registry.find(Path(model)) is not registry.GGUF:
        return False
    with load(path, device, entry=entry) as program:
        return can_verify_text(program)


def text_of(file: str | None) -> str | None:
    """The text of a file; None where no file is given.

    Raises:
        CompileError: it can't be read, or is not UTF-8.
    """
    if file is None:
        return None
    try:
        return input_files.text(file)
    except UnicodeDecodeError as error:
        raise CompileError(f"{file} is not UTF-8: byte {error.start} is wrong") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CompileError(f"cannot read {file}: {reason}") from error


def report_text(result: TextVerification) -> None:
    """Prints how a module reads a text.

    Raises:
        CompileError: its predictions are too far from those in f32.
    """
    click.echo(text_table(result))
    if not result.agrees:
        raise CompileError(
            f"target {result.target} does not agree with the model in f32 within "
            f"{result.tolerance:g} nats; --activations f32 rounds less"
        )


def text_table(result: TextVerification) -> str:
    """A row for each engine: how far its next tokens are from f32's."""
    rows = [
        [
            one.engine,
            f"{one.divergence:.5f}",
            f"{one.tail:.4f}",
            f"{100 * one.same:.1f} %",
            f"{one.perplexity:.3f}",
        ]
        for one in (result.found, *result.others)
    ]
    rows.append(["f32", "0", "0", "100 %", f"{result.perplexity:.3f}"])
    header = ("engine", "KL", "p99", "top-1", "perplexity")
    verdict = "agrees" if result.agrees else "does not agree"
    lines = [
        table(header, rows, right="KL p99 top-1 perplexity"),
        f"target {result.target} {verdict} with the model in f32 within {result.tolerance:g} nats, "
        f"in the mean behind {result.judged} of {result.tokens} tokens",
    ]
    if result.remark:
        lines.append(f"this can't see faults of the importer: {result.remark}")
    return "\n".join(lines)
