"""Choosing tokens, and replies made of them, by the C library: samplers and replies of aot/text.h.

Owns no semantics.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, byref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import _Error
from aot.runtime.sampling_options import NUMBERS
from aot.runtime.tensors import text_of
from aot.runtime.text_library import (
    Candidate,
    CLogprob,
    LogitBias,
    Native,
    ReplyInfo,
    ReplyOptions,
    SamplerOptions,
    Size,
)

if TYPE_CHECKING:
    from aot.runtime.text import Tokeniser

# Why a reply has ended, by aot_reply_end_t.
ENDS = ("", "end", "stop", "tokens", "context", "caller")


class Sampler(Native):
    """Chooses tokens by their logits. Not for several threads at once."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        min_p: float = 0.0,
        typical_p: float = 0.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.0,
        mirostat_tau: float = 0.0,
        mirostat_eta: float = 0.0,
        repetition_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_window: int = 0,
        dry_multiplier: float = 0.0,
        dry_base: float = 0.0,
        dry_allowed_length: int = 0,
        dry_window: int = 0,
        dry_breakers: Sequence[str] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int = 0,
        tokeniser: Tokeniser | None = None,
    ) -> None:
        """A sampler of tokens. Logits get biases, penalties and DRY's, in this order; then top_k,
        typical_p, top_p, min_p and XTC, or Mirostat, leave some of them, of which one is drawn at
        the temperature. 0 disables each; without a temperature, the largest that is left is taken.

        Args:
            top_k: only the so many largest.
            top_p: only the largest whose probabilities together reach it.
            min_p: only those at least so probable as this times the largest.
            typical_p: only those whose information is nearest to the entropy, until their
                probabilities together exceed it (Meister et al., 2022).
            xtc_probability, xtc_threshold: so often, tokens at least so probable as the threshold
                (0.1 if 0; at most 0.5) are dropped, but for the last of them.
            mirostat_tau, mirostat_eta: Mirostat 2 (Basu et al., 2021): only tokens of less surprise
                than a bound, which follows at the rate eta (0.1 if 0) so that the mean is tau bits.
            repetition_penalty: logits of tokens among the last `penalty_window` ones (64 if 0) are
                divided by it where they are positive, else multiplied.
            frequency_penalty: subtracted so often as the token came among these; -100 to 100.
            presence_penalty: subtracted where it came; -100 to 100.
            dry_multiplier, dry_base, dry_allowed_length, dry_window: from a token that would go on
                with a repetition of n tokens among the last `dry_window` (4096 if 0), multiplier *
                base ** (n - allowed_length) is subtracted (1.75 and 2 if 0).
            dry_breakers: repetitions end at tokens with one of these texts in them; a new line, a
                colon, a quotation mark and an asterisk if None.
            logit_bias: what is added to the logits of tokens, by their ids; -inf: never.
            seed: 0 to 2^64 - 1. The same seed and logits give the same tokens, on any machine.
            tokeniser: whose tokens they are; without it, no token is a breaker.

        Raises:
            RuntimeFailure: a number means nothing, a bias is of no token, or a breaker in none.
        """
        given = locals()
        super().__init__("aot_sampler_destroy")
        options = SamplerOptions()
        for option in NUMBERS:
            value, bits = given[option.name], 64 if option.name == "seed" else 32
            if option.kind is int and not 0 <= value < 1 << bits:
                message = f"{option.name} is {value}, expected 0 to 2^{bits} - 1"
                raise RuntimeFailure(message, "argument")
            setattr(options, option.name, value)
        biases = dict(logit_bias or {})
        for token in biases:
            if not 0 <= token < 1 << 31:
                raise RuntimeFailure(f"a bias is of token {token}, expected 0 or more", "argument")
        pairs = [LogitBias(token, bias) for token, bias in biases.items()]
        options.biases = (LogitBias * len(pairs))(*pairs)
        options.bias_count = len(biases)
        if tokeniser is not None:
            tokeniser._check_open()
            options.vocabulary = tokeniser._handle
        elif dry_breakers:
            raise RuntimeFailure("dry_breakers need a tokeniser, whose tokens they end", "argument")
        if dry_breakers is not None:
            options.dry_breakers = _texts(dry_breakers, "DRY breaker")
            options.dry_breaker_count = len(dry_breakers)
        self._call("aot_sampler_create", byref(options), None, out=self._handle)

    def next(self, logits: ArrayLike) -> int:
        """The token that is chosen, by the logits of the last position, f32[V] or f32[1, V].

        Raises:
            RuntimeFailure: there are none, one is no number, or none is finite.
        """
        own, token = _logits(logits), ctypes.c_int32()
        self._call("aot_sampler_next", self._handle, _floats(own), own.size, out=token)
        return int(token.value)

    def candidates(self, logits: ArrayLike) -> list[tuple[int, float]]:
        """The tokens that `next` would choose from, the most probable first, with their
        probabilities at the temperature; changes nothing.

        Raises:
            RuntimeFailure: as for `next`.
        """
        own, count = _logits(logits), Size()
        found = (Candidate * max(own.size, 1))()
        arguments = (self._handle, _floats(own), own.size, found, len(found))
        self._call("aot_sampler_candidates", *arguments, out=count)
        return [(one.token, one.probability) for one in found[: count.value]]

    def accept(self, tokens: Iterable[int]) -> None:
        """Adds tokens that were not sampled, such as the prompt's, to the penalties' windows."""
        for token in tokens:
            self._library.aot_sampler_accept(self._handle, int(token))

    def reset(self) -> None:
        """Forgets all tokens, and begins with the seed anew."""
        self._library.aot_sampler_reset(self._handle)


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural logarithm of a token's probability, by the model's own logits.

    Attributes:
        token: that was chosen.
        logprob: of it.
        top: the most probable tokens and theirs, the first one first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: ArrayLike, token: int, top: int = 0) -> TokenLogprobs:
    """The natural logarithm of a token's probability under the logits of a position, f32[V], right
    to 1e-4. The `top` most probable tokens, at most 64, have theirs too.

    Raises:
        RuntimeFailure: there is no such token, or a logit is no number.
    """
    own, found, logprob = _logits(logits), (CLogprob * top)(), ctypes.c_float()
    arguments = (_floats(own), own.size, token, found, top)
    Native("aot_reply_destroy")._call("aot_logprobs", *arguments, out=logprob)
    return TokenLogprobs(token, logprob.value, tuple((one.token, one.logprob) for one in found))


class NativeReply(Native):
    """A reply under way: tokens that a sampler chooses, as text, up to what ends it."""

    def __init__(
        self,
        tokeniser: Tokeniser,
        sampler: Sampler,
        *,
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        logprobs: int = 0,
    ) -> None:
        """Begins a reply.

        Args:
            max_tokens: of the reply; 0 is no limit.
            stop: texts that end the reply, wherever tokens cut them, and are not part of it.
            logprobs: how many most probable tokens `logprobs` tells; at most 64.

        Raises:
            RuntimeFailure: a stop string is empty, too long or no text.
        """
        super().__init__("aot_reply_destroy")
        tokeniser._check_open()
        self._borrowed = tokeniser, sampler
        if not 0 <= logprobs < 1 << 32 or not 0 <= max_tokens < 1 << 64:
            message = f"max_tokens is {max_tokens} and logprobs {logprobs}, expected 0 or more"
            raise RuntimeFailure(message, "argument")
        options = ReplyOptions(max_tokens=max_tokens, stop_count=len(stop), logprobs=logprobs)
        options.stops = _texts(stop, "stop string")
        arguments = (tokeniser._handle, sampler._handle, byref(options), None)
        self._call("aot_reply_create", *arguments, out=self._handle)

    def next(self, logits: ArrayLike) -> str:
        """What the next token makes certain of the text, by the logits f32[V] of the last position:
        "" where that is half a character, or may become a stop string.

        Raises:
            RuntimeFailure: as for `Sampler.next`, or the tokeniser or the sampler is closed.
        """
        own = _logits(logits)
        return self._piece("aot_reply_next", _floats(own), own.size)

    def finish(self, end: str) -> str:
        """Ends the reply, where it has not ended; the text that waited."""
        return self._piece("aot_reply_finish", ENDS.index(end))

    def _piece(self, name: str, *arguments: Any) -> str:
        tokeniser, sampler = self._borrowed
        tokeniser._check_open()
        if not sampler._handle:
            raise RuntimeFailure("the sampler is closed", "argument")
        error, text, size = _Error(), ctypes.c_char_p(), Size()
        outs = (byref(error), byref(text), byref(size))
        status = getattr(self._library, name)(self._handle, *arguments, *outs)
        if status != 0:
            name = text_of(self._library.aot_status_name(status))
            raise RuntimeFailure(text_of(error.message), name)
        return ctypes.string_at(text, size.value).decode()

    def _info(self) -> ReplyInfo:
        info, error = ReplyInfo(), _Error()
        self._library.aot_reply_get_info(self._handle, byref(error), byref(info))
        return info

    @property
    def tokens(self) -> int:
        """How many the reply has; the one that ended it is none."""
        return int(self._info().tokens)

    @property
    def token(self) -> int:
        """The last one; -1 at first."""
        return int(self._info().token)

    @property
    def stopped_by(self) -> str:
        """The reason why the reply has ended, one of `ENDS`; "" while it goes on."""
        return ENDS[self._info().end]

    @property
    def logprobs(self) -> TokenLogprobs:
        """The log probabilities at the last token."""
        info = self._info()
        top = tuple((one.token, one.logprob) for one in info.top[: info.top_count])
        return TokenLogprobs(int(info.token), float(info.logprob), top)


def _logits(logits: ArrayLike) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.asarray(logits, np.float32)).reshape(-1)


def _floats(array: NDArray[np.float32]) -> Any:
    return array.ctypes.data_as(POINTER(ctypes.c_float))


def _texts(texts: Sequence[str], what: str) -> Any:
    """An array of texts that end with a zero byte."""
    if isinstance(texts, str):
        raise RuntimeFailure(f"expected a list of {what}s, not the text {texts!r}", "argument")
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    for text in data:
        if b"\0" in text:
            raise RuntimeFailure(f"a {what} has a zero character: {text!r}", "argument")
    return (ctypes.c_char_p * len(data))(*data)
