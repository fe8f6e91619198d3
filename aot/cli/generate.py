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
from aot.runtime.sampling_options import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.runtime.loader import Program
    from aot.runtime.text import Tokeniser
    from aot.text.batch import Batch
    from aot.text.language_program import Generation


def sampling_options(command: Any) -> Any:
    """Adds an option for each number of the sampler's."""
    for number in reversed(NUMBERS):
        name = f"--{number.name.replace('_', '-')}"
        option = click.option(name, type=number.kind, default=number.kind(), help=number.help)
        command = option(command)
    return command


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
    "--context-shift",
    "shifts_context",
    is_flag=True,
    help="Where the context is full, forget the older half of it and go on.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="Ends the reply before this text.")
@click.option(
    "--logprobs",
    type=click.IntRange(0, 64),
    default=0,
    help="With --json: of each token, and of the N most probable ones in its place.",
)
@sampling_options
@click.option(
    "--logit-bias",
    multiple=True,
    metavar="TOKEN=X",
    help="Adds X to the logit of a token, by its number; -inf: never.",
)
@click.option(
    "--dry-breaker",
    "dry_breakers",
    multiple=True,
    metavar="TEXT",
    help="Repetitions end at it. Default: a new line, a colon, a quotation mark, an asterisk.",
)
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
    shifts_context: bool,
    stop: tuple[str, ...],
    logprobs: int,
    logit_bias: tuple[str, ...],
    dry_breakers: tuple[str, ...],
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
    from aot.runtime.text import Sampler, Tokeniser
    from aot.text.batch import Batch
    from aot.text.generation import Chat
    from aot.text.language_program import language_program

    how: dict[str, Any] = {"system": system, "is_raw": is_raw, "variables": _object(variables)}
    ends: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop, "logprobs": logprobs}
    sampling |= {"logit_bias": dict(map(_bias, logit_bias)), "dry_breakers": dry_breakers or None}
    check_is_module(module)  # what is no file is refused before anything waits for it
    given = prompts or (_standard_input(),)
    with load(module, device, entry=entry, target=target, threads=threads) as program:
        if len(given) > 1 or language_program(program).sequences > 1:
            if load_state is not None or save_state is not None:
                raise click.UsageError("a state is of one conversation: give one prompt")
            if shifts_context:
                raise click.UsageError("--context-shift is of one conversation: give one prompt")
            batch = Batch(program, given, **how, sampling=sampling)
            facts = _several(batch, ends, is_quiet=as_json)
            if as_json:
                facts |= _facts(program, module)
                click.echo(json.dumps(facts, ensure_ascii=False))
            return
        tokeniser = Tokeniser(program)
        sampler = Sampler(**sampling, tokeniser=tokeniser)
        chat = Chat(
            program,
            **how,
            tokeniser=tokeniser,
            sampler=sampler,
            shifts_context=shifts_context,
        )
        if load_state is not None:
            program.load_state(load_state)
        pieces = []
        for piece in chat.reply(given[0], **ends):
            pieces.append(piece)
            if not as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
        if not as_json:
            click.echo()
            if chat.last.prefix_tokens and sys.stderr.isatty():
                click.echo(f"(behind the module's {chat.last.prefix_tokens} tokens)", err=True)
        if save_state is not None:
            chat.settle()
            program.save_state(save_state)
        if not as_json:
            return
        last = chat.last
        facts = {
            "text": "".join(pieces),
            "stopped_by": last.stopped_by,
            "prefix_tokens": last.prefix_tokens,
            "prompt_tokens": last.prompt_tokens,
            "tokens": last.tokens,
            "prompt_tokens_per_s": round(last.prompt_tokens_per_s, 3),
            "decode_tokens_per_s": round(last.decode_tokens_per_s, 3),
            "first_token_ms": round(last.first_token_ms, 3),
            **_logprobs(last, tokeniser),
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


def _logprobs(made: Generation, tokeniser: Tokeniser) -> dict[str, Any]:
    """The fact `logprobs`, where they were asked for."""

    def fact(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "text": tokeniser.decode(token), "logprob": round(logprob, 6)}

    found = [
        {**fact(one.token, one.logprob), "top": [fact(*other) for other in one.top]}
        for one in made.logprobs
    ]
    return {"logprobs": found} if found else {}


def _several(batch: Batch, ends: Mapping[str, Any], *, is_quiet: bool) -> dict[str, Any]:
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

    for number, piece in batch.replies(**ends):
        texts[number] += piece
        written = write_ended()
    write_ended()
    seconds = time.perf_counter() - begin
    replies = [
        {
            "text": text,
            "stopped_by": made.stopped_by,
            "prefix_tokens": made.prefix_tokens,
            "prompt_tokens": made.prompt_tokens,
            "tokens": made.tokens,
        }
        for text, made in zip(texts, batch.made, strict=True)
    ]
    tokens = sum(made.tokens for made in batch.made)
    return {"replies": replies, "tokens_per_s": round(tokens / seconds, 3)}


def _bias(text: str) -> tuple[int, float]:
    """A token's bias, TOKEN=X."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError as error:
        raise click.BadParameter(
            f"--logit-bias {text}: expected TOKEN=X, a token's number and a number"
        ) from error


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
