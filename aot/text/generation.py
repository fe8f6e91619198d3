"""Text from a language module: a prompt in, pieces of text out, the conversation kept in its state.

A language module's entry point takes tokens i32[T] and gives logits f32[N, V] of the last N of
them; its states grow with the tokens. Owns the loop around it, and what is refused. What tokens
are, and how one is chosen, is the runtime's (`aot.runtime.text`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import Program
from aot.runtime.text import Sampler, Tokeniser
from aot.text.chat import Message, Part, render

Tokens = NDArray[np.int32]


@dataclass
class Generation:
    """What one reply took, and why it ended.

    Attributes:
        prompt_tokens: that were run before the first token of the reply.
        tokens: of the reply, the one that ended it left out.
        first_token_ms: from the call to the first token of the reply.
        decode_s: from the first token to the last.
        stopped_by: "end", a token that ends replies; "tokens", as many as were asked for;
            "context", the state is full; "" while the reply goes on.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    first_token_ms: float = 0.0
    decode_s: float = 0.0
    stopped_by: str = ""

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / (self.first_token_ms / 1e3) if self.first_token_ms else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Of the tokens behind the first one."""
        return (self.tokens - 1) / self.decode_s if self.decode_s > 0 and self.tokens > 1 else 0.0


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
        content = _text(text)
        prompt = self._prompt(content)
        tokens = np.concatenate([np.array(self._pending, np.int32), prompt])
        start, capacity = self.program.state_length, self.program.state_capacity
        if start + len(tokens) > capacity:
            used = f", of which {start} are in use" if start else ""
            raise RuntimeFailure(
                f"the prompt is {len(tokens)} tokens, and the context holds {capacity}{used}; "
                "shorten it, or compile the model with a longer --context",
                "capacity",
            )
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
        decoder = self.tokeniser.decoder(keeps_space=True)
        pieces: list[str] = []
        self.messages.append({"role": "user", "content": content})
        self.messages.append({"role": "assistant", "content": ""})
        first = 0.0
        ends = set(self.tokeniser.end_tokens)
        while True:
            token = self.sampler.next(logits)
            now = time.perf_counter()
            if not made.first_token_ms:
                first, made.first_token_ms = now, (now - begin) * 1e3
            made.decode_s = now - first
            if token in ends:
                made.stopped_by = "end"
                break
            made.tokens += 1
            self._pending = [token]
            piece = decoder.push([token])
            pieces.append(piece)
            self.messages[-1] = {"role": "assistant", "content": "".join(pieces)}
            if piece:
                yield piece
            if made.tokens == max_tokens:
                made.stopped_by = "tokens"
                break
            if self.program.state_length >= self.program.state_capacity:
                made.stopped_by = "context"
                break
            logits = self._run(np.array([token], np.int32))
            self._pending = []
        rest = decoder.end()
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
        """The logits of the last token; a prompt goes through in pieces."""
        logits = np.empty((0, 0), np.float32)
        for begin in range(0, len(tokens), self._largest):
            (logits,) = self.program.run([tokens[begin : begin + self._largest]])
        last: NDArray[np.float32] = logits[-1]
        return last

    def _prompt(self, text: str) -> Tokens:
        """The tokens that a message adds: what people wrote never names a control token."""
        is_first = self.program.state_length == 0
        if self.is_raw:
            found = self.tokeniser.encode(text, is_part=not is_first)
            if len(found):
                return found
            raise RuntimeFailure("the prompt has no tokens", "argument")
        parts = self._message(text) if is_first or self.messages else self._next_message(text)
        pieces = [
            self.tokeniser.encode(part.text, parses_control=part.is_template, is_part=True)
            for part in parts
        ]
        whole = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        bos = self.tokeniser.bos
        if is_first and self.tokeniser.adds_bos and bos is not None and whole[:1] != [bos]:
            whole = np.concatenate([np.array([bos], np.int32), whole])
        return whole.astype(np.int32)

    def _message(self, text: str) -> list[Part]:
        """A message of the conversation; what stands before the model's last reply is left out."""
        messages = [*self.messages, {"role": "user", "content": text}]
        parts = render(
            self.tokeniser.chat_template,
            messages,
            bos=self._name(self.tokeniser.bos),
            eos=self._name(self.tokeniser.eos),
            now=time.strftime,
        )
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

    def _name(self, token: int | None) -> str:
        return "" if token is None else self.tokeniser.decode([token], shows_control=True)


def generate(
    program: Program,
    prompt: str | bytes,
    *,
    system: str | None = None,
    max_tokens: int = 0,
    is_raw: bool = False,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 0.0,
    min_p: float = 0.0,
    repetition_penalty: float = 0.0,
    seed: int = 0,
) -> Iterator[str]:
    """The reply of a language module to a prompt, in pieces, as a conversation of its own.

    Args:
        program: of a module with a vocabulary.
        system: the system message; None is what the chat template says.
        max_tokens: of the reply; 0 is as many as the context holds.
        is_raw: the prompt is text to be continued, without the chat template.
        temperature, top_k, top_p, min_p, repetition_penalty, seed: as for
            `aot.runtime.text.Sampler`; the most probable token without a temperature.

    Raises:
        RuntimeFailure: the program is no language module, or the prompt is no UTF-8 or longer than
            the context.
        CompileError: the chat template can't be rendered.
    """
    sampler = Sampler(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    chat = Chat(program, system=system, sampler=sampler, is_raw=is_raw)
    return chat.reply(prompt, max_tokens=max_tokens)


def check_language_program(program: Program) -> tuple[int, int]:
    """How many tokens a call takes, at least and at most.

    Raises:
        RuntimeFailure: it is no language module's.
    """
    inputs, outputs = program.inputs, program.outputs
    fault = ""
    if len(inputs) != 1 or inputs[0].dtype != "i32" or len(inputs[0].dims) != 1:
        fault = f"it takes {_listed(inputs)}, expected one input, tokens i32[T]"
    elif len(outputs) != 1 or outputs[0].dtype != "f32" or len(outputs[0].dims) != 2:
        fault = f"it gives {_listed(outputs)}, expected one output, logits f32[N, V]"
    elif not program.state_capacity:
        fault = "it has no state that grows, expected keys and values"
    if fault:
        raise RuntimeFailure(
            f'entry point "{program.entry}" is no language model\'s: {fault}', "unsupported"
        )
    ((low, high),) = inputs[0].bounds
    return max(low, 1), high if high is not None else program.state_capacity


def _listed(tensors: Sequence[object]) -> str:
    return ", ".join(map(str, tensors)) or "nothing"


def _text(text: str | bytes) -> str:
    """A prompt as text.

    Raises:
        RuntimeFailure: it is no UTF-8.
    """
    try:
        return text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        at = getattr(error, "start", 0)
        raise RuntimeFailure(f"the prompt is not UTF-8: byte {at} is wrong", "argument") from error
