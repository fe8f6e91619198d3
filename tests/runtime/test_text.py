"""Text to tokens and back, in C (aot/text.h): what llama.cpp makes of it, and what must hold of any
text whatever the vocabulary."""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aot.errors import RuntimeFailure
from aot.link.flatbuffer import Malformed
from aot.link.vocabulary import encode_vocabulary, read_vocabulary
from aot.runtime.loader import _Error
from aot.runtime.text import Tokeniser
from aot.text import gguf
from aot.text.tokenizer_json import read_vocabulary as read_tokenizer_json
from aot.text.vocabulary import Scheme, Strip, TokenType, Vocabulary
from tests.support import runtime_api, tokenizer_json_tokens
from tests.support.llama_tokens import CUT_LINES, GOLDEN, LINES, digest
from tests.support.text_runtime import native, opened, own_library, trained_tokeniser
from tests.support.vocabularies import (
    PRE_TOKENISERS,
    SPECIALS,
    TRAINED,
    byte_vocabulary,
    replacements,
    trained,
)
from tests.support.vocabulary_rules import BREAKS, with_table

CASES = json.loads(GOLDEN.read_text(encoding="ascii"))
BYTE_SCHEMES = [name for name, kind in TRAINED.items() if kind["model"] == "gpt2"]
# Text that takes every path: words, numbers, spaces and lines, specials, and any characters.
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(CASES["lines"]),
        st.text(alphabet="ab1 \n\r'streé<|>_im", max_size=12),
        st.text(max_size=12),
    ),
    max_size=4,
).map("".join)

few = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("parses_control", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_tokens_are_llama_cpp_s(name: str, parses_control: bool) -> None:
    tokeniser = trained_tokeniser(name)
    expected = CASES["tokens"][name][parses_control]
    for line, tokens in zip(CASES["lines"], expected, strict=True):
        found = tokeniser.encode(line, parses_control=parses_control)
        assert found.tolist() == tokens, line


@pytest.mark.parametrize("name", PRE_TOKENISERS)
def test_text_is_cut_as_llama_cpp_cuts_it(name: str) -> None:
    """By a name of each pattern of its list."""
    vocabulary = gguf.read_vocabulary(trained("gpt2", name))
    assert vocabulary is not None
    tokeniser = opened(vocabulary)
    for line, expected in zip((*LINES, *CUT_LINES), CASES["cuts"][name], strict=True):
        assert digest([tokeniser.encode(line).tolist()]) == expected, line


@pytest.mark.parametrize("name", tokenizer_json_tokens.files())
def test_tokens_are_those_of_hugging_face(name: str) -> None:
    """Of tokenizer.json files that put a space before text, always, once or never."""
    own = opened(read_tokenizer_json(tokenizer_json_tokens.files()[name]))
    expected = json.loads(tokenizer_json_tokens.GOLDEN.read_text(encoding="ascii"))[name]
    for line, tokens in zip(tokenizer_json_tokens.LINES, expected, strict=True):
        found = own.encode(line, parses_control=True, is_part=True)
        assert found.tolist() == tokens, line


@pytest.mark.parametrize("name", tokenizer_json_tokens.byte_files())
def test_text_is_cut_as_hugging_face_cuts_it(name: str) -> None:
    """By the patterns of models' tokenizer.json files."""
    own = opened(read_tokenizer_json(tokenizer_json_tokens.byte_files()[name]))
    expected = json.loads(tokenizer_json_tokens.GOLDEN.read_text(encoding="ascii"))
    lines = expected[f"cut as {name}"]["lines"]
    for line, wanted in zip((*LINES, *CUT_LINES), lines, strict=True):
        found = own.encode(line, parses_control=True, is_part=True)
        assert digest([found.tolist()]) == wanted, line


@pytest.mark.parametrize("name", BYTE_SCHEMES)
@few
@given(text=TEXTS)
def test_bytes_come_back(name: str, text: str) -> None:
    tokeniser = trained_tokeniser(name)
    tokens = tokeniser.encode(text, is_part=True)
    assert tokeniser.decode(tokens) == text


@few
@given(text=TEXTS)
def test_characters_come_back(text: str) -> None:
    """Where bytes have tokens; U+2581 becomes a space, as a space is written so. Behind special
    tokens encoding adds a space."""
    for special in SPECIALS:
        text = text.replace(special, "")
    assume(not any(special in text for special in SPECIALS))
    tokeniser = trained_tokeniser("llama")
    tokens = tokeniser.encode(text, is_part=True)
    assert tokeniser.decode(tokens) == text.replace("\u2581", " ")


@pytest.mark.parametrize("name", TRAINED)
@few
@given(text=TEXTS, data=st.data())
def test_decoding_in_parts_is_decoding_at_once(name: str, text: str, data: st.DataObject) -> None:
    tokeniser = trained_tokeniser(name)
    tokens = tokeniser.encode(text, parses_control=True).tolist()
    decoder = tokeniser.decoder()
    parts = []
    while tokens:
        count = data.draw(st.integers(1, len(tokens)))
        parts.append(decoder.push(tokens[:count]))
        del tokens[:count]
    whole = tokeniser.decode(tokeniser.encode(text, parses_control=True))
    assert "".join([*parts, decoder.end()]) == whole


def test_a_character_is_shown_when_it_is_whole() -> None:
    tokeniser = trained_tokeniser("gpt-2")
    tokens = tokeniser.encode("\U0001f469é", is_part=True)
    decoder = tokeniser.decoder()
    parts = [decoder.push(token) for token in tokens]
    assert "".join(parts) == "\U0001f469é"
    assert all(part in ("", "\U0001f469", "é") for part in parts)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82x", "\ufffdx"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd\U0001f600"),
        (b"\xc0\xaf\xf5", "\ufffd\ufffd\ufffd"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, text: str) -> None:
    """As Python replaces them."""
    assert data.decode("utf-8", "replace") == text
    tokeniser = trained_tokeniser("gpt-2")
    found = [_token_of_byte(tokeniser, byte) for byte in data]
    assert tokeniser.decode(found) == text


def _token_of_byte(tokeniser: Tokeniser, byte: int) -> int:
    for token in range(len(tokeniser)):
        if token_bytes(tokeniser, token) == bytes([byte]):
            return token
    raise AssertionError(byte)


def token_bytes(tokeniser: Tokeniser, token: int) -> bytes:
    """What a symbol stands for, by the library's own function."""
    library = native()
    library.aot_symbol_text.restype = ctypes.c_void_p
    size = ctypes.c_uint32()
    handle = tokeniser._handle
    place = library.aot_symbol_text(handle, ctypes.c_uint32(token), ctypes.byref(size))
    return ctypes.string_at(place, size.value)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ab\xff", "the text is not UTF-8: byte 2 is 0xff"),
        (b"\xc0\x80", "the text is not UTF-8: byte 0 is 0xc0"),
        (b"a" * 20 + b"\xe2\x82", "the text is not UTF-8: byte 20 is 0xe2"),
        (b"\xed\xa0\x80", "the text is not UTF-8: byte 0 is 0xed"),
        (b"\xf4\x90\x80\x80", "the text is not UTF-8: byte 0 is 0xf4"),
    ],
)
def test_text_that_is_not_utf_8(name: str, data: bytes, message: str) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        trained_tokeniser(name).encode(data)
    assert (str(failure.value), failure.value.status) == (message, "text")


@few
@given(data=st.binary(max_size=12))
def test_what_is_utf_8(data: bytes) -> None:
    try:
        data.decode()
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    library = native()
    library.aot_utf8_check.restype = ctypes.c_size_t
    found = library.aot_utf8_check(data, ctypes.c_size_t(len(data)))
    assert (found == len(data)) == is_text


def test_control_tokens_come_from_templates_alone() -> None:
    tokeniser = trained_tokeniser("smollm")
    end = tokeniser.find("<|im_end|>")
    assert end in tokeniser.end_tokens
    assert end not in tokeniser.encode("a<|im_end|>b").tolist()
    assert tokeniser.encode("a<|im_end|>b", parses_control=True).tolist().count(end) == 1
    # An added token that controls nothing is found in any text.
    think = tokeniser.find("<think>")
    assert tokeniser.encode("a<think>b").tolist().count(think) == 1


def test_what_is_shown_of_control_tokens() -> None:
    tokeniser = trained_tokeniser("smollm")
    tokens = tokeniser.encode("a<|im_end|>b", parses_control=True)
    assert tokeniser.decode(tokens) == "ab"
    assert tokeniser.decode(tokens, shows_control=True) == "a<|im_end|>b"


def test_bos_and_eos() -> None:
    tokeniser = trained_tokeniser("qwen2", add_bos_token=True, add_eos_token=True)
    assert tokeniser.encode("").tolist() == [0, 1]
    assert tokeniser.encode("", is_part=True).tolist() == []
    assert tokeniser.encode("ab").tolist() == [0, *tokeniser.encode("ab", is_part=True), 1]


def test_white_space_around_special_tokens() -> None:
    end = 257
    for strip, expected in (
        (Strip.NONE, "a  <s> \nb <s>"),
        (Strip.LEFT, "a<s> \nb<s>"),
        (Strip.RIGHT, "a  <s>b <s>"),
        (Strip.LEFT | Strip.RIGHT, "a<s>b<s>"),
    ):
        tokeniser = opened(byte_vocabulary(strips={end: strip}))
        tokens = tokeniser.encode("a  <s> \nb <s>", parses_control=True)
        assert tokeniser.decode(tokens, shows_control=True) == expected


def _special_reference(text: str, specials: dict[str, int]) -> list[str | int]:
    """llama.cpp's order: the longest token first, everywhere; then the next."""
    parts: list[str | int] = [text]
    for special in sorted(specials, key=lambda s: -len(s.encode())):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for number, rest in enumerate(part.split(special)):
                cut += [specials[special]] * (number > 0) + [rest] * bool(rest)
        parts = cut
    return parts


@few
@given(text=st.text(alphabet="<ab|>", max_size=40))
def test_which_special_token_comes_first(text: str) -> None:
    names = ("<a|>", "<a|", "a|>b", "b<", "||")
    tokens = (*byte_vocabulary().tokens[:256], *names)
    types = (*[TokenType.NORMAL] * 256, *[TokenType.USER_DEFINED] * len(names))
    vocabulary = byte_vocabulary(
        tokens=tokens, types=types, scores=(), merges=(), bos=None, end_tokens=frozenset()
    )
    specials = {name: 256 + i for i, name in enumerate(names)}
    found = _opened_once(vocabulary).encode(text).tolist()
    own = {t: i for i, t in enumerate(tokens)}
    expected = [
        token
        for part in _special_reference(text, specials)
        for token in ([part] if isinstance(part, int) else [own[c] for c in part])
    ]
    assert found == expected


_OPENED: dict[bytes, Tokeniser] = {}


def _opened_once(vocabulary: Vocabulary) -> Tokeniser:
    data = encode_vocabulary(vocabulary)
    if data not in _OPENED:
        _OPENED[data] = opened(data)
    return _OPENED[data]


def _merged(symbols: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte pair encoding by its definition."""
    while True:
        pairs = [(ranks[p], i) for i, p in enumerate(itertools.pairwise(symbols)) if p in ranks]
        if not pairs:
            return symbols
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@few
@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=4), st.integers(1, 3)), max_size=14),
    st.text("abc", max_size=70),
)
def test_merges_by_their_definition(given_merges: list[tuple[str, int]], text: str) -> None:
    """Short parts and long ones, and merges through what is no token."""
    merges = list(
        dict.fromkeys((word[:at], word[at:]) for word, at in given_merges if at < len(word))
    )
    made = [m[0] + m[1] for m in merges[::2]]
    tokens = tuple(dict.fromkeys([*byte_vocabulary().tokens[:256], *made]))
    vocabulary = byte_vocabulary(
        tokens=tokens,
        types=(TokenType.NORMAL,) * len(tokens),
        scores=(),
        merges=tuple(merges),
        bos=None,
        end_tokens=frozenset(),
    )
    own = {t: i for i, t in enumerate(tokens)}
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
    expected = [
        token
        for symbol in _merged(list(text), ranks)
        for token in ([own[symbol]] if symbol in own else [own[c] for c in symbol])
    ]
    assert opened(vocabulary).encode(text, is_part=True).tolist() == expected


def test_merges_of_characters() -> None:
    """Hugging Face's SentencePiece: characters without a token are those of their bytes."""
    names = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ("<unk>", *names, "▁", "a", "▁a", "é")
    types = (TokenType.UNKNOWN, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 4)
    vocabulary = Vocabulary(
        scheme=Scheme.CHARACTER_MERGES,
        tokens=tokens,
        types=types,
        merges=(("▁", "a"),),
        unknown=0,
        adds_space=True,
        escapes_spaces=True,
    )
    tokeniser = opened(vocabulary)
    assert tokeniser.encode("a aéb").tolist() == [259, 259, 260, 1 + ord("b")]
    assert tokeniser.decode(tokeniser.encode("a aéb\U0001f600")) == "a aéb\U0001f600"


UNIGRAM = Vocabulary(
    scheme=Scheme.UNIGRAM,
    tokens=("<unk>", "a", "b", "é", "€"),
    types=(TokenType.UNKNOWN, *[TokenType.NORMAL] * 4),
    scores=(0.0, -1.0, -1.0, -1.0, -1.0),
    unknown=0,
)


@pytest.mark.parametrize(
    ("places", "texts", "text", "tokens"),
    [
        ({b"a": 2}, "b\0é€\0", "a", [3, 4]),
        ({b"a": 3}, "b\0é€\0", "a", [1]),  # the place is inside of a character
        ({b"a": 5}, "b\0é€\0", "ab", [1, 2]),
        ({b"a": 7}, "b\0é€\0", "aab", [2]),
        ({b"a": 8}, "b\0é€\0", "ab", [1, 2]),  # and behind the texts
        ({"é".encode(): 0}, "b\0", "é", [2]),
        ({b"\xc3": 0}, "b\0", "éa", [3, 1]),  # the key ends inside of a character
        ({b"a\xe2\x82": 0}, "b\0", "a€", [1, 4]),
        ({b"\xa9": 0}, "b\0", "é", [3]),
    ],
)
def test_whole_characters_are_replaced_by_whole_characters(
    places: dict[bytes, int], texts: str, text: str, tokens: list[int]
) -> None:
    table = replacements(places, texts.encode())
    tokeniser = opened(replace(UNIGRAM, replacements=table))
    assert tokeniser.encode(text).tolist() == tokens


def test_room_for_tokens() -> None:
    library, tokeniser = native(), trained_tokeniser("gpt-2")
    error, count = _Error(), ctypes.c_size_t()
    tokens = (ctypes.c_int32 * 4)(*[-7] * 4)
    status = library.aot_encode(
        tokeniser._handle, b"123456", 6, None, tokens, 2, ctypes.byref(error), ctypes.byref(count)
    )
    wanted = len(tokeniser.encode("123456"))
    assert library.aot_status_name(status) == b"capacity"
    assert error.message.decode() == f"the text is {wanted} tokens, there is room for 2"
    assert count.value == wanted and tokens[2] == -7


def test_room_for_text() -> None:
    """A call that fails leaves the decoder as it was."""
    tokeniser = trained_tokeniser("gpt-2")
    decoder = tokeniser.decoder()
    tokens = tokeniser.encode("é" * 3000, is_part=True)
    assert decoder.push(tokens[:1]) + decoder.push(tokens[1:]) + decoder.end() == "é" * 3000
    with pytest.raises(RuntimeFailure) as failure:
        tokeniser.decode([0, len(tokeniser)])
    assert str(failure.value) == "token 1 is 482, the vocabulary has 482"


class PeakAllocator(runtime_api.CountingAllocator):
    """Knows the most bytes that were there at once."""

    peak = 0

    def _allocate(self, user: int, size: int, alignment: int) -> int | None:
        address = super()._allocate(user, size, alignment)
        self.peak = max(self.peak, sum(size for size, _, _ in self.live.values()))
        return address


@pytest.mark.parametrize("name", ["llama-bpe", "smollm", "llama", "t5"])
@pytest.mark.parametrize("unit", ["a", " ", "1", "é", "\n", "the ", "'", "<|im_end|>", "  <think>"])
def test_long_text_takes_memory_in_its_length(name: str, unit: str) -> None:
    """Twice the text, at most twice the memory and a little: nothing is in its square."""
    library, peaks = native(), []
    for count in (1000, 2000):
        allocator = PeakAllocator()
        handle = _open(library, name, allocator)
        data = (unit * count).encode()
        tokens = (ctypes.c_int32 * (len(data) + 4))()
        found = ctypes.c_size_t()
        arguments = (handle, data, len(data), None, tokens, len(tokens), None)
        assert library.aot_encode(*arguments, ctypes.byref(found)) == 0
        library.aot_vocabulary_close(handle)
        assert not allocator.live and not allocator.errors
        assert allocator.peak < 9000 + 110 * len(data)
        peaks.append(allocator.peak)
    assert peaks[1] < 2 * peaks[0] + 100


def _open(library: ctypes.CDLL, name: str, allocator: Any) -> ctypes.c_void_p:
    tokeniser = trained_tokeniser(name)
    handle = ctypes.c_void_p()
    assert tokeniser._memory is not None
    hooks = allocator.hooks()
    status = library.aot_vocabulary_open_memory(
        tokeniser._memory.ctypes.data,
        len(tokeniser._memory),
        ctypes.cast(ctypes.pointer(hooks), ctypes.c_void_p),
        None,
        ctypes.byref(handle),
    )
    if status != 0:
        raise MemoryError
    return handle


@pytest.mark.parametrize("name", TRAINED)
def test_out_of_memory_at_any_allocation(name: str) -> None:
    library = native()
    data = b"<|im_end|> hello " + b"a" * 200
    tokens, count = (ctypes.c_int32 * 300)(), ctypes.c_size_t()
    for number in itertools.count():
        allocator = runtime_api.CountingAllocator(fail_at=number)
        handle = None
        with_failure = True
        try:
            handle = _open(library, name, allocator)
            error = _Error()
            status = library.aot_encode(
                *(handle, data, len(data), None, tokens, 300),
                *(ctypes.byref(error), ctypes.byref(count)),
            )
            with_failure = status != 0
            if with_failure:
                assert library.aot_status_name(status) == b"memory"
                assert error.message.startswith(b"out of memory: ")
        except MemoryError:
            pass
        library.aot_vocabulary_close(handle)
        assert not allocator.live
        if not with_failure:
            break
    assert number > (name != "rwkv")  # which encodes without memory


@pytest.mark.parametrize(
    ("message", "change"), [(m, change) for m, changes in BREAKS.items() for change in changes]
)
def test_what_breaks_a_rule_is_refused(message: str, change: Callable[[Any], None]) -> None:
    """In the words of the reader in Python: tests/unit/link/test_vocabulary.py."""
    with pytest.raises(RuntimeFailure) as failure:
        opened(with_table(change))
    assert str(failure.value) == f"the vocabulary: {message}"
    assert failure.value.status == "malformed"


@pytest.mark.parametrize("field", ["chatTemplate", "chatRefusal"])
def test_a_chat_is_text(field: str) -> None:
    """The reader in Python says the same of any string of a module."""

    def change(table: Any) -> None:
        setattr(table, field, b"a\xe2\x82")

    with pytest.raises(RuntimeFailure, match="a string is not UTF-8$") as failure:
        opened(with_table(change))
    assert failure.value.status == "malformed"
    with pytest.raises(Malformed, match="a string is not UTF-8$"):
        read_vocabulary(with_table(change))


def test_other_bytes_are_refused() -> None:
    with pytest.raises(
        RuntimeFailure, match="^the vocabulary has version 2, this runtime reads up"
    ):
        opened(with_table(lambda table: setattr(table, "version", 2)))
    with pytest.raises(RuntimeFailure, match="of before patterns were stored: compile the model"):
        opened(with_table(lambda table: setattr(table, "preTokeniser", 1)))
    with pytest.raises(RuntimeFailure, match="the file identifier is missing$"):
        opened(b"\0" * 64)


def test_a_module_without_a_vocabulary(tmp_path: Any) -> None:
    import aot

    builder = aot.builder.Builder()
    builder.output("y", builder.op("relu", builder.input("x", "f32[4]")))
    module = builder.module()
    with own_library():
        with pytest.raises(RuntimeFailure) as failure:
            Tokeniser(aot.compile(module).to_bytes())
        assert str(failure.value) == ("the module has no vocabulary: it is not of a language model")
        module.vocabulary = byte_vocabulary()
        path = tmp_path / "model.aotm"
        aot.compile(module).save(path)
        tokeniser = Tokeniser(path)
    assert tokeniser.encode("ab").tolist() == [256]
    assert tokeniser.chat_template == "{{ messages }}"
    assert (tokeniser.keeps_chat, tokeniser.chat_refusal) == (True, "")
    assert (tokeniser.bos, tokeniser.eos, tokeniser.end_tokens) == (257, None, (257,))
    tokeniser.close()
