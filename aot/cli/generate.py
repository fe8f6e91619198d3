"""`aotc generate`: a language module's reply, as it comes.

Options and text only: the loop is `aot.text.generation`'s.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.errors import RuntimeFailure
from aot.frontends.registry import check_is_module

if TYPE_CHECKING:
    from aot.runtime.loader import Program
    from aot.text.batch import Batch


@click.command()
@click.argument("module", type=click.Path())
@click.argument("prompts", metavar="[PROMPT]...", nargs=-1)
@click.option("--system", metavar="TEXT", help="The system message. Default: the template's own.")
@click.option(
    "--variables",
    metavar="JSON",
    help="More of the chat template, an object: tools, documents, enable_thinking.",
)
@click.option("--raw", "is_raw", is_flag=True, help="Continue PROMPT, without the chat template.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=0,
    help="Of the reply. Default: as many as the context holds.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    help="How much chance there is. Default: none, the most probable token.",
)
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Only the K most probable.")
@click.option("--top-p", type=click.FloatRange(0, 1), default=0.0, help="Those that reach P.")
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="P times the largest.")
@click.option("--repetition-penalty", type=click.FloatRange(min=0), default=0.0)
@click.option("--seed", default=0, show_default=True, help="Of the chance.")
@click.option("--load-state", type=click.Path(), help="Begin with a state that was saved.")
@click.option("--save-state", type=click.Path(), help="Write the state behind the reply.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "vulkan"]), default="auto")
@click.option("--entry", metavar="NAME", help="The entry point. Default: the first.")
@click.option("--target", metavar="NAME", help="The variant. Default: the first that runs here.")
@click.option("--json", "as_json", is_flag=True, help="For scripts: text, rates and memory.")
def generate(
    module: str,
    prompts: tuple[str, ...],
    system: str | None,
    variables: str | None,
    is_raw: bool,
    max_tokens: int,
    load_state: str | None,
    save_state: str | None,
    as_json: bool,
    device: str,
    entry: str | None,
    target: str | None,
    threads: int,
    **sampling: Any,
) -> None:
    """Let a language model in MODULE reply to PROMPT, or to what is on standard input.

    Several prompts are replied to in turn or, where MODULE was compiled with --sequences, so many
    at once; each reply stands below its number.

    \b
    Examples:
      aotc generate chat.aotm "What is the capital of France?"
      aotc generate chat.aotm --raw "Once upon a time" --max-tokens 100
      aotc generate chat.aotm "Tell me a joke" --temperature 0.8 --top-p 0.95 --seed 7
      aotc generate chat.aotm "Hello" --json
      aotc generate chat.aotm "Hello" "Good bye"
      aotc generate chat.aotm "Hello" --variables '{"enable_thinking":false}'
    """
    from aot.runtime.loader import load
    from aot.runtime.text import Sampler
    from aot.text.batch import Batch
    from aot.text.generation import Chat
    from aot.text.language_program import language_program

    how: dict[str, Any] = {"system": system, "is_raw": is_raw, "variables": _object(variables)}
    check_is_module(module)  # what is no file is refused before anything waits for it
    given = prompts or (_standard_input(),)
    with load(module, device, entry=entry, target=target, threads=threads) as program:
        if len(given) > 1 or language_program(program).sequences > 1:
            if load_state is not None or save_state is not None:
                raise click.UsageError("a state is of one conversation: give one prompt")
            batch = Batch(program, given, **how, sampling=sampling)
            facts = _several(batch, max_tokens, is_quiet=as_json)
            if as_json:
                facts |= _facts(program, module)
                click.echo(json.dumps(facts, ensure_ascii=False))
            return
        chat = Chat(program, **how, sampler=Sampler(**sampling))
        if load_state is not None:
            program.load_state(load_state)
        pieces = []
        for piece in chat.reply(given[0], max_tokens=max_tokens):
            pieces.append(piece)
            if not as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
        if not as_json:
            click.echo()
        if save_state is not None:
            chat.settle()
            program.save_state(save_state)
        if not as_json:
            return
        last = chat.last
        facts = {
            "text": "".join(pieces),
            "stopped_by": last.stopped_by,
            "prompt_tokens": last.prompt_tokens,
            "tokens": last.tokens,
            "prompt_tokens_per_s": round(last.prompt_tokens_per_s, 3),
            "decode_tokens_per_s": round(last.decode_tokens_per_s, 3),
            "first_token_ms": round(last.first_token_ms, 3),
            **_facts(program, module),
        }
        click.echo(json.dumps(facts, ensure_ascii=False))


def _facts(program: Program, module: str) -> dict[str, Any]:
    return {
        "context": program.state_capacity,
        "context_used": program.state_length,
        "threads": program.threads,
        "target": program.target,
        "arena_bytes": program.arena_bytes,
        "module_bytes": Path(module).stat().st_size,
        "peak_rss_kb": _peak_rss_kb(),
    }


def _several(batch: Batch, max_tokens: int, *, is_quiet: bool) -> dict[str, Any]:
    """Prints replies in the order of their prompts, each after those before it have ended; returns
    the facts for `--json`.
    """
    texts, written = [""] * len(batch.made), 0
    begin = time.perf_counter()

    def write_ended() -> int:
        number = written
        while number < len(texts) and batch.made[number].stopped_by:
            if not is_quiet:
                head = f"{number + 1}.\n" if len(texts) > 1 else ""
                click.echo(f"{head}{texts[number]}")
            number += 1
        return number

    for number, piece in batch.replies(max_tokens=max_tokens):
        texts[number] += piece
        written = write_ended()
    write_ended()
    seconds = time.perf_counter() - begin
    replies = [
        {
            "text": text,
            "stopped_by": made.stopped_by,
            "prompt_tokens": made.prompt_tokens,
            "tokens": made.tokens,
        }
        for text, made in zip(texts, batch.made, strict=True)
    ]
    tokens = sum(made.tokens for made in batch.made)
    return {"replies": replies, "tokens_per_s": round(tokens / seconds, 3)}


def _object(text: str | None) -> dict[str, Any] | None:
    """The variables of the chat template."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"--variables: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter("--variables: expected a JSON object")
    return found


def _standard_input() -> bytes:
    if sys.stdin.isatty():
        raise RuntimeFailure("a prompt is missing: give it, or write it to standard input")
    return sys.stdin.buffer.read()


def _peak_rss_kb() -> int:
    """Resident memory at its highest, of Python too; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
