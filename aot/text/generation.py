"""Text from a language module: a prompt in, pieces of text out, the conversation kept in its state.

Owns the loop around the program (`aot.text.language_program`), whose states grow with the tokens.
What tokens are, and how one is chosen, is the runtime's (`aot.runtime.text`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import Program
from aot.runtime.text import Sampler, Tokeniser
from aot.text.batch import Batch
from aot.text.chat import UNKNOWN_MESSAGES, Message, behind_reply, render
from aot.text.language_program import (
    Generation,
    Reply,
    Tokens,
    check_language_program,
    check_prompts,
    check_room,
    checked_text,
    chosen_prefix,
    language_program,
    load_prefix,
    raw_tokens,
    shared_tokens,
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
        variables: Mapping[str, Any] | None = None,
        shifts_context: bool = False,
    ) -> None:
        """Begins a conversation with an empty state.

        Args:
            system: the system message; None is the module's prefix, or what the template says.
            tokeniser: None is the module's.
            sampler: None takes the most probable token.
            is_raw: prompts are text that goes on, as where the model has no chat template.
            variables: what the chat template is given beside the messages, such as `tools`,
                `documents` and `enable_thinking`; values of JSON.
            shifts_context: where the context is full, the older half of the conversation behind the
                module's prefix, or behind its first token, is forgotten, and the rest is run again
                at its new place. Without it the context ends the reply.

        Raises:
            RuntimeFailure: the program is no language module, or raw text is to have a system
                message or variables.
        """
        self._count, self._largest = check_language_program(program)
        self.program = program
        self.tokeniser = Tokeniser(program) if tokeniser is None else tokeniser
        self.sampler = Sampler() if sampler is None else sampler
        self.is_raw = is_raw or not self.tokeniser.chat_template
        check_prompts(is_raw=self.is_raw, system=system, variables=variables)
        self.last = Generation()
        self._shifts = shifts_context
        self._variables = dict(variables or {})
        self._is_given_system = system is not None
        self._prefix = chosen_prefix(self.tokeniser, is_raw=self.is_raw, system=system)
        if self._prefix is not None and not self.is_raw:
            system = self._prefix.text
        self._system: list[Message] = []
        if system is not None:
            self._system.append({"role": "system", "content": system})
        self.reset()

    def reset(self) -> None:
        """Forgets the conversation but for the system's message."""
        self.messages: list[Message] = list(self._system)
        self._pending: list[int] = []  # the last token of a reply that was cut off: not run yet
        self._read: list[int] = []  # tokens in the program's state, behind the first `_base`
        self._base = 0  # tokens of a state that was loaded: nobody knows their text
        self._places: list[tuple[int, list[int]]] = []  # before each message: `_read`, `_pending`
        self._forgotten = 0  # tokens of the conversation behind the first `_kept` ones of `_read`
        self.program.reset()
        self.sampler.reset()

    def undo(self) -> None:
        """Takes the last message and its reply back.

        Raises:
            RuntimeFailure: there is none.
        """
        if not self._places:
            raise RuntimeFailure("there is no message to take back", "argument")
        count, pending = self._places[-1]
        self.program.rewind(self._base + count)
        del self._read[count:]
        self._places.pop()
        self._pending = pending
        del self.messages[-2:]

    def settle(self) -> None:
        """Lets the program's state have all of the last reply, also if that was cut off."""
        if self._pending and self.program.state_length < self.program.state_capacity:
            self._run(np.array(self._pending, np.int32))
            self._pending = []

    def reply(
        self,
        text: str | bytes,
        *,
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        logprobs: int = 0,
    ) -> Iterator[str]:
        """The reply to a message, in pieces of whole characters.

        Args:
            max_tokens: of the reply; 0 is as many as the context holds.
            stop: texts that end the reply, wherever tokens cut them, and are not part of it; 1 to
                1024 bytes each.
            logprobs: how many most probable tokens `last.logprobs` tells beside each token of the
                reply; 0 is none and 64 the most.

        Raises:
            RuntimeFailure: the text is no UTF-8, or longer than what is left of the context; the
                module keeps no chat template, or that refuses the message; a stop string is empty
                or too long. The conversation is as it was then.
        """
        begin = time.perf_counter()
        content = checked_text(text)
        reply = Reply(
            *(self.tokeniser, self.sampler, Generation(), begin),
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
        )
        self._find_beginning()
        tokens, forgotten = self._shifted(self._prompt(content))
        shared = len(self._read) if self.is_raw else shared_tokens(self._read, tokens)
        tokens = tokens if self.is_raw else tokens[shared:]
        if self.is_raw and self._make_room(len(tokens)):
            shared = len(self._read)
        check_room(self.program, len(tokens), self._base + shared)
        self._forgotten = forgotten
        return self._pieces(content, tokens, shared, reply)

    def _pieces(self, content: str, tokens: Tokens, shared: int, reply: Reply) -> Iterator[str]:
        """The reply to tokens behind the first `shared` ones that the program has read."""
        made = self.last = reply.made
        tokens = self._rewound(tokens, shared)
        loaded = self._load_prefix(tokens)
        before = len(self._read)
        made.prefix_tokens, made.prompt_tokens = loaded, len(tokens) - loaded
        try:
            logits = self._run(tokens, loaded)
        except RuntimeFailure:
            self._return_to(before)
            raise
        self.sampler.accept(int(token) for token in tokens[self._pending_of(tokens) :])
        self._places.append((before, self._pending))
        self._pending = []
        pieces: list[str] = []
        self.messages.append({"role": "user", "content": content})
        self.messages.append({"role": "assistant", "content": ""})
        while True:
            piece = reply.next(logits)
            if made.stopped_by != "end":
                self._pending = [reply.token]
            is_full = self.program.state_length >= self.program.state_capacity
            if is_full and not made.stopped_by and not self._shift():
                piece += reply.finish("context")
            pieces.append(piece)
            self.messages[-1] = {"role": "assistant", "content": "".join(pieces)}
            if piece:
                yield piece
            if made.stopped_by:
                return
            logits = self._run(np.array([reply.token], np.int32))
            self._pending = []

    def _pending_of(self, tokens: Tokens) -> int:
        """How many first tokens of a prompt the sampler has chosen."""
        count = len(self._pending)
        return count if count and tokens[:count].tolist() == self._pending else 0

    def _rewound(self, tokens: Tokens, shared: int) -> Tokens:
        """Lets the program forget what it has read behind the first `shared` tokens; returns what
        it has to read then. Windows that have moved on keep nothing."""
        if shared < len(self._read):
            forgotten = self._read[:shared]
            try:
                self.program.rewind(self._base + shared)
            except RuntimeFailure:
                if self._base:
                    raise
                self.program.reset()
                tokens = np.concatenate([np.array(forgotten, np.int32), tokens])
                check_room(self.program, len(tokens))
                shared = 0
            del self._read[shared:]
            self._places = [(min(count, shared), pending) for count, pending in self._places]
        return tokens

    def _return_to(self, count: int) -> None:
        """Forgets what a prompt that failed has added; all, where windows have moved on."""
        try:
            self.program.rewind(self._base + count)
            del self._read[count:]
        except RuntimeFailure:
            self.reset()

    @property
    def _kept(self) -> int:
        """How many first tokens of a conversation are never forgotten."""
        return 1 if self._prefix is None else len(self._prefix.tokens)

    def _shifted(self, tokens: Tokens) -> tuple[Tokens, int]:
        """(a prompt without what is forgotten of the conversation before it, how many tokens that
        is): more than before, where the prompt does not fit otherwise."""
        if not self._shifts or self._base or self.is_raw:
            return tokens, self._forgotten
        kept, capacity = self._kept, self.program.state_capacity
        most = min(self._forgotten + len(self._read), len(tokens) - 1) - kept
        forgotten = min(self._forgotten, max(most, 0))
        while len(tokens) - forgotten > capacity and forgotten < most:
            forgotten += (most - forgotten + 1) // 2
        return np.concatenate([tokens[:kept], tokens[kept + forgotten :]]), forgotten

    def _make_room(self, count: int) -> bool:
        """Whether the context was shifted so that `count` tokens have room in it."""
        capacity, is_shifted = self.program.state_capacity, False
        if self._kept + 1 + count > capacity:
            return False
        while self.program.state_length + count > capacity and self._shift():
            is_shifted = True
        return is_shifted

    def _shift(self) -> bool:
        """Forgets the older half of what stands behind the first `_kept` tokens, and runs the rest
        again; whether there was such a half."""
        kept = self._kept
        rest = self._read[kept:]
        if not self._shifts or self._base or len(rest) < 2:
            return False
        dropped = len(rest) // 2
        tokens = self._rewound(np.array(rest[dropped:], np.int32), kept)
        self._places.clear()
        self._forgotten += dropped
        self._run(tokens, self._load_prefix(tokens))
        return True

    def _load_prefix(self, tokens: Tokens) -> int:
        """How many first tokens of what has to be read the program has read: the module's prefix,
        if it has read nothing else."""
        if self._base or self._read:
            return 0
        return load_prefix(self.program, self.tokeniser, self._prefix, tokens)

    def _run(self, tokens: Tokens, loaded: int = 0) -> NDArray[np.float32]:
        """The logits of the last token; a long prompt is run in pieces, without its first `loaded`
        tokens."""
        logits = np.empty((0, 0), np.float32)
        for begin in range(loaded, len(tokens), self._largest):
            (logits,) = self.program.run([tokens[begin : begin + self._largest]])
        self._read += tokens.tolist()
        last: NDArray[np.float32] = with_rows(logits, 1)[-1]
        return last

    def _find_beginning(self) -> None:
        """Where the program is not where this chat has left it, begins anew: behind a state of
        which only the program knows what was said."""
        length = self.program.state_length
        if self._base + len(self._read) == length:
            return
        if length and self._is_given_system:
            raise RuntimeFailure(
                "a system message begins a conversation, and the state has one already", "argument"
            )
        self.messages = [] if length else list(self._system)
        self._base, self._read, self._places, self._pending = length, [], [], []
        self._forgotten = 0

    def _prompt(self, text: str) -> Tokens:
        """The tokens of the conversation with a new message, behind the first `_base`; of raw text,
        those to append."""
        if self.is_raw:
            is_first = self.program.state_length == 0
            tokens = raw_tokens(self.tokeniser, text, is_first=is_first, prefix=self._prefix)
            return np.concatenate([np.array(self._pending, np.int32), tokens])
        before = UNKNOWN_MESSAGES if self._base else ()
        messages = [*before, *self.messages, {"role": "user", "content": text}]
        made = render(self.tokeniser, messages, self._variables)
        if self._base:
            made = behind_reply(made)
        return self.tokeniser.chat_tokens(made, is_first=not self._base)


@overload
def generate(
    program: Program,
    prompt: str | bytes,
    *,
    system: str | None = None,
    max_tokens: int = 0,
    stop: Sequence[str] = (),
    is_raw: bool = False,
    variables: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> Iterator[str]: ...


@overload
def generate(
    program: Program,
    prompt: Sequence[str | bytes],
    *,
    system: str | None = None,
    max_tokens: int = 0,
    stop: Sequence[str] = (),
    is_raw: bool = False,
    variables: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> Iterator[tuple[int, str]]: ...


def generate(
    program: Program,
    prompt: str | bytes | Sequence[str | bytes],
    *,
    system: str | None = None,
    max_tokens: int = 0,
    stop: Sequence[str] = (),
    is_raw: bool = False,
    variables: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> Iterator[str] | Iterator[tuple[int, str]]:
    """The reply of a language module to a prompt, in pieces, as a conversation of its own.

    Args:
        program: of a module with a vocabulary.
        prompt: or several, in turn or, by a module of several sequences, so many at once: each
            piece comes with its prompt's number then.
        system: the system message; None is the module's prefix, or what the chat template says.
        max_tokens: of a reply; 0 is as many as the context holds.
        stop: texts that end a reply, and are not part of it, as for `Chat.reply`.
        is_raw: prompts are text to be continued, without the chat template.
        variables: what the chat template is given beside the messages, as for `Chat`.
        sampling: temperature, top_p, seed and all else of `aot.runtime.text.Sampler`; the most
            probable token without a temperature. Later prompts have the seeds behind it.

    Raises:
        RuntimeFailure: the program is no language module, or a prompt is no UTF-8 or longer than
            the context; the module keeps no chat template, or that can't be rendered.
    """
    how: dict[str, Any] = {"system": system, "is_raw": is_raw, "variables": variables}
    if not isinstance(prompt, (str, bytes)):
        batch = Batch(program, prompt, **how, sampling=sampling)
        return batch.replies(max_tokens=max_tokens, stop=stop)
    if language_program(program).sequences > 1:
        batch = Batch(program, [prompt], **how, sampling=sampling)
        return (piece for _, piece in batch.replies(max_tokens=max_tokens, stop=stop))
    tokeniser = Tokeniser(program)
    sampler = Sampler(**sampling, tokeniser=tokeniser)
    chat = Chat(program, **how, tokeniser=tokeniser, sampler=sampler)
    return chat.reply(prompt, max_tokens=max_tokens, stop=stop)
