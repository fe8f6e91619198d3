"""The C library's functions of text, as ctypes calls them, and objects that it owns.

Owns the structures of aot/text.h. `aot.runtime.text` and `aot.runtime.sampling` give them meaning.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref
from typing import Any

from aot.errors import RuntimeFailure
from aot.runtime.loader import _Error, load_library
from aot.runtime.tensors import Sized, text_of

Size = ctypes.c_size_t
_Handle = ctypes.c_void_p
_OutHandle = POINTER(ctypes.c_void_p)
_OutError = POINTER(_Error)
Tokens = POINTER(ctypes.c_int32)


class Info(Sized):
    _fields_ = (
        ("token_count", ctypes.c_uint32),
        ("bos", ctypes.c_int32),
        ("eos", ctypes.c_int32),
        ("unknown", ctypes.c_int32),
        ("adds_bos", ctypes.c_bool),
        ("adds_eos", ctypes.c_bool),
        ("end_tokens", Tokens),
        ("end_token_count", ctypes.c_uint32),
        ("chat_template", ctypes.c_char_p),
        ("keeps_chat", ctypes.c_bool),
        ("chat_refusal", ctypes.c_char_p),
    )


class CPrefix(Sized):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("is_raw", ctypes.c_bool),
        ("tokens", Tokens),
        ("token_count", ctypes.c_size_t),
    )


class EncodeOptions(Sized):
    _fields_ = (
        ("parses_control", ctypes.c_bool),
        ("is_part", ctypes.c_bool),
        ("plain", ctypes.c_char_p),
    )


class RenderOptions(Sized):
    _fields_ = (
        ("max_steps", ctypes.c_uint64),
        ("max_bytes", ctypes.c_uint64),
        ("is_strict", ctypes.c_bool),
        ("has_clock", ctypes.c_bool),
        ("local_seconds", ctypes.c_int64),
    )


class CRendered(Sized):
    _fields_ = (("text", ctypes.c_void_p), ("marks", ctypes.c_void_p), ("bytes", Size))


class CDecoder(Sized):
    _fields_ = (
        ("shows_control", ctypes.c_bool),
        ("is_begun", ctypes.c_bool),
        ("kept_bytes", ctypes.c_uint8),
        ("kept", ctypes.c_uint8 * 7),
    )


class LogitBias(ctypes.Structure):
    _fields_ = (("token", ctypes.c_int32), ("bias", ctypes.c_float))


class Candidate(ctypes.Structure):
    _fields_ = (("token", ctypes.c_int32), ("probability", ctypes.c_float))


class CLogprob(ctypes.Structure):
    _fields_ = (("token", ctypes.c_int32), ("logprob", ctypes.c_float))


class SamplerOptions(Sized):
    _fields_ = (
        ("vocabulary", ctypes.c_void_p),
        ("biases", POINTER(LogitBias)),
        ("bias_count", ctypes.c_size_t),
        ("repetition_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("penalty_window", ctypes.c_uint32),
        ("dry_multiplier", ctypes.c_float),
        ("dry_base", ctypes.c_float),
        ("dry_allowed_length", ctypes.c_uint32),
        ("dry_window", ctypes.c_uint32),
        ("dry_breakers", POINTER(ctypes.c_char_p)),
        ("dry_breaker_count", ctypes.c_size_t),
        ("top_k", ctypes.c_uint32),
        ("typical_p", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("xtc_probability", ctypes.c_float),
        ("xtc_threshold", ctypes.c_float),
        ("mirostat_tau", ctypes.c_float),
        ("mirostat_eta", ctypes.c_float),
        ("temperature", ctypes.c_float),
        ("seed", ctypes.c_uint64),
    )


class ReplyOptions(Sized):
    _fields_ = (
        ("max_tokens", ctypes.c_uint64),
        ("stops", POINTER(ctypes.c_char_p)),
        ("stop_count", ctypes.c_size_t),
        ("logprobs", ctypes.c_uint32),
    )


class ReplyInfo(Sized):
    _fields_ = (
        ("tokens", ctypes.c_uint64),
        ("end", ctypes.c_int),
        ("token", ctypes.c_int32),
        ("logprob", ctypes.c_float),
        ("top_count", ctypes.c_uint32),
        ("top", POINTER(CLogprob)),
    )


# The functions of text.h that are used here: result, then arguments.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "aot_vocabulary_open": (ctypes.c_int, _Handle, ctypes.c_void_p, _OutError, _OutHandle),
    "aot_vocabulary_open_memory": (
        *(ctypes.c_int, ctypes.c_void_p, Size, ctypes.c_void_p, _OutError, _OutHandle),
    ),
    "aot_vocabulary_close": (None, _Handle),
    "aot_vocabulary_get_info": (ctypes.c_int, _Handle, _OutError, POINTER(Info)),
    "aot_vocabulary_get_prefix": (ctypes.c_int, _Handle, _OutError, POINTER(CPrefix)),
    "aot_program_load_prefix": (ctypes.c_int, _Handle, _Handle, _OutError),
    "aot_chat_render": (
        *(ctypes.c_int, _Handle, ctypes.c_char_p, Size, POINTER(RenderOptions), _OutError),
        POINTER(CRendered),
    ),
    "aot_rendered_release": (None, _Handle, POINTER(CRendered)),
    "aot_chat_tokens": (
        *(ctypes.c_int, _Handle, ctypes.c_char_p, ctypes.c_char_p, Size, ctypes.c_bool, Tokens),
        *(Size, _OutError, POINTER(Size)),
    ),
    "aot_vocabulary_find": (ctypes.c_int32, _Handle, ctypes.c_char_p, Size),
    "aot_encode": (
        *(ctypes.c_int, _Handle, ctypes.c_char_p, Size, POINTER(EncodeOptions), Tokens, Size),
        *(_OutError, POINTER(Size)),
    ),
    "aot_decode": (
        *(ctypes.c_int, _Handle, POINTER(CDecoder), Tokens, Size, ctypes.c_char_p, Size),
        *(_OutError, POINTER(Size)),
    ),
    "aot_decode_end": (Size, POINTER(CDecoder), ctypes.c_char_p),
    "aot_sampler_create": (
        *(ctypes.c_int, POINTER(SamplerOptions), ctypes.c_void_p, _OutError, _OutHandle),
    ),
    "aot_sampler_destroy": (None, _Handle),
    "aot_sampler_next": (
        *(ctypes.c_int, _Handle, POINTER(ctypes.c_float), Size, _OutError, Tokens),
    ),
    "aot_sampler_candidates": (
        *(ctypes.c_int, _Handle, POINTER(ctypes.c_float), Size, POINTER(Candidate), Size),
        *(_OutError, POINTER(Size)),
    ),
    "aot_logprobs": (
        *(ctypes.c_int, POINTER(ctypes.c_float), Size, ctypes.c_int32, POINTER(CLogprob), Size),
        *(_OutError, POINTER(ctypes.c_float)),
    ),
    "aot_reply_create": (
        *(ctypes.c_int, _Handle, _Handle, POINTER(ReplyOptions), ctypes.c_void_p, _OutError),
        _OutHandle,
    ),
    "aot_reply_destroy": (None, _Handle),
    "aot_reply_next": (
        *(ctypes.c_int, _Handle, POINTER(ctypes.c_float), Size, _OutError),
        *(POINTER(ctypes.c_char_p), POINTER(Size)),
    ),
    "aot_reply_finish": (
        *(ctypes.c_int, _Handle, ctypes.c_int, _OutError, POINTER(ctypes.c_char_p), POINTER(Size)),
    ),
    "aot_reply_get_info": (ctypes.c_int, _Handle, _OutError, POINTER(ReplyInfo)),
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


class Native:
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
