"""Language modules' programs: their signature, tokens of prompts, and statistics of replies.

A language module's entry point takes tokens i32[T] and gives logits f32[N, V] of the last N of
them. One that continues several sequences takes i32[S, T] and starts i32[S], how many first rows of
each are padding, and gives the last logits f32[S, V] of each. Owns what is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import RuntimeFailure
from aot.runtime.loader import Program
from aot.runtime.sampling import NativeReply, Sampler, TokenLogprobs
from aot.runtime.text import Prefix, Tokeniser

Tokens = NDArray[np.int32]


@dataclass
class Generation:
    """Statistics of one reply, and why it ended.

    Attributes:
        prefix_tokens: of the module's prefix, whose state was loaded for this reply.
        prompt_tokens: that were run before the first token of the reply.
        tokens: of the reply, the one that ended it left out.
        first_token_ms: from the call to the first token of the reply.
        decode_s: from the first token to the last.
        stopped_by: "end", a token that ends replies; "stop", a stop string; "tokens", as many as
            were asked for; "context", the state is full; "" while the reply goes on.
        logprobs: of each token and of the most probable ones in its place, where they are asked
            for; the token that ended the reply has none.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    first_token_ms: float = 0.0
    decode_s: float = 0.0
    stopped_by: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prefix_tokens: int = 0

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / (self.first_token_ms / 1e3) if self.first_token_ms else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first token."""
        return (self.tokens - 1) / self.decode_s if self.decode_s > 0 and self.tokens > 1 else 0.0


def with_rows(logits: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """The logits f32[N, V] of a run, checked to have at least `rows` rows.

    Raises:
        RuntimeFailure: there are fewer.
    """
    if len(logits) >= rows:
        return logits
    shape = list(logits.shape)
    raise RuntimeFailure(
        f"the model gave logits of shape {shape}, expected a row for a token or more", "shape"
    )


class Reply:
    """A reply under way, token by token.

    Attributes:
        made: what it took so far; `made.stopped_by` says whether it has ended.
        token: the last one, which no run has seen yet.
    """

    def __init__(
        self,
        tokeniser: Tokeniser,
        sampler: Sampler,
        made: Generation,
        begin: float,
        *,
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        logprobs: int = 0,
    ) -> None:
        """Begins a reply.

        Args:
            begin: when it was requested, by time.perf_counter.
            max_tokens, stop, logprobs: as for `aot.runtime.sampling.NativeReply`.

        Raises:
            RuntimeFailure: a stop string is empty or too long.
        """
        self.made = made
        self.token = 0
        self._native = NativeReply(
            tokeniser, sampler, max_tokens=max_tokens, stop=stop, logprobs=logprobs
        )
        self._has_logprobs = logprobs > 0
        self._begin = self._first = begin

    def next(self, logits: NDArray[np.float32]) -> str:
        """What the next token makes certain of the text; nothing where it is half a character, may
        become a stop string, or ends the reply."""
        made, native = self.made, self._native
        piece = native.next(logits)
        now = time.perf_counter()
        if not made.first_token_ms:
            self._first, made.first_token_ms = now, (now - self._begin) * 1e3
        made.decode_s = now - self._first
        made.stopped_by = native.stopped_by
        if made.stopped_by != "end":
            self.token, made.tokens = native.token, native.tokens
            if self._has_logprobs:
                made.logprobs.append(native.logprobs)
        return piece

    def finish(self, reason: str) -> str:
        """Ends the reply as `Generation.stopped_by` says; the text that waited."""
        self.made.stopped_by = reason
        return self._native.finish(reason)


@dataclass(frozen=True)
class LanguageProgram:
    """How many sequences and tokens a program takes in a call.

    Attributes:
        sequences: that a call continues.
        fewest, most: tokens that a call takes of each.
    """

    sequences: int
    fewest: int
    most: int


def language_program(program: Program) -> LanguageProgram:
    """The shapes of a language module's program.

    Raises:
        RuntimeFailure: it is no language module's.
    """
    inputs, outputs = program.inputs, program.outputs
    kinds = [(t.dtype, len(t.dims)) for t in inputs]
    fault = ""
    if kinds not in ([("i32", 1)], [("i32", 2), ("i32", 1)]):
        fault = f"it takes {_listed(inputs)}, expected one input, tokens i32[T]"
    elif len(outputs) != 1 or outputs[0].dtype != "f32" or len(outputs[0].dims) != 2:
        fault = f"it gives {_listed(outputs)}, expected one output, logits f32[N, V]"
    elif not program.state_capacity:
        fault = "it has no state that grows, expected keys and values"
    if fault:
        raise RuntimeFailure(
            f'entry point "{program.entry}" is no language model\'s: {fault}', "unsupported"
        )
    low, high = inputs[0].bounds[-1]
    most = high if high is not None else program.state_capacity
    sequences = inputs[0].dims[0] if len(inputs) == 2 else 1
    return LanguageProgram(sequences if isinstance(sequences, int) else 1, max(low, 1), most)


def check_language_program(program: Program) -> tuple[int, int]:
    """How many tokens a call takes, at least and at most.

    Raises:
        RuntimeFailure: it is no language module's, or one of several sequences.
    """
    found = language_program(program)
    if found.sequences > 1:
        raise RuntimeFailure(
            f'entry point "{program.entry}" continues {found.sequences} texts at once: give '
            "`aot.generate` a list of prompts, or compile the model without --sequences",
            "unsupported",
        )
    return found.fewest, found.most


def check_room(program: Program, tokens: int, used: int = 0) -> None:
    """Checks that a prompt fits into the unused part of the context.

    Raises:
        RuntimeFailure: it does not.
    """
    capacity = program.state_capacity
    if used + tokens <= capacity:
        return
    in_use = f", of which {used} are in use" if used else ""
    raise RuntimeFailure(
        f"the prompt is {tokens} tokens, and the context holds {capacity}{in_use}; shorten it, or "
        "compile the model with a longer --context",
        "capacity",
    )


def check_prompts(*, is_raw: bool, system: str | None, variables: Mapping[str, Any] | None) -> None:
    """Checks that raw text is asked for nothing that only a chat template writes.

    Raises:
        RuntimeFailure: it is.
    """
    if is_raw and system is not None:
        raise RuntimeFailure(
            "a system message is written by the chat template: raw text has none", "argument"
        )
    if is_raw and variables:
        raise RuntimeFailure("variables are the chat template's: raw text has none", "argument")


def chosen_prefix(tokeniser: Tokeniser, *, is_raw: bool, system: str | None) -> Prefix | None:
    """The module's prefix, where conversations with this system message begin with it."""
    prefix = tokeniser.prefix
    if prefix is None or prefix.is_raw != is_raw or system not in (None, prefix.text):
        return None
    return prefix


def load_prefix(
    program: Program, tokeniser: Tokeniser, prefix: Prefix | None, tokens: Tokens
) -> int:
    """Loads the state of a module's prefix into a program that has read nothing, if a prompt begins
    with it.

    Returns:
        How many first tokens of the prompt need not be run: 0 where there is no such state.
    """
    count = 0 if prefix is None else len(prefix.tokens)
    if prefix is None or len(tokens) <= count or tuple(tokens[:count].tolist()) != prefix.tokens:
        return 0
    try:
        tokeniser.load_prefix(program)
    except RuntimeFailure:
        return 0
    return count


def shared_tokens(read: Sequence[int], tokens: Tokens) -> int:
    """How many first tokens of a prompt a program has read; one at least is left to be run."""
    most = min(len(read), len(tokens) - 1)
    differ = np.flatnonzero(np.asarray(read[:most], np.int32) != tokens[:most])
    return int(differ[0]) if len(differ) else max(most, 0)


def raw_tokens(
    tokeniser: Tokeniser, text: str, *, is_first: bool, prefix: Prefix | None = None
) -> Tokens:
    """The tokens of text that is to be continued; the first text goes on behind a prefix.

    Raises:
        RuntimeFailure: there is none.
    """
    before = prefix.tokens if prefix is not None and is_first else ()
    found = tokeniser.encode(text, is_part=not is_first or bool(before))
    if len(found):
        return np.concatenate([np.array(before, np.int32), found])
    raise RuntimeFailure("the prompt has no tokens", "argument")


def checked_text(text: str | bytes) -> str:
    """A prompt as text, checked to be UTF-8.

    Raises:
        RuntimeFailure: it is no UTF-8.
    """
    try:
        return text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        at = getattr(error, "start", 0)
        raise RuntimeFailure(f"the prompt is not UTF-8: byte {at} is wrong", "argument") from error


def _listed(tensors: Sequence[object]) -> str:
    return ", ".join(map(str, tensors)) or "nothing"
