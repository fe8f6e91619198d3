"""Conversations by a module's chat template, in C: what Jinja writes, who wrote what, which tokens
that is, and how templates of strangers end."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from typing import Any

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import RuntimeFailure
from aot.link import module_fbs as fbs
from aot.link.flatbuffer import read_structure
from aot.link.vocabulary import IDENTIFIER, encode_vocabulary
from aot.runtime.text import Rendered, Tokeniser
from aot.runtime.text_library import CRendered, RenderOptions
from aot.text.gguf import read_vocabulary
from aot.text.tokenizer_json import read_vocabulary as read_tokenizer_json
from tests.support import tokenizer_json_tokens
from tests.support.chat_templates import CONVERSATIONS, TEMPLATES
from tests.support.jinja_oracle import SECONDS, expected
from tests.support.jinja_snippets import SNIPPETS, VARIABLES
from tests.support.llama_tokens import GOLDEN, digest
from tests.support.runtime_api import CountingAllocator, Failed, call
from tests.support.text_runtime import native, opened
from tests.support.vocabularies import TRAINED, byte_vocabulary, trained_metadata

TOKENS = {"bos_token": "<s>", "eos_token": "ab"}
CASES = json.loads(GOLDEN.read_text(encoding="ascii"))
CANNOT = "the chat template cannot be rendered: "


def tokeniser(template: str) -> Tokeniser:
    """Of a vocabulary whose bos is "<s>", a control token, and whose eos is "ab"."""
    made = opened(byte_vocabulary(chat_template=template, eos=256))
    assert made.chat_refusal == ""
    return made


def rendered(own: Tokeniser, variables: dict[str, Any]) -> str | None:
    """The text; None where it fails."""
    try:
        return own.render(variables, seconds=SECONDS).text
    except RuntimeFailure:
        return None


def failure(own: Tokeniser, variables: dict[str, Any], **how: Any) -> str:
    with pytest.raises(RuntimeFailure) as caught:
        own.render(variables, **how)
    return str(caught.value)


# ---- what Jinja writes ----


def test_there_are_enough_styles_and_conversations() -> None:
    assert len(TEMPLATES) >= 40 and len(CONVERSATIONS) >= 20


@pytest.mark.parametrize("style", TEMPLATES)
def test_a_style_of_template_is_rendered_as_jinja_does(style: str) -> None:
    """Every conversation: the same bytes, or both refuse it."""
    template = TEMPLATES[style]
    own = tokeniser(template)
    found = {name: rendered(own, v) for name, v in CONVERSATIONS.items()}
    assert found == {n: expected(template, {**v, **TOKENS}) for n, v in CONVERSATIONS.items()}
    assert sum(text is not None for text in found.values()) > 12


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_part_of_jinja_does_what_jinja_does(number: int) -> None:
    snippet = SNIPPETS[number]
    assert rendered(tokeniser(snippet), VARIABLES) == expected(snippet, VARIABLES)


# Those that this Python's Unicode has: repr() shows them in any version behind it.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn"))


@settings(max_examples=60, deadline=None)
@given(text=st.text(CHARACTERS, max_size=40), other=st.text(CHARACTERS, max_size=3))
def test_text_is_python_s(text: str, other: str) -> None:
    """Methods and filters of texts that are any characters."""
    template = (
        "{{ a|trim }}|{{ a.split() }}|{{ a.split(b or ',') }}|{{ a.rsplit(none, 1) }}|"
        "{{ a.splitlines() }}|{{ a.replace(b, '-') }}|{{ a.strip(b) }}|{{ a|length }}|{{ a[1:-1] }}"
        "|{{ a[::-1] }}|{{ a|tojson }}|{{ a|tojson(ensure_ascii=true) }}|{{ [a] }}|{{ a|e }}|"
        "{{ a.find(b) }}|{{ a.count(b) }}|{{ a.partition(b or ' ') }}|{{ a|indent }}|{{ a < b }}"
    )
    variables = {"a": text, "b": other}
    assert rendered(tokeniser(template), variables) == expected(template, variables)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CHARACTERS, max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(CHARACTERS, max_size=4), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(value=_JSON)
def test_values_are_python_s(value: Any) -> None:
    """As text, as JSON, and beside itself."""
    template = "{{ v }}|{{ v|tojson }}|{{ v|tojson(indent=2, sort_keys=true) }}|{{ v == v }}"
    assert rendered(tokeniser(template), {"v": value}) == expected(template, {"v": value})


# ---- who wrote what ----


def test_marks_say_who_wrote_a_byte() -> None:
    own = tokeniser(
        "{% for m in messages %}<{{ m.role }}>{{ m.content|trim|upper ~ '.' }}{% endfor %}"
        "{{ tools|tojson }}"
    )
    messages = [{"role": "user", "content": " aé"}, {"role": "assistant", "content": "b"}]
    made = own.render({"messages": messages, "tools": [{"n": 1}]})
    assert made.text == '<user>AÉ.<assistant>B.[{"n": 1}]'
    marks = "".join(chr(48 + m) if m < 255 else "t" for m in made.marks)
    assert marks == "000000" + "111" + "0" + "0" * 11 + "2" + "0" + "000" + "t" + "0" * 6
    many = [{"role": "user", "content": "x"}] * 300
    marks_of_many = own.render({"messages": many}).marks
    assert [m for m in marks_of_many if m] == [min(n + 1, 255) for n in range(300)]


def test_control_tokens_are_those_of_which_the_template_wrote_all() -> None:
    own = tokeniser(
        "{% for m in messages %}<s>{{ m.content }}<s{{ '>' }}<{{ m.role }}>{% endfor %}"
    )
    made = own.render({"messages": [{"role": "s", "content": "<s>a"}]})
    assert made.text == "<s><s>a<s><s>"
    tokens = own.chat_tokens(made).tolist()
    assert [n for n, token in enumerate(tokens) if token == own.bos] == [0, 5, 6]
    # begun by what somebody else wrote, it is none
    split = own.render({"messages": [{"role": "x", "content": "a<"}]})
    assert "<<s>" in split.text and own.bos not in own.chat_tokens(split).tolist()[1:3]


@pytest.mark.parametrize("name", TRAINED)
def test_tokens_of_conversations_are_llama_cpp_s(name: str) -> None:
    """Of each style, all conversations in which nobody writes the name of a control token."""
    expected_digests = CASES["conversations"][name]
    assert len(expected_digests) == len(TEMPLATES)
    for style, template in TEMPLATES.items():
        found = read_vocabulary(trained_metadata(name) | {"tokenizer.chat_template": template})
        assert found is not None
        own = opened(replace(found, bos=found.ids["<|im_start|>"], eos=found.ids["<|im_end|>"]))
        assert digest(_conversation_tokens(own)) == expected_digests[style], style


def _conversation_tokens(own: Tokeniser) -> list[list[int]]:
    """The tokens of all conversations in which nobody writes the name of a control token."""
    lists = []
    for conversation, variables in CONVERSATIONS.items():
        if conversation == "control tokens" or rendered(own, variables) is None:
            continue
        made = own.render(variables, seconds=SECONDS)
        lists.append(own.chat_tokens(made, is_first=False).tolist())
    assert len(lists) > 12
    return lists


@pytest.mark.parametrize("name", tokenizer_json_tokens.byte_files())
def test_tokens_of_conversations_are_hugging_face_s(name: str) -> None:
    """Conversations in each style, with the patterns of models' tokenizer.json files."""
    data = tokenizer_json_tokens.byte_files()[name]
    expected = json.loads(tokenizer_json_tokens.GOLDEN.read_text(encoding="ascii"))
    for style, template in TEMPLATES.items():
        config = {"chat_template": template, "bos_token": "<|im_start|>"}
        config |= {"eos_token": "<|im_end|>"}
        lists = _conversation_tokens(opened(read_tokenizer_json(data, config)))
        assert digest(lists) == expected[f"cut as {name}"]["conversations"][style], style


@pytest.mark.parametrize("name", TRAINED)
def test_a_conversation_is_encoded_whole(name: str) -> None:
    """Where nobody writes a control token's name, its tokens are those of the text, with the names
    that the template writes: `test_text.py` compares these with llama.cpp's."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    )
    found = read_vocabulary(trained_metadata(name) | {"tokenizer.chat_template": template})
    assert found is not None
    own = opened(found)
    for words in ("The quick", " brown fox", "it's 12 dogs\n\n", "été", ""):
        made = own.render({"messages": [{"role": "the", "content": words}] * 2})
        whole = own.encode(made.text, parses_control=True, is_part=True).tolist()
        assert own.chat_tokens(made, is_first=False).tolist() == whole
    if name in ("gpt-2", "smollm"):  # parts would be others: the space goes with the word
        made = own.render({"messages": [{"role": "the", "content": "the"}]})
        parts = [own.encode(text, is_part=True).tolist() for text in ("the ", "the")]
        assert [*parts[0], *parts[1]] != own.chat_tokens(made, is_first=False).tolist()[1:-1]


def test_text_begins_with_bos_where_the_vocabulary_says_so() -> None:
    plain = Rendered(b"a", b"\0")
    for adds in (False, True):
        own = opened(byte_vocabulary(adds_bos=adds))
        (letter,) = own.encode("a", is_part=True).tolist()
        assert own.chat_tokens(plain).tolist() == ([257, letter] if adds else [letter])
        assert own.chat_tokens(plain, is_first=False).tolist() == [letter]
        assert own.chat_tokens(Rendered(b"<s>a", bytes(4))).tolist() == [257, letter]


# ---- what is refused ----


def test_a_module_that_keeps_no_template_says_why() -> None:
    own = opened(byte_vocabulary(chat_template="{{ messages|groupby('role') }}"))
    assert not own.keeps_chat
    assert failure(own, {"messages": []}) == (
        "the module does not keep the model's chat template, which conversations need: line 1 has "
        'the filter "groupby"; it takes text to be continued only'
    )
    old = read_structure(encode_vocabulary(byte_vocabulary()), IDENTIFIER, "Vocabulary")
    old.chatCode = old.chatTexts = old.chatTextEnds = None  # as an earlier compiler left them out
    old.chatRoles = [fbs.ChatRoleT("user", "<s>", "x")]
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(old.Pack(builder), file_identifier=IDENTIFIER)
    assert failure(opened(bytes(builder.Output())), {}) == (
        "the module does not keep the model's chat template, which conversations need: compile the "
        "model again; it takes text to be continued only"
    )
    own = opened(byte_vocabulary(chat_template=""))
    assert failure(own, {}) == (
        "the model has no chat template: it takes text to be continued only"
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ raise_exception('only ' ~ 1) }}",
            "the chat template refuses the conversation: only 1",
        ),
        ("{{ x.y }}", f"{CANNOT}'x' is undefined"),
        ("{{ messages[0].a.b }}", f"{CANNOT}'a' is undefined"),
        ("{{ 'a' + 1 }}", f"{CANNOT}a string and a int cannot be computed with"),
        ("{{ x + 1 }}", f"{CANNOT}'x' is undefined"),
        ("{{ 1 < 'a' }}", f"{CANNOT}a int and a string have no order"),
        ("{{ 9223372036854775807 + 1 }}", f"{CANNOT}an integer has more than 64 bits"),
        ("{{ '9223372036854775808'|int }}", f"{CANNOT}an integer has more than 64 bits"),
        ("{{ '1e19'|int }}", f"{CANNOT}an integer has more than 64 bits"),
        ("{{ 1e19|int }}", f"{CANNOT}an integer has more than 64 bits"),
        ("{{ (1e308 * 10)|int }}", f"{CANNOT}an integer has more than 64 bits"),
        ("{{ 1 // 0 }}", f"{CANNOT}a division by 0"),
        ("{% for i in 3 %}{% endfor %}", f"{CANNOT}a int has no elements"),
        ("{% set a, b = [1] %}", f"{CANNOT}2 values are taken from 1"),
        (
            "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
            f"{CANNOT}a macro takes 1 arguments, found 2",
        ),
        (
            "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}",
            f"{CANNOT}a macro does not take the argument 'b'",
        ),
        ("{{ messages.foo() }}", f"{CANNOT}'foo' is undefined"),
        ("{{ 'a'.items() }}", f"{CANNOT}a string has no such method"),
        ("{{ 1() }}", f"{CANNOT}a int cannot be called"),
        ("{{ range(messages) }}", f"{CANNOT}a range is of one to three numbers"),
        ("{{ x|tojson }}", f"{CANNOT}a undefined is no JSON"),
        ("{{ range }}", f"{CANNOT}a function cannot be written"),
        ("{{ strftime_now('%Y') }}", f"{CANNOT}it asks for the time, and there is no clock"),
        ("{% set x = {[1]: 2} %}", f"{CANNOT}a list is no key"),
        ("{{ [1]|dictsort }}", f"{CANNOT}a list is no dict to be sorted"),
        ("{{ {}|dictsort(by='x') }}", f"{CANNOT}dictsort is by key or value"),
        ("{{ 7|items }}", f"{CANNOT}a int has no items"),
        ("{{ 'a'|abs }}", f"{CANNOT}a string has no absolute value"),
        ("{{ x|int }}", f"{CANNOT}an undefined value is no number"),
        ("{{ '12'|int(base=16) }}", f"{CANNOT}integers are read with the base 10"),
        ("{{ 'a'|indent([1]) }}", f"{CANNOT}a list is no width"),
        ("{{ 7|indent }}", f"{CANNOT}a int cannot be indented"),
        ("{{ [1]|map('string')|last }}", f"{CANNOT}a generator has no last element"),
        ("{{ 'a'|replace('a', 'b', 'c') }}", f"{CANNOT}a string is no count"),
        ("{{ dict(7) }}", f"{CANNOT}a dict or namespace is made of other than one dict"),
        ("{{ range(a=1) }}", f"{CANNOT}a function is called with other arguments than it has"),
        ("{{ messages|length ** 64 + 2 ** 64 }}", f"{CANNOT}an integer has more than 64 bits"),
        ("{{ messages|length ** -1 }}", f"{CANNOT}a power below 0"),
        ("{{ messages|length % 0 }}", f"{CANNOT}a division by 0"),
        ("{{ 1.5 // messages|length }}", f"{CANNOT}//, % and ** are for integers only"),
        (
            "{{ '%x' % messages|length }}",
            f"{CANNOT}a format of % has other than %s and %d of each value",
        ),
        ("{{ '%d' % messages }}", f"{CANNOT}%d is no format of a list"),
        ("{{ 'a' % messages }}", f"{CANNOT}a format of % has too few places"),
        ("{{ 'abc'['a':] }}", f"{CANNOT}a string is no bound of a slice"),
        ("{{ x[1:] }}", f"{CANNOT}'x' is undefined"),
        ("{{ 'abc'[::0] }}", f"{CANNOT}the step of a slice is no number other than 0"),
        ("{{ {(1, 2): 1}|tojson }}", f"{CANNOT}a list is no key of JSON"),
        ("{{ 'a'.startswith(7) }}", f"{CANNOT}a method expected a string, found a int"),
        ("{{ 'a'.split('b', 'c') }}", f"{CANNOT}a method expected a number, found a string"),
        ("{{ 'abcb'.find('b', 2) }}", f"{CANNOT}a method is called with places in a string"),
        ("{{ -messages[0].role }}", f"{CANNOT}a string has no sign"),
    ],
)
def test_a_template_that_fails_says_why(template: str, message: str) -> None:
    own = tokeniser(template)
    for _ in range(2):
        assert failure(own, {"messages": [{"role": "user", "content": "x"}]}) == message


def test_a_long_message_is_cut() -> None:
    own = tokeniser("{{ raise_exception(messages[0].content) }}{{ x.y }}")
    for count in (400, 4096, 8192, 10000):
        message = failure(own, {"messages": [{"content": "é" * count}]})
        assert message.startswith("the chat template refuses the conversation: " + "é" * 40)
    name = "x" * 4096
    message = failure(tokeniser("{{ " + name + ".y }}"), {})
    assert message.startswith(f"{CANNOT}'" + "x" * 40)
    macro = "{% macro f() %}{% endmacro %}{{ f(" + "x" * 256 + "=1) }}"
    assert "the argument 'xxxx" in failure(tokeniser(macro), {})


STEPS, MEMORY = f"{CANNOT}it takes too many steps", f"{CANNOT}it takes too much memory"
HOSTILE = {
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": STEPS,
    "{% set x = 'ab' * 999999999 %}": STEPS,
    "{% set n = namespace(t='x') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}": (
        MEMORY
    ),
    "{% set x = 'x' * 9999 %}{% for i in range(1000) %}{{ x }}{% endfor %}": (
        f"{CANNOT}it writes more than 8 MiB"
    ),
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": f"{CANNOT}its macros are nested too deep",
    "{% set n = namespace(t=[]) %}{% for i in range(9999) %}{% set n.t = [n.t] %}{% endfor %}"
    "{{ n.t }}": f"{CANNOT}its values are nested too deep",
    "{% set n = namespace(t=[1]) %}{% for i in range(40) %}{% set n.t = [n.t, n.t] %}{% endfor %}"
    "{{ n.t|tojson }}": STEPS,
    "{% set l = range(100000)|list %}{% for i in l %}{% set x = -1 in l %}{% endfor %}": STEPS,
    "{% set s = 'ab' * 500000 %}{% for i in range(99999) %}{% set x = 'abb' in s %}{% endfor %}": (
        STEPS
    ),
    "{% set l = range(100000)|list %}{% for i in l %}{% set x = l|sort %}{% endfor %}": STEPS,
    "{% set s = '0' * 1000000 %}{% for i in range(99999) %}{% set x = s|int %}{% endfor %}": STEPS,
    "{% set s = '0' * 1000000 %}{% for i in range(9999) %}{% set x = s|float %}{% endfor %}": STEPS,
    "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set x = s.startswith(s) %}"
    "{% endfor %}": STEPS,
    "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set x = s.removesuffix(s) %}"
    "{% endfor %}": STEPS,
    "{% set l = range(100000)|list %}{% for i in l %}{% set x = l|sum %}{% endfor %}": STEPS,
    "{% set s = '1' * 1000000 %}{% set l = [0] %}{% for i in range(99999) %}"
    "{% set x = [l]|map(attribute=s)|list %}{% endfor %}": STEPS,
    "{% set n = namespace(t=[]) %}{% for i in range(9999) %}{% set n.t = [n.t] %}{% endfor %}"
    "{{ n.t|tojson }}": f"{CANNOT}its values are nested too deep",
    "{{ range(100001)|length }}": f"{CANNOT}a range has more than 100000 numbers",
    "{% filter upper %}" * 150 + "{% endfilter %}" * 150: (
        f"{CANNOT}its blocks and calls are nested too deep"
    ),
}


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_template_without_end_ends(number: int) -> None:
    template, message = list(HOSTILE.items())[number]
    assert failure(tokeniser(template), {}) == message


def test_a_budget_of_the_caller_s() -> None:
    own = tokeniser("{% for i in range(1000) %}{{ i }},{% endfor %}")
    assert own.render({}).text.startswith("0,1,2,")
    assert failure(own, {}, max_steps=1000) == STEPS
    assert failure(own, {}, max_bytes=1 << 16) == MEMORY


@pytest.mark.parametrize(
    ("template", "variables", "message"),
    [
        ("{{ messages[-1].content }}", {}, "it knows no system message, and leaves it out"),
        (
            "{{ messages[0].content }}",
            {"tools": [{"name": "f"}]},
            "it knows no tools, and leaves them out",
        ),
        (
            "{{ messages[0].content }}",
            {"documents": [{"text": "f"}]},
            "it knows no documents, and leaves them out",
        ),
        ("{{ messages[0].content }}", {"tools": [], "documents": None}, ""),
        # what decides is not left out
        ("{{ 'S' in messages[0].content }}{{ messages[-1].content }}", {}, ""),
        ("{{ messages|length }}{{ messages[-1].content }}", {}, ""),
        ("{{ messages[0].content }}{% if tools %}T{% endif %}", {"tools": [{"name": "f"}]}, ""),
        ("{{ messages[0].content }}{{ tools }}", {"tools": [{"name": "f"}]}, ""),
    ],
)
def test_nothing_is_left_out_without_a_word(
    template: str, variables: dict[str, Any], message: str
) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    own, given_ = tokeniser(template), {"messages": messages, **variables}
    assert own.render(given_).text
    if message:
        assert failure(own, given_, is_strict=True) == CANNOT + message
    else:
        assert own.render(given_, is_strict=True).text


def render_json(own: Tokeniser, text: bytes) -> str:
    made = CRendered()
    options = ctypes.byref(RenderOptions())
    native()
    call("aot_chat_render", own._handle, text, ctypes.c_size_t(len(text)), options, out=made)
    found = ctypes.string_at(made.text, made.bytes).decode()
    native().aot_rendered_release(own._handle, ctypes.byref(made))
    return found


NO_JSON = f"{CANNOT}its variables are no JSON: byte "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", f"{NO_JSON}0: expected a value"),
        (b"[]", f"{CANNOT}its variables are no JSON object"),
        (b'{"a": 1} x', f"{NO_JSON}9: more than one value"),
        (b'{"a": 1', f"{NO_JSON}8: expected , or }}"),
        (b'{"a" 1}', f"{NO_JSON}5: expected :"),
        (b"{1: 2}", f"{NO_JSON}1: expected the name of a member"),
        (b'{"a": [1 2]}', f"{NO_JSON}10: expected , or ]"),
        (b'{"a": "b', f"{NO_JSON}8: a string has no end"),
        (b'{"a": "\\x"}', f"{NO_JSON}9: there is no such escape"),
        (b'{"a": "\\ud800"}', f"{NO_JSON}13: half of a surrogate pair"),
        (b'{"\\ud800:": 1}', f"{NO_JSON}8: half of a surrogate pair"),
        (b'{"\\x:1}', f"{NO_JSON}4: there is no such escape"),
        (b'{"\\u12g4:1}', f"{NO_JSON}7: an escape has other than hexadecimal digits"),
        (b'{"a": "\\u12g4"}', f"{NO_JSON}12: an escape has other than hexadecimal digits"),
        (b'{"a": 99999999999999999999}', f"{NO_JSON}26: an integer of more than 64 bits"),
        (b'{"a": 1.}', f"{NO_JSON}8: no number"),
        (b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", f"{CANNOT}its variables are nested too deep"),
        (b'{"a": "\xff"}', "the conversation is not UTF-8: byte 7 is 0xff"),
    ],
)
def test_variables_that_are_no_json_are_refused(text: bytes, message: str) -> None:
    own = tokeniser("{{ a }}")
    with pytest.raises(Failed) as caught:
        render_json(own, text)
    assert caught.value.message == message
    assert render_json(own, b' {"a": "\\u00e9\\ud83d\\ude00\\n\\/", "a": -1.5e2} ') == "-150.0"


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"a"])
def test_variables_of_python_are_values_of_json(value: Any) -> None:
    message = failure(tokeniser("{{ a }}"), {"a": value})
    assert message.startswith("the variables of the chat template are no JSON: ")


def test_each_allocation_that_fails() -> None:
    """It says so and leaks nothing."""
    data = encode_vocabulary(byte_vocabulary(chat_template=TEMPLATES["qwen3"], eos=256))
    memory = ctypes.create_string_buffer(len(data) + 64)
    place = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    ctypes.memmove(place, data, len(data))
    text = json.dumps(CONVERSATIONS["a tool is called"]).encode()
    library, failures = native(), 0
    while True:
        allocator = CountingAllocator(fail_at=failures)
        handle, made = ctypes.c_void_p(), CRendered()
        hooks = ctypes.byref(allocator.hooks())
        size = ctypes.c_size_t
        try:
            call("aot_vocabulary_open_memory", place, size(len(data)), hooks, out=handle)
            call("aot_chat_render", handle, text, size(len(text)), None, out=made)
            assert made.bytes > 100
            library.aot_rendered_release(handle, ctypes.byref(made))
        except Failed as error:
            assert error.status == "memory"
        library.aot_vocabulary_close(handle)
        assert not allocator.live and not allocator.errors
        if allocator.calls <= failures:
            break
        failures += 1
    assert failures > 3
