"""Text from a language module: a prompt in, pieces of text out, the conversation kept in its state.

Owns the loop around the program (`aot.text.language_program`), whose states grow with the tokens.
What tokens are, and how one is chosen, is the runtime's (`aot.runtime.text`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import Program
from aot.runtime.text import Sampler, Tokeniser
from aot.text.batch import Batch
from aot.text.chat import Message, Part
from aot.text.language_program import (
    Generation,
    Reply,
    Tokens,
    check_language_program,
    check_room,
    checked_text,
    language_program,
    raw_tokens,
    rendered,
    tokens_of,
    with_rows,
)


class Chat:
    """A conversation with a language module; one program has one at a time.

    Attributes:
        last: of the last reply.
        messages: of the conversation so far.
    """

    def __init__(
        self,
        program: Program,
        *,
        system: str | None = None,
        tokeniser: Tokeniser | None = None,
        sampler: Sampler | None = None,
        is_raw: bool = False,
    ) -> None:
        """Begins a conversation with an empty state.

        Args:
            system: the system message; None is what the template says.
            tokeniser: None is the module's.
            sampler: None takes the most probable token.
            is_raw: prompts are text that goes on, without a chat template.

        Raises:
            RuntimeFailure: the program is no language module.
        """
        self._count, self._largest = check_language_program(program)
        self.program = program
        self.tokeniser = Tokeniser(program) if tokeniser is None else tokeniser
        self.sampler = Sampler() if sampler is None else sampler
        self.is_raw = is_raw or not self.tokeniser.chat_template
        self.last = Generation()
        self._system: list[Message] = []
        if system is not None:
            self._system.append({"role": "system", "content": system})
        self.reset()

    def reset(self) -> None:
        """Forgets the conversation but for the system's message."""
        self.messages: list[Message] = list(self._system)
        self._pending: list[int] = []  # the last token of a reply that was cut off: not run yet
        self._places: list[tuple[int, list[int]]] = []  # before each message: length, and these
        self.program.reset()
        self.sampler.reset()

    def undo(self) -> None:
        """Takes the last message and its reply back.

        Raises:
            RuntimeFailure: there is none.
        """
        if not self._places:
            raise RuntimeFailure("there is no message to take back", "argument")
        length, pending = self._places[-1]
        self.program.rewind(length)
        self._places.pop()
        self._pending = pending
        del self.messages[-2:]

    def settle(self) -> None:
        """Lets the program's state have all of the last reply, also if that was cut off."""
        if self._pending and self.program.state_length < self.program.state_capacity:
            self._run(np.array(self._pending, np.int32))
            self._pending = []

    def reply(self, text: str | bytes, *, max_tokens: int = 0) -> Iterator[str]:
        """The reply to a message, in pieces of whole characters.

        Args:
            max_tokens: of the reply; 0 is as many as the context holds.

        Raises:
            RuntimeFailure: the text is no UTF-8, or longer than what is left of the context. The
                conversation is as it was then.
            CompileError: the chat template refuses the message.
        """
        begin = time.perf_counter()
        content = checked_text(text)
        prompt = self._prompt(content)
        tokens = np.concatenate([np.array(self._pending, np.int32), prompt])
        check_room(self.program, len(tokens), self.program.state_length)
        return self._pieces(content, tokens, max_tokens, begin)

    def _pieces(self, content: str, tokens: Tokens, max_tokens: int, begin: float) -> Iterator[str]:
        made = self.last = Generation(len(tokens))
        start = self.program.state_length
        try:
            logits = self._run(tokens)
        except RuntimeFailure:
            self._return_to(start)
            raise
        self.sampler.accept(int(token) for token in tokens[len(self._pending) :])
        self._places.append((start, self._pending))
        self._pending = []
        reply = Reply(self.tokeniser, self.sampler, made, max_tokens, begin)
        pieces: list[str] = []
        self.messages.append({"role": "user", "content": content})
        self.messages.append({"role": "assistant", "content": ""})
        while True:
            piece = reply.next(logits)
            if made.stopped_by == "end":
                break
            self._pending = [reply.token]
            pieces.append(piece)
            self.messages[-1] = {"role": "assistant", "content": "".join(pieces)}
            if piece:
                yield piece
            if not made.stopped_by and self.program.state_length >= self.program.state_capacity:
                made.stopped_by = "context"
            if made.stopped_by:
                break
            logits = self._run(np.array([reply.token], np.int32))
            self._pending = []
        rest = reply.rest()
        if rest:
            self.messages[-1] = {"role": "assistant", "content": "".join([*pieces, rest])}
            yield rest

    def _return_to(self, length: int) -> None:
        """Forgets what a prompt that failed has added; all, where windows have moved on."""
        try:
            self.program.rewind(length)
        except RuntimeFailure:
            self.reset()

    def _run(self, tokens: Tokens) -> NDArray[np.float32]:
        """The logits of the last token; a long prompt is run in pieces."""
        logits = np.empty((0, 0), np.float32)
        for begin in range(0, len(tokens), self._largest):
            (logits,) = self.program.run([tokens[begin : begin + self._largest]])
        last: NDArray[np.float32] = with_rows(logits, 1)[-1]
        return last

    def _prompt(self, text: str) -> Tokens:
        """The tokens to append for a message."""
        is_first = self.program.state_length == 0
        if self.is_raw:
            return raw_tokens(self.tokeniser, text, is_first=is_first)
        parts = self._message(text) if is_first or self.messages else self._next_message(text)
        return tokens_of(self.tokeniser, parts, is_first=is_first)

    def _message(self, text: str) -> list[Part]:
        """The text parts of a user's message, from the end of the model's last reply on."""
        messages = [*self.messages, {"role": "user", "content": text}]
        parts = rendered(self.tokeniser, messages)
        before = [n for n, part in enumerate(parts) if part.message == len(messages) - 2 >= 0]
        is_begun = self.program.state_length > 0
        return parts[before[-1] + 1 :] if is_begun and before else parts

    def _next_message(self, text: str) -> list[Part]:
        """A message behind a reply that only the program's state has: it was loaded."""
        form = self.tokeniser.chat_roles
        if form is None:
            raise RuntimeFailure(
                "the state has a conversation, and the chat template does not say how one goes on; "
                "reset the chat, or continue raw text",
                "unsupported",
            )
        before, after = form.roles["user"]
        return [
            Part(form.roles["assistant"][1] + before, True),
            Part(text, False),
            Part(after + form.reply, True),
        ]


@overload
def generate(
    program: Program,
    prompt: str | bytes,
    *,
    system: str | None = None,
    max_tokens: int = 0,
    is_raw: bool = False,
    **sampling: Any,
) -> Iterator[str]: ...


@overload
def generate(
    program: Program,
    prompt: Sequence[str | bytes],
    *,
    system: str | None = None,
    max_tokens: int = 0,
    is_raw: bool = False,
    **sampling: Any,
) -> Iterator[tuple[int, str]]: ...


def generate(
    program: Program,
    prompt: str | bytes | Sequence[str | bytes],
    *,
    system: str | None = None,
    max_tokens: int = 0,
    is_raw: bool = False,
    **sampling: Any,
) -> Iterator[str] | Iterator[tuple[int, str]]:
    """The reply of a language module to a prompt, in pieces, as a conversation of its own.

    Args:
        program: of a module with a vocabulary.
        prompt: or several, in turn or, by a module of several sequences, so many at once: each
            piece comes with its prompt's number then.
        system: the system message; None is what the chat template says.
        max_tokens: of a reply; 0 is as many as the context holds.
        is_raw: prompts are text to be continued, without the chat template.
        sampling: temperature, top_k, top_p, min_p, repetition_penalty and seed, as for
            `aot.runtime.text.Sampler`; the most probable token without a temperature. Later prompts
            have the seeds behind it.

    Raises:
        RuntimeFailure: the program is no language module, or a prompt is no UTF-8 or longer than
            the context.
        CompileError: the chat template can't be rendered.
    """
    if not isinstance(prompt, (str, bytes)):
        batch = Batch(program, prompt, system=system, is_raw=is_raw, sampling=sampling)
        return batch.replies(max_tokens=max_tokens)
    if language_program(program).sequences > 1:
        batch = Batch(program, [prompt], system=system, is_raw=is_raw, sampling=sampling)
        return (piece for _, piece in batch.replies(max_tokens=max_tokens))
    chat = Chat(program, system=system, sampler=Sampler(**sampling), is_raw=is_raw)
    return chat.reply(prompt, max_tokens=max_tokens)
