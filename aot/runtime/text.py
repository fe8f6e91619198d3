"""Text of language models through the runtime: tokenisers and samplers, as aot/text.h has them.

Calls the same C library that a phone runs, through ctypes. Owns no semantics.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from ctypes import POINTER, byref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import Program, _Error, _ModuleOptions, load_library
from aot.runtime.tensors import text_of

_Size = ctypes.c_size_t
_Handle = ctypes.c_void_p
_OutHandle = POINTER(ctypes.c_void_p)
_OutError = POINTER(_Error)
_Tokens = POINTER(ctypes.c_int32)


class _Info(ctypes.Structure):
    _fields_ = (
        ("token_count", ctypes.c_uint32),
        ("bos", ctypes.c_int32),
        ("eos", ctypes.c_int32),
        ("unknown", ctypes.c_int32),
        ("adds_bos", ctypes.c_bool),
        ("adds_eos", ctypes.c_bool),
        ("end_tokens", _Tokens),
        ("end_token_count", ctypes.c_uint32),
        ("chat_template", ctypes.c_char_p),
        ("keeps_chat", ctypes.c_bool),
        ("chat_refusal", ctypes.c_char_p),
    )


class _EncodeOptions(ctypes.Structure):
    _fields_ = (
        ("parses_control", ctypes.c_bool),
        ("is_part", ctypes.c_bool),
        ("plain", ctypes.c_char_p),
    )


class _RenderOptions(ctypes.Structure):
    _fields_ = (
        ("max_steps", ctypes.c_uint64),
        ("max_bytes", ctypes.c_uint64),
        ("is_strict", ctypes.c_bool),
        ("has_clock", ctypes.c_bool),
        ("local_seconds", ctypes.c_int64),
    )


class _Rendered(ctypes.Structure):
    _fields_ = (("text", ctypes.c_void_p), ("marks", ctypes.c_void_p), ("bytes", _Size))


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("shows_control", ctypes.c_bool),
        ("is_begun", ctypes.c_bool),
        ("kept_bytes", ctypes.c_uint8),
        ("kept", ctypes.c_uint8 * 7),
    )


class _SamplerOptions(ctypes.Structure):
    _fields_ = (
        ("repetition_penalty", ctypes.c_float),
        ("penalty_window", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("temperature", ctypes.c_float),
        ("seed", ctypes.c_uint64),
    )


# The functions of text.h that are used here: result, then arguments.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "aot_vocabulary_open": (ctypes.c_int, _Handle, ctypes.c_void_p, _OutError, _OutHandle),
    "aot_vocabulary_open_memory": (
        *(ctypes.c_int, ctypes.c_void_p, _Size, ctypes.c_void_p, _OutError, _OutHandle),
    ),
    "aot_vocabulary_close": (None, _Handle),
    "aot_vocabulary_get_info": (None, _Handle, POINTER(_Info)),
    "aot_chat_render": (
        *(ctypes.c_int, _Handle, ctypes.c_char_p, _Size, POINTER(_RenderOptions), _OutError),
        POINTER(_Rendered),
    ),
    "aot_rendered_release": (None, _Handle, POINTER(_Rendered)),
    "aot_chat_tokens": (
        *(ctypes.c_int, _Handle, ctypes.c_char_p, ctypes.c_char_p, _Size, ctypes.c_bool, _Tokens),
        *(_Size, _OutError, POINTER(_Size)),
    ),
    "aot_vocabulary_find": (ctypes.c_int32, _Handle, ctypes.c_char_p, _Size),
    "aot_encode": (
        *(ctypes.c_int, _Handle, ctypes.c_char_p, _Size, POINTER(_EncodeOptions), _Tokens, _Size),
        *(_OutError, POINTER(_Size)),
    ),
    "aot_decode": (
        *(ctypes.c_int, _Handle, POINTER(_Decoder), _Tokens, _Size, ctypes.c_char_p, _Size),
        *(_OutError, POINTER(_Size)),
    ),
    "aot_decode_end": (_Size, POINTER(_Decoder), ctypes.c_char_p),
    "aot_sampler_create": (
        *(ctypes.c_int, POINTER(_SamplerOptions), ctypes.c_void_p, _OutError, _OutHandle),
    ),
    "aot_sampler_destroy": (None, _Handle),
    "aot_sampler_next": (
        *(ctypes.c_int, _Handle, POINTER(ctypes.c_float), _Size, _OutError, _Tokens),
    ),
    "aot_sampler_accept": (None, _Handle, ctypes.c_int32),
    "aot_sampler_reset": (None, _Handle),
}


def _library() -> ctypes.CDLL:
    library = load_library()
    for name, (result, *arguments) in SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            message = "the runtime library was built without aot/text.h"
            raise RuntimeFailure(message, "unsupported") from error
        function.restype, function.argtypes = result, arguments
    return library


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


class _Native:
    """An object of the C library, which is closed with this one."""

    def __init__(self, close: str) -> None:
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        self._close = close
        self._library = _library()

    def _call(self, name: str, *arguments: Any, out: Any = None) -> None:
        error = _Error()
        outs = () if out is None else (byref(out),)
        status = getattr(self._library, name)(*arguments, byref(error), *outs)
        if status != 0:
            raise RuntimeFailure(
                text_of(error.message), text_of(self._library.aot_status_name(status))
            )

    def close(self) -> None:
        """Releases it; it can't be used any more. Does nothing the second time."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            getattr(self._library, self._close)(handle)

    def __del__(self) -> None:
        self.close()


class Tokeniser(_Native):
    """Text to tokens and back, by the vocabulary of a module. Use it from any thread.

    Attributes:
        token_count: of the vocabulary; a model may have logits for more, which mean nothing.
        bos, eos, unknown: tokens that begin and end text, and stand for what no token is for.
        adds_bos, adds_eos: whether `encode` adds these.
        end_tokens: all that end a reply.
        chat_template: Jinja; "" where there is none.
        keeps_chat: whether the module keeps it, so that `render` renders conversations.
        chat_refusal: why it does not; "" where it does.
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
        info = _Info()
        self._library.aot_vocabulary_get_info(self._handle, byref(info))
        self.token_count = int(info.token_count)
        self.bos, self.eos, self.unknown = (
            None if token < 0 else int(token) for token in (info.bos, info.eos, info.unknown)
        )
        self.adds_bos, self.adds_eos = bool(info.adds_bos), bool(info.adds_eos)
        self.end_tokens = tuple(info.end_tokens[: info.end_token_count])
        self.chat_template = text_of(info.chat_template)
        self.keeps_chat = bool(info.keeps_chat)
        self.chat_refusal = text_of(info.chat_refusal)

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
        options = _EncodeOptions(parses_control, is_part, None)
        return self._tokens("aot_encode", len(data), data, len(data), byref(options))

    def _tokens(self, name: str, size: int, *arguments: Any) -> NDArray[np.int32]:
        """What a function that encodes so many bytes gives."""
        count, error = _Size(), _Error()
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
        options = _RenderOptions(
            *(max_steps, max_bytes, is_strict, seconds is not None, seconds or 0)
        )
        made = _Rendered()
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
        return Decoder(self, _Decoder(shows_control=shows_control, is_begun=keeps_space))

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

    def __init__(self, tokeniser: Tokeniser, state: _Decoder) -> None:
        self._tokeniser = tokeniser
        self._state = state

    def push(self, tokens: ArrayLike) -> str:
        """The text that tokens, one or several, add."""
        self._tokeniser._check_open()
        own = np.ascontiguousarray(np.atleast_1d(np.asarray(tokens, np.int32)))
        native, count, error = self._tokeniser, _Size(), _Error()
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


class Sampler(_Native):
    """Chooses tokens by their logits. Not for several threads at once."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        min_p: float = 0.0,
        repetition_penalty: float = 0.0,
        penalty_window: int = 0,
        seed: int = 0,
    ) -> None:
        """A sampler of tokens. It applies to logits, in this order: the penalty, top_k, top_p,
        min_p, the temperature. 0 disables each; without a temperature, the largest logit is taken.

        Args:
            repetition_penalty: logits of tokens among the last `penalty_window` ones (64 if 0) are
                divided by it where they are positive, else multiplied.
            top_k: only the so many largest.
            top_p: only the largest whose probabilities together reach it.
            min_p: only those at least so probable as this times the largest.
            seed: the same seed and logits give the same tokens, on any machine.

        Raises:
            RuntimeFailure: a number means nothing.
        """
        super().__init__("aot_sampler_destroy")
        for name, value in (("top_k", top_k), ("penalty_window", penalty_window)):
            if not 0 <= value < 1 << 32:
                raise RuntimeFailure(f"{name} is {value}, expected 0 to 2^32 - 1", "argument")
        options = _SamplerOptions(
            *(repetition_penalty, penalty_window, top_k, top_p, min_p, temperature),
            seed & (1 << 64) - 1,
        )
        self._call("aot_sampler_create", byref(options), None, out=self._handle)

    def next(self, logits: ArrayLike) -> int:
        """The token that is chosen, by the logits of the last position, f32[V] or f32[1, V].

        Raises:
            RuntimeFailure: there are none, or none of them is a number.
        """
        own = np.ascontiguousarray(np.asarray(logits, np.float32)).reshape(-1)
        token = ctypes.c_int32()
        error = _Error()
        pointer = own.ctypes.data_as(POINTER(ctypes.c_float))
        status = self._library.aot_sampler_next(
            self._handle, pointer, own.size, byref(error), byref(token)
        )
        if status != 0:
            raise RuntimeFailure(
                text_of(error.message), text_of(self._library.aot_status_name(status))
            )
        return int(token.value)

    def accept(self, tokens: Iterable[int]) -> None:
        """Adds tokens that were not sampled, such as the prompt's, to the penalty's window."""
        for token in tokens:
            self._library.aot_sampler_accept(self._handle, int(token))

    def reset(self) -> None:
        """Forgets all tokens, and begins with the seed anew."""
        self._library.aot_sampler_reset(self._handle)


def _pointer(tokens: NDArray[np.int32]) -> Any:
    return tokens.ctypes.data_as(_Tokens)


def _aligned(data: bytes) -> NDArray[np.uint8]:
    """The bytes in memory aligned to 64 of them."""
    room = np.empty(len(data) + 64, np.uint8)
    start = -room.ctypes.data % 64
    own = room[start : start + len(data)]
    own[:] = np.frombuffer(data, np.uint8)
    return own
