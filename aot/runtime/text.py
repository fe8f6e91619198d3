"""Text of language models through the runtime: tokenisers, as aot/text.h has them.

Calls the same C library that a phone runs, through ctypes. Owns no semantics.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import Program, _Error, _ModuleOptions
from aot.runtime.sampling import Sampler
from aot.runtime.tensors import text_of
from aot.runtime.text_library import (
    SIGNATURES,
    CDecoder,
    CPrefix,
    CRendered,
    EncodeOptions,
    Info,
    Native,
    RenderOptions,
    Size,
    Tokens,
)

__all__ = ["SIGNATURES", "Decoder", "Prefix", "Rendered", "Sampler", "Tokeniser"]


@dataclass(frozen=True)
class Prefix:
    """The text that conversations with a model begin with, which its module was compiled with.

    Attributes:
        text: the system message, or with `is_raw` text that prompts continue.
        is_raw: whether it is text without a chat template.
        tokens: that such a conversation begins with, whatever is said.
    """

    text: str
    is_raw: bool
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Rendered:
    """A conversation as a chat template writes it.

    Attributes:
        data: the text, UTF-8.
        marks: of each byte who wrote it: 0, the template; n, message n, from 1; 255, a later
            message or another variable.
    """

    data: bytes
    marks: bytes

    @property
    def text(self) -> str:
        return self.data.decode()


class Tokeniser(Native):
    """Text to tokens and back, by the vocabulary of a module. Use it from any thread.

    Attributes:
        token_count: of the vocabulary; a model may have logits for more, which mean nothing.
        bos, eos, unknown: tokens that begin and end text, and stand for what no token is for.
        adds_bos, adds_eos: whether `encode` adds these.
        end_tokens: all that end a reply.
        chat_template: Jinja; "" where there is none.
        keeps_chat: whether the module keeps it, so that `render` renders conversations.
        chat_refusal: why it does not; "" where it does.
        prefix: what conversations begin with; None where the module was compiled without one.
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes | Program, *, is_segment: bool = False
    ) -> None:
        """Opens the vocabulary of a module: a file, the bytes of one, or a program's module, which
        must stay open; with `is_segment`, of the bytes that `aot.link.vocabulary` wrote.

        Raises:
            RuntimeFailure: it is no module, is damaged, or has no vocabulary.
        """
        super().__init__("aot_vocabulary_close")
        self._module: ctypes.c_void_p | None = ctypes.c_void_p()
        self._memory: NDArray[Any] | None = None
        self._program: Program | None = None
        if isinstance(source, Program):
            self._program = source  # whose module it borrows
            self._call("aot_vocabulary_open", source._module, None, out=self._handle)
        elif is_segment and isinstance(source, bytes):
            self._memory = _aligned(source)
            address = self._memory.ctypes.data
            arguments = (address, len(source), None)
            self._call("aot_vocabulary_open_memory", *arguments, out=self._handle)
        else:
            self._open(source)
            self._call("aot_vocabulary_open", self._module, None, out=self._handle)
        info = Info()
        self._library.aot_vocabulary_get_info(self._handle, None, byref(info))
        self.token_count = int(info.token_count)
        self.bos, self.eos, self.unknown = (
            None if token < 0 else int(token) for token in (info.bos, info.eos, info.unknown)
        )
        self.adds_bos, self.adds_eos = bool(info.adds_bos), bool(info.adds_eos)
        self.end_tokens = tuple(info.end_tokens[: info.end_token_count])
        self.chat_template = text_of(info.chat_template)
        self.keeps_chat = bool(info.keeps_chat)
        self.chat_refusal = text_of(info.chat_refusal)
        self.prefix = self._prefix()

    def _prefix(self) -> Prefix | None:
        found = CPrefix()
        self._call("aot_vocabulary_get_prefix", self._handle, out=found)
        tokens = tuple(found.tokens[: found.token_count])
        return Prefix(text_of(found.text), bool(found.is_raw), tokens) if tokens else None

    def load_prefix(self, program: Program) -> None:
        """Makes a program's state what it is behind `prefix.tokens`, to the bit, for the time of
        copying it. The tokeniser is of this program.

        Raises:
            RuntimeFailure: the module has no state of its prefix for the program's target, or the
                program is another module's, or on a GPU. The state is as it was then.
        """
        self._check_open()
        program._call_open("aot_program_load_prefix", self._handle)

    def _check_open(self) -> None:
        if not self._handle or (self._program is not None and not self._program._module):
            raise RuntimeFailure("the tokeniser is closed, or its program is", "argument")

    def _open(self, source: str | os.PathLike[str] | bytes) -> None:
        if isinstance(source, bytes):
            options = byref(_ModuleOptions(copy=True))
            arguments = (source, len(source), options)
            self._call("aot_module_open_memory", *arguments, out=self._module)
        else:
            self._call("aot_module_open_path", os.fsencode(source), None, out=self._module)

    def __repr__(self) -> str:
        return f"<Tokeniser of {self.token_count:,} tokens>"

    def __len__(self) -> int:
        """The number of tokens."""
        return self.token_count

    def encode(
        self, text: str | bytes, *, parses_control: bool = False, is_part: bool = False
    ) -> NDArray[np.int32]:
        """The tokens of a text: int32[T].

        Args:
            text: a string, or UTF-8.
            parses_control: text such as `"<|im_end|>"` is the control token that it names, as a
                chat template means it; what a user wrote is plain text.
            is_part: adds no tokens that begin or end text.

        Raises:
            RuntimeFailure: the text is not UTF-8, as a lone surrogate is not.
        """
        self._check_open()
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        options = EncodeOptions(parses_control=parses_control, is_part=is_part)
        return self._tokens("aot_encode", len(data), data, len(data), byref(options))

    def _tokens(self, name: str, size: int, *arguments: Any) -> NDArray[np.int32]:
        """What a function that encodes so many bytes gives."""
        count, error = Size(), _Error()
        capacity = size + 4
        while True:
            tokens = np.empty(capacity, np.int32)
            outs = _pointer(tokens), capacity, byref(error), byref(count)
            status = getattr(self._library, name)(self._handle, *arguments, *outs)
            if status == 0:
                return tokens[: count.value].copy()
            if count.value <= capacity:
                status_name = text_of(self._library.aot_status_name(status))
                raise RuntimeFailure(text_of(error.message), status_name)
            capacity = count.value

    def render(
        self,
        variables: Mapping[str, Any],
        *,
        seconds: int | None = None,
        is_strict: bool = False,
        max_steps: int = 0,
        max_bytes: int = 0,
    ) -> Rendered:
        """A conversation as the module's chat template writes it.

        Args:
            variables: what the template is given, values of JSON: `messages`, a list of dicts with
                "role" and "content"; `add_generation_prompt`; what else it knows.
            seconds: of the local clock since 1970, which the template may ask for; None: there is
                no clock.
            is_strict: refuses where the template leaves a system message, tools or documents out.
            max_steps, max_bytes: what the template may take; 0 is 10 million steps and 128 MiB.

        Raises:
            RuntimeFailure: the module keeps no template, or that fails, refuses the conversation,
                or takes too much; the variables are no JSON, or not UTF-8.
        """
        self._check_open()
        try:
            text = json.dumps(variables, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            message = f"the variables of the chat template are no JSON: {error}"
            raise RuntimeFailure(message, "argument") from error
        data = text.encode("utf-8", "surrogatepass")
        options = RenderOptions(
            max_steps=max_steps,
            max_bytes=max_bytes,
            is_strict=is_strict,
            has_clock=seconds is not None,
            local_seconds=seconds or 0,
        )
        made = CRendered()
        arguments = (self._handle, data, len(data), byref(options))
        self._call("aot_chat_render", *arguments, out=made)
        try:
            size = made.bytes
            return Rendered(ctypes.string_at(made.text, size), ctypes.string_at(made.marks, size))
        finally:
            self._library.aot_rendered_release(self._handle, byref(made))

    def chat_tokens(self, rendered: Rendered, *, is_first: bool = True) -> NDArray[np.int32]:
        """The tokens of a rendered conversation, int32[T]: of all its text at once, control tokens
        only where the template wrote all of their names.

        Args:
            is_first: nothing is before it: where the vocabulary begins text with a token, so does
                this.
        """
        self._check_open()
        size = len(rendered.data)
        return self._tokens("aot_chat_tokens", size, rendered.data, rendered.marks, size, is_first)

    def decode(self, tokens: ArrayLike, *, shows_control: bool = False) -> str:
        """The text of tokens, whole; what is no UTF-8 becomes U+FFFD.

        Args:
            shows_control: control tokens are shown as the text that names them.

        Raises:
            RuntimeFailure: there is no such token.
        """
        decoder = self.decoder(shows_control=shows_control)
        return decoder.push(tokens) + decoder.end()

    def decoder(self, *, shows_control: bool = False, keeps_space: bool = False) -> Decoder:
        """A decoder of tokens that arrive one by one.

        Args:
            shows_control: as for `decode`.
            keeps_space: a space that encoding would have added is not taken from the start.
        """
        return Decoder(self, CDecoder(shows_control=shows_control, is_begun=keeps_space))

    def find(self, text: str) -> int | None:
        """The token whose text is exactly this, also a control token; None where there is none."""
        data = text.encode("utf-8", "surrogatepass")
        found = int(self._library.aot_vocabulary_find(self._handle, data, len(data)))
        return None if found < 0 else found

    def close(self) -> None:
        """Releases it; it can't be used any more. Does nothing the second time."""
        super().close()
        module, self._module = getattr(self, "_module", None), None
        if module:
            self._library.aot_module_close(module)


class Decoder:
    """Decodes tokens as they come: characters as soon as they are whole."""

    def __init__(self, tokeniser: Tokeniser, state: CDecoder) -> None:
        self._tokeniser = tokeniser
        self._state = state

    def push(self, tokens: ArrayLike) -> str:
        """The text that tokens, one or several, add."""
        self._tokeniser._check_open()
        own = np.ascontiguousarray(np.atleast_1d(np.asarray(tokens, np.int32)))
        native, count, error = self._tokeniser, Size(), _Error()
        capacity = 64 + 16 * len(own)
        while True:
            text = ctypes.create_string_buffer(capacity)
            status = native._library.aot_decode(
                *(native._handle, byref(self._state), _pointer(own), len(own), text, capacity),
                *(byref(error), byref(count)),
            )
            if status == 0:
                return text.raw[: count.value].decode()
            if count.value <= capacity:
                name = text_of(native._library.aot_status_name(status))
                raise RuntimeFailure(text_of(error.message), name)
            capacity = count.value

    def end(self) -> str:
        """The replacement for a character that is incomplete at the end of the text; "" if there is
        none.
        """
        text = ctypes.create_string_buffer(3)
        count = self._tokeniser._library.aot_decode_end(byref(self._state), text)
        return text.raw[:count].decode()


def _pointer(tokens: NDArray[np.int32]) -> Any:
    return tokens.ctypes.data_as(Tokens)


def _aligned(data: bytes) -> NDArray[np.uint8]:
    """The bytes in memory aligned to 64 of them."""
    room = np.empty(len(data) + 64, np.uint8)
    start = -room.ctypes.data % 64
    own = room[start : start + len(data)]
    own[:] = np.frombuffer(data, np.uint8)
    return own
