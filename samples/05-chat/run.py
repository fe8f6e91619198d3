"""A chat in the terminal, with a language model that is one file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

import aot
from aot.runtime.text import Sampler

HELP = "an empty line ends the chat, /reset forgets it, /undo takes the last message back"


def converse(
    chat: aot.Chat, lines: Iterable[str], *, max_tokens: int = 0, stop: Sequence[str] = ()
) -> None:
    """Replies to each line as it comes, until an empty one."""
    for line in lines:
        text = line.strip()
        if not text:
            return
        if text == "/reset":
            chat.reset()
        else:
            try:
                if text == "/undo":
                    chat.undo()
                else:
                    for piece in chat.reply(text, max_tokens=max_tokens, stop=stop):
                        print(piece, end="", flush=True)
                    print()
            except aot.AotError as error:  # too long, say; the conversation is as it was
                print(f"({error})")
        print("> ", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=HELP)
    parser.add_argument("module", help="as `aotc compile MODEL.gguf -o chat.aotm` makes it")
    parser.add_argument("--system", help="the system message")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=0)
    parser.add_argument("--stop", action="append", default=[], help="a text that ends a reply")
    parser.add_argument(
        "--context-shift", action="store_true", help="forget the older half when it is full"
    )
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    try:
        with aot.load(given.module, threads=given.threads) as program:
            sampler = Sampler(temperature=given.temperature, seed=given.seed)
            chat = aot.Chat(
                program,
                system=given.system,
                sampler=sampler,
                shifts_context=given.context_shift,
            )
            if chat.tokeniser.prefix is not None:
                print(f"begins behind {len(chat.tokeniser.prefix.tokens)} tokens of the module")
            print(f"{HELP}\n> ", end="", flush=True)
            converse(chat, sys.stdin, max_tokens=given.max_tokens, stop=given.stop)
    except aot.AotError as error:
        sys.exit(f"run.py: {error}")


if __name__ == "__main__":
    main()
