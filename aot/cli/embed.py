"""`aotc embed`: the embeddings of texts, a line each or in a file.

Options and text only: what is computed is `aot.text.embedding`'s.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import click
import numpy as np

from aot.errors import RuntimeFailure
from aot.frontends.registry import head_of


@click.command()
@click.argument("module", type=click.Path())
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--raw", "is_raw", is_flag=True, help="As the model gives them, of any length.")
@click.option("--tokens", "are_tokens", is_flag=True, help="A TEXT is numbers: '101, 7592, 102'.")
@click.option("-o", "--output", metavar="OUT.npy", help="Write f32[texts, width], print nothing.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "vulkan"]), default="auto")
@click.option("--entry", metavar="NAME", help="The entry point. Default: the first.")
@click.option("--target", metavar="NAME", help="The variant. Default: the first that runs here.")
def embed(
    module: str,
    texts: tuple[str, ...],
    is_raw: bool,
    are_tokens: bool,
    output: str | None,
    threads: int,
    device: str,
    entry: str | None,
    target: str | None,
) -> None:
    """Embed each TEXT, or each line of standard input, by the model in MODULE.

    Prints a JSON list of numbers for each, scaled to length 1: the product of two is the cosine of
    their angle.

    \b
    Examples:
      aotc embed embed.aotm "What is a compiler?" "A compiler translates programs."
      aotc embed embed.aotm -o lines.npy < lines.txt
      aotc embed embed.aotm --tokens "101, 7592, 102"
    """
    from aot.runtime.loader import load
    from aot.text.embedding import Text
    from aot.text.embedding import embed as embedded

    head_of(module)  # what is no file is refused before anything waits for it
    lines: list[str | bytes] = [*texts] or _lines()
    given: list[Text] = [_numbers(text) if are_tokens else text for text in lines]
    with load(module, device, entry=entry, target=target, threads=threads) as program:
        rows = embedded(program, given, is_scaled=not is_raw)
    if output is None:
        for row in rows:
            click.echo(json.dumps([float(x) for x in row]))
        return
    from aot.link.files import write_atomically

    stream = io.BytesIO()
    np.save(stream, rows)
    write_atomically(Path(output), [stream.getvalue()])


def _lines() -> list[str | bytes]:
    if sys.stdin.isatty():
        raise RuntimeFailure("a text is missing: give it, or write lines to standard input")
    return list(sys.stdin.buffer.read().splitlines())


def _numbers(text: str | bytes) -> list[int]:
    words = (text.decode(errors="replace") if isinstance(text, bytes) else text).replace(",", " ")
    found = []
    for word in words.split():
        if not word.isascii() or not word.isdigit() or int(word) >= 1 << 31:
            raise click.UsageError(f"{word!r} is no number of a token")
        found.append(int(word))
    return found
