"""Replies to several prompts: at once, by a module that continues several sequences, or in turn.

Sequences are rows of one run, which end where the run ends: shorter prompts have padding before
them. Owns that, and which replies still go on. What is computed for others nobody reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.runtime.loader import Program
from aot.runtime.text import Sampler, Tokeniser
from aot.text.chat import Message, render
from aot.text.language_program import (
    Generation,
    Reply,
    Tokens,
    check_prompts,
    check_room,
    checked_text,
    chosen_prefix,
    language_program,
    load_prefix,
    raw_tokens,
    with_rows,
)


class Batch:
    """Several prompts and their replies.

    Attributes:
        made: what each reply took.
    """

    def __init__(
        self,
        program: Program,
        prompts: Sequence[str | bytes],
        *,
        system: str | None = None,
        is_raw: bool = False,
        variables: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens a batch on a language module.

        Args:
            system: the system message of each; None is the module's prefix, or what the template
                says.
            is_raw: prompts are text to continue, without a chat template.
            variables: what the chat template is given beside the messages.
            sampling: as for `Sampler`; each prompt has a seed one larger than the one before.

        Raises:
            RuntimeFailure: the program is no language module, or a prompt is no UTF-8 or longer
                than the context; the module keeps no chat template, or that refuses the prompt.
        """
        self.program = program
        self._shapes = language_program(program)
        self._tokeniser = Tokeniser(program)
        self._is_raw = is_raw or not self._tokeniser.chat_template
        check_prompts(is_raw=self._is_raw, system=system, variables=variables)
        self._variables = variables
        self._prefix = chosen_prefix(self._tokeniser, is_raw=self._is_raw, system=system)
        if self._prefix is not None and not self._is_raw:
            system = self._prefix.text
        self._system: list[Message] = []
        if system is not None:
            self._system.append({"role": "system", "content": system})
        self._prompts = [self._tokens(checked_text(text)) for text in prompts]
        for tokens in self._prompts:
            check_room(program, len(tokens))
        self._sampling = dict(sampling or {})
        self.made = [Generation(len(tokens)) for tokens in self._prompts]

    def replies(
        self, *, max_tokens: int = 0, stop: Sequence[str] = (), logprobs: int = 0
    ) -> Iterator[tuple[int, str]]:
        """Pieces of the replies as they come, each with the number of its prompt.

        Args:
            max_tokens: of a reply; 0 is as many as the context holds.
            stop, logprobs: as for `Chat.reply`.

        Raises:
            RuntimeFailure: a stop string is empty or too long.
        """
        count = self._shapes.sequences
        how = {"max_tokens": max_tokens, "stop": stop, "logprobs": logprobs}
        for first in range(0, len(self._prompts), count):
            yield from self._at_once(range(first, min(first + count, len(self._prompts))), how)

    def _tokens(self, text: str) -> Tokens:
        if self._is_raw:
            return raw_tokens(self._tokeniser, text, is_first=True, prefix=self._prefix)
        messages = [*self._system, {"role": "user", "content": text}]
        return self._tokeniser.chat_tokens(render(self._tokeniser, messages, self._variables))

    def _at_once(self, numbers: range, how: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
        """The replies to as many prompts as the module has sequences, or fewer."""
        begin = time.perf_counter()
        prompts = [self._prompts[n] for n in numbers]
        width = max(map(len, prompts))
        tokens = np.zeros((self._shapes.sequences, width), np.int32)
        starts = np.zeros(len(tokens), np.int32)
        going: dict[int, Reply] = {}
        for row, (number, prompt) in enumerate(zip(numbers, prompts, strict=True)):
            starts[row] = width - len(prompt)
            tokens[row, starts[row] :] = prompt
            seed = (self._sampling.get("seed", 0) + number) % (1 << 64)
            sampler = Sampler(**{**self._sampling, "seed": seed}, tokeniser=self._tokeniser)
            sampler.accept(int(token) for token in prompt)
            going[row] = Reply(self._tokeniser, sampler, self.made[number], begin, **how)
        self.program.reset()
        loaded = 0
        if len(tokens) == 1:
            loaded = load_prefix(self.program, self._tokeniser, self._prefix, tokens[0])
            made = self.made[numbers[0]]
            made.prefix_tokens, made.prompt_tokens = loaded, len(prompts[0]) - loaded
        tokens = tokens[:, loaded:]
        while True:
            logits = self._run(tokens, starts)
            tokens = np.zeros((len(tokens), 1), np.int32)
            is_full = self.program.state_length >= self.program.state_capacity
            for row, reply in list(going.items()):
                piece = reply.next(logits[row])
                tokens[row] = reply.token
                if is_full and not reply.made.stopped_by:
                    piece += reply.finish("context")
                if reply.made.stopped_by:
                    del going[row]
                if piece:
                    yield numbers[row], piece
            if not going:
                return

    def _run(self, tokens: Tokens, starts: NDArray[np.int32]) -> NDArray[np.float32]:
        """The logits of each sequence's last token; long prompts are run in pieces."""
        logits = np.empty((0, 0), np.float32)
        most = self._shapes.most
        for begin in range(0, tokens.shape[1], most):
            piece = np.ascontiguousarray(tokens[:, begin : begin + most])
            inputs = [piece[0]] if len(starts) == 1 else [piece, starts]
            (logits,) = self.program.run(inputs)
        return with_rows(logits, len(tokens))
