"""A conversation in C (aot/chat.h): several messages, replies that are cut off, what is refused,
and what is left when memory ends."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

import aot
from aot.runtime import loader
from aot.runtime.tensors import Sized
from aot.runtime.text_library import CLogprob, LogitBias, SamplerOptions
from tests.support.control_lowering import compiled
from tests.support.control_sources import CACHE
from tests.support.language_models import (
    FORGETS,
    LEFT_OUT,
    NO_ROWS,
    REPLY,
    TEMPLATE,
    language_module,
    without_rows,
)
from tests.support.runtime_api import (
    CountingAllocator,
    Failed,
    Program,
    call,
    failure,
    library,
    opened,
)


class Options(Sized):
    _fields_ = (
        ("system", ctypes.c_char_p),
        ("variables", ctypes.c_char_p),
        ("is_raw", ctypes.c_bool),
        ("max_tokens", ctypes.c_uint64),
        ("sampling", ctypes.POINTER(SamplerOptions)),
        ("stops", ctypes.POINTER(ctypes.c_char_p)),
        ("stop_count", ctypes.c_size_t),
        ("logprobs", ctypes.c_uint32),
        ("shifts_context", ctypes.c_bool),
    )


class Info(Sized):
    _fields_ = (
        ("prompt_tokens", ctypes.c_uint64),
        ("tokens", ctypes.c_uint64),
        ("end", ctypes.c_int),
        ("token", ctypes.c_int32),
        ("logprob", ctypes.c_float),
        ("top_count", ctypes.c_uint32),
        ("top", ctypes.POINTER(CLogprob)),
    )


class Chat:
    """A conversation with a program."""

    def __init__(
        self, program: Program, allocator: CountingAllocator | None = None, **options: object
    ) -> None:
        self.program = program
        self.handle = ctypes.c_void_p()
        hooks = None if allocator is None else ctypes.byref(allocator.hooks())
        given = ctypes.byref(Options(**options))
        call("aot_chat_create", program.handle, given, hooks, out=self.handle)

    def say(self, message: str) -> None:
        data = message.encode()
        call("aot_chat_say", self.handle, data, ctypes.c_size_t(len(data)))

    def pieces(self, most: int = 99) -> Iterator[str]:
        for _ in range(most):
            error, piece, size = loader._Error(), ctypes.c_char_p(), ctypes.c_size_t()
            outs = (ctypes.byref(x) for x in (error, piece, size))
            if library().aot_chat_next(self.handle, *outs) != 0:
                raise Failed("", error.message.decode())
            if piece.value is None:
                return
            assert len(piece.value) == size.value
            yield piece.value.decode()

    def reply(self, message: str, most: int = 99) -> str:
        self.say(message)
        return "".join(self.pieces(most))

    @property
    def told(self) -> Info:
        found = Info()
        call("aot_chat_get_info", self.handle, out=found)
        return found

    @property
    def end(self) -> int:
        return int(self.told.end)

    @property
    def info(self) -> tuple[int, int, bool]:
        found = self.told
        return found.prompt_tokens, found.tokens, found.end != 0

    @property
    def length(self) -> int:
        return int(library().aot_program_length(self.program.handle))

    def close(self) -> None:
        library().aot_chat_destroy(self.handle)


@contextmanager
def chat(context: int = 64, template: str = TEMPLATE, **options: object) -> Iterator[Chat]:
    library().aot_chat_destroy.argtypes = (ctypes.c_void_p,)
    with opened(language_module(context, template=template).to_bytes()) as program:
        made = Chat(program, **options)
        yield made
        made.close()


def test_messages_follow_each_other() -> None:
    with chat() as made:
        assert made.reply("ab") == REPLY
        assert (made.info, made.length) == ((7, 6, True), 13)
        assert list(made.pieces()) == []  # it stays ended
        assert made.reply("ab") == REPLY
        assert made.info[0] == 8  # what ends the reply before comes first
        assert made.length == 13 + 8 + 6


@pytest.mark.parametrize("template", [TEMPLATE, ""])
def test_a_context_that_is_full_shifts_as_in_python(template: str) -> None:
    """Whole conversations, in states of the same lengths."""
    module = language_module(24, template=template).to_bytes()
    with (
        chat(24, template, shifts_context=True, max_tokens=5) as made,
        aot.load(module) as program,
    ):
        other = aot.Chat(program, shifts_context=True)
        for message in ("ab", "c", "bc", "abc", "a", "cc"):
            assert made.reply(message) == "".join(other.reply(message, max_tokens=5))
            assert made.info[0] == other.last.prompt_tokens
            assert made.length == program.state_length <= 24
        assert other._forgotten > 0
    with chat(24, template, max_tokens=5) as made, pytest.raises(Failed, match="the context holds"):
        for _ in range(6):
            made.reply("abc")


def endless(template: str) -> AbstractContextManager[Chat]:
    """A chat whose replies no token ends."""
    biases = (LogitBias * 1)(LogitBias(7, -math.inf))
    sampling = ctypes.pointer(SamplerOptions(biases=biases, bias_count=1))
    return chat(24, template, shifts_context=True, sampling=sampling, max_tokens=50)


def next_is_cancelled(made: Chat) -> None:
    cancel = library().aot_program_set_cancelled
    cancel(made.program.handle, True, None)
    assert "cancelled" in failure(lambda: next(made.pieces())).message
    cancel(made.program.handle, False, None)


@pytest.mark.parametrize("template", [TEMPLATE, ""])
def test_a_shift_that_is_cancelled_is_done_by_the_next_call(template: str) -> None:
    with endless(template) as made, endless(template) as other:
        for message in ("abc", "cab"):
            expected = other.reply(message)
            made.say(message)
            pieces = []
            while made.end == 0:
                if made.length == 24:
                    next_is_cancelled(made)
                    next_is_cancelled(made)
                pieces += made.pieces(1)
            assert ("".join(pieces), made.length) == (expected, other.length)


@pytest.mark.parametrize("template", [TEMPLATE, ""])
def test_a_message_follows_a_shift_that_was_cancelled(template: str) -> None:
    with endless(template) as made, endless(template) as other:
        for each in (made, other):
            each.say("abc")
            while each.length < 24:
                assert list(each.pieces(1))
        next_is_cancelled(made)
        assert list(other.pieces(1))
        assert made.reply("cab") == other.reply("cab")
        assert made.length == other.length - 1  # whose first reply has one more


def test_a_prompt_without_tokens_is_refused_after_a_shift() -> None:
    template = "{% if messages[-1].content != 'c' %}" + TEMPLATE + "{% endif %}"
    with chat(24, template, shifts_context=True, max_tokens=5) as made:
        for message in ("abc", "bca", "abc", "cab"):
            made.reply(message)
        found = failure(lambda: made.say("c"))
        assert (found.status, found.message) == ("argument", "the prompt has no tokens")
        assert made.reply("ab")


def test_a_reply_that_is_cut_off_goes_on_or_is_left() -> None:
    with chat() as made:
        made.say("a")
        assert list(made.pieces(2)) == ["a", "b"]
        assert (made.info, made.length) == ((6, 2, False), 7)
        call("aot_chat_settle", made.handle)
        call("aot_chat_settle", made.handle)
        assert made.length == 8
        assert "".join(made.pieces()) == REPLY[2:]
        made.say("a")
        assert list(made.pieces(1)) == ["a"]
        assert made.reply("b") == REPLY  # with the token that was not run before it
        assert made.info[0] == 8


def test_options() -> None:
    with chat(max_tokens=5) as made:
        assert made.reply("a") == "abc \ufffd"  # half a character
        assert (made.info, made.length) == ((6, 5, True), 10)
        assert made.reply("a") == "abc \ufffd"
    with chat(is_raw=True) as made:
        assert made.reply("a") == REPLY[1:]
    with chat(system=b"a") as made:
        assert made.reply("a") == REPLY
        assert made.info[0] == 6 + 4


def texts(*items: bytes) -> dict[str, object]:
    """Options of a chat that has these stop strings."""
    return {"stops": (ctypes.c_char_p * len(items))(*items), "stop_count": len(items)}


def test_stop_strings() -> None:
    """A stop string may be one character of two tokens, span tokens, or contain another one."""
    for stops, left, end in (
        ((b"c",), "ab", 2),
        ((b"b", b"ab"), "", 2),
        ((b"c \xc3\xa9",), "ab", 2),
        ((b"bcd", b"xyz", "\u00e9".encode()), "abc ", 2),
        ((b" \xc3\xa9!", b"abd"), REPLY, 1),
    ):
        with chat(**texts(*stops)) as made:
            assert made.reply("a") == left
            assert made.end == end
            # The template writes the reply without its end: what was beyond is taken back.
            assert made.reply("a") == left
    with chat(max_tokens=3, **texts(b"bcx")) as made:
        assert (made.reply("a"), made.end) == ("abc", 3)  # what waited is not lost
    with chat(11, **texts(b" \xc3\xa9x")) as made:
        assert (made.reply("ab"), made.end) == ("abc \ufffd", 4)  # nor where the context ends
    for text, message in (
        (b"", "argument: stop string 2 has 0 bytes, expected 1 to 1024"),
        (b"a" * 1025, "argument: stop string 2 has 1025 bytes, expected 1 to 1024"),
        (b"a\xc3(", "text: stop string 2 is not UTF-8: byte 1 is 0xc3"),
    ):
        with chat() as made:
            given = texts(b"a", text)
            assert str(failure(lambda given=given: Chat(made.program, **given))) == message


def test_logprobs() -> None:
    with chat(logprobs=2) as made:
        made.say("a")
        next(made.pieces())
        found = made.told
        total = math.log(math.e + 13)  # one logit is 1, thirteen are 0; a trace is added to all
        assert (found.token, found.top_count, found.top[0].token) == (1, 2, 1)
        assert found.logprob == pytest.approx(1 - total, abs=1e-4)
        assert found.top[0].logprob == found.logprob
        assert found.top[1].logprob == pytest.approx(-total, abs=1e-4)
        message = "argument: logprobs is 65, expected 0 to 64"
        assert str(failure(lambda: Chat(made.program, logprobs=65))) == message


def test_a_template_that_forgets_is_asked_what_it_writes() -> None:
    """As in Python: tests/unit/text/test_generation.py."""
    with chat(40, FORGETS) as made:
        assert made.reply("ab") == REPLY
        assert (made.info[0], made.length) == (7, 13)
        assert made.reply("c") == REPLY
        assert (made.info[0], made.length) == (7, 22)
    with chat(40, FORGETS, variables=b' {"long": true} ') as made:
        assert made.reply("a") == REPLY
        assert made.length == 14
    with chat(40, FORGETS, system=b"a") as made:
        assert failure(lambda: made.say("a")).message == LEFT_OUT
        assert made.length == 0


def test_what_somebody_else_runs_begins_anew() -> None:
    """A program that is reset has forgotten; of one that has read more, nobody knows what."""
    with chat() as made:
        assert made.reply("ab") == REPLY
        made.program.reset()
        assert made.reply("a") == REPLY
        assert (made.info[0], made.length) == (6, 12)
        call("aot_program_rewind", made.program.handle, ctypes.c_uint64(8))
        assert made.reply("a") == REPLY
        assert (made.info[0], made.length) == (7, 8 + 7 + 6)
        assert made.reply("b") == REPLY
        assert made.length == 21 + 7 + 6
    with chat(system=b"c") as made:
        assert made.reply("a") == REPLY
        call("aot_program_rewind", made.program.handle, ctypes.c_uint64(8))
        assert failure(lambda: made.say("a")).message == (
            "a system message begins a conversation, and the state has one already"
        )


def test_the_end_of_the_context() -> None:
    with chat(12) as made:
        assert failure(lambda: made.say("a" * 9)).message == (
            "the prompt is 14 tokens, and the context holds 12, of which 0 are in use"
        )
        assert made.length == 0
        assert failure(lambda: next(made.pieces())).message == (
            "nothing was said that could be replied to"
        )
        assert made.reply("a" * 5) == "abc"  # of three tokens two are read
        assert (made.info, made.length) == ((10, 3, True), 12)
    with chat(14) as made:
        assert made.reply("a" * 5) == "abc \ufffd"  # half a character


def test_what_is_refused() -> None:
    with chat() as made:
        assert failure(lambda: call("aot_chat_say", made.handle, b"\xff", ctypes.c_size_t(1)))
        assert made.length == 0
        assert made.reply("a") == REPLY
    with opened(compiled(CACHE).to_bytes()) as program:
        assert failure(lambda: Chat(program)).message == (
            'entry point "main" is no language model\'s: expected an input, tokens i32[T], an '
            "output, logits f32[N, V], and a state that grows"
        )


def test_logits_without_rows_choose_nothing() -> None:
    with opened(without_rows(language_module(64).to_bytes())) as program:
        made = Chat(program)
        made.say("a")
        assert failure(lambda: next(made.pieces())).message == NO_ROWS
        made.close()


def test_each_allocation_that_fails() -> None:
    """It says so, leaks nothing, and the conversation goes on."""
    data = language_module(64).to_bytes()
    failures = 0
    with opened(data) as program:
        while True:
            program.reset()
            allocator = CountingAllocator(fail_at=failures)
            try:
                made = Chat(program, allocator)
            except Failed as error:
                assert error.status == "memory"
            else:
                try:
                    found = made.reply("ab")
                except Failed:
                    found = "".join(made.pieces()) if made.info[0] else made.reply("ab")
                assert found == REPLY
                made.close()
            assert not allocator.live
            assert not allocator.errors
            if allocator.calls <= failures:
                break
            failures += 1
    assert failures > 4
