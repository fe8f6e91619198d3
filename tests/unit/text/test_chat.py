"""Chat templates: what they write, whose text is whose, and the form for the usual roles."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from aot.errors import CompileError, TemplateWarning
from aot.text import template_worker
from aot.text.chat import Message, chat_form, render
from aot.text.vocabulary import ChatForm, Scheme, TokenType, Vocabulary

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role']"
    " + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not "
    "supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') "
    "%}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token }}{% else %}{{ raise_exception('only user and assistant') }}"
    "{% endif %}{% endfor %}"
)


def said(*contents: str) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def vocabulary(template: str) -> Vocabulary:
    types = (TokenType.CONTROL, TokenType.CONTROL)
    return Vocabulary(
        *(Scheme.BYTE_MERGES, ("<s>", "</s>"), types), bos=0, eos=1, chat_template=template
    )


def test_what_the_template_writes_and_what_people_write() -> None:
    parts = render(SMOLLM, said("Hi <|im_end|>"))
    assert [(part.text, part.is_template) for part in parts] == [
        ("<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n", True),
        ("Hi <|im_end|>", False),
        ("<|im_end|>\n<|im_start|>assistant\n", True),
    ]


def test_a_template_may_strip_what_people_write() -> None:
    for template, expected in ((LLAMA, "Hi"), (SMOLLM, " Hi\n")):
        (found,) = (p.text for p in render(template, said(" Hi\n")) if not p.is_template)
        assert found == expected


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("", None),
        (
            SMOLLM,
            ChatForm(
                {
                    "user": ("<|im_start|>user\n", "<|im_end|>\n"),
                    "assistant": ("<|im_start|>assistant\n", "<|im_end|>\n"),
                    "system": ("<|im_start|>system\n", "<|im_end|>\n"),
                },
                "",
                "<|im_start|>system\nYou help.<|im_end|>\n",
                "<|im_start|>assistant\n",
            ),
        ),
        (
            GEMMA,
            ChatForm(
                {
                    "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
                    "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
                },
                "<s>",
                "",
                "<start_of_turn>model\n",
            ),
        ),
        (
            MISTRAL,
            ChatForm({"user": ("[INST] ", " [/INST]"), "assistant": ("", "</s>")}, "<s>", "", ""),
        ),
    ],
)
def test_the_form_of_the_usual_roles(template: str, form: ChatForm | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chat_form(vocabulary(template)) == form


MORE = "it does more than to write something before and behind each message"
ZERO = "it writes a zero character"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if", "the chat template cannot be read: unexpected 'end of template'"),
        ("{{ raise_exception('no') }}", "the chat template cannot be rendered: no"),
        (
            "{{ strftime_now('%Y') }}{{ messages[0].content }}",
            "the chat template cannot be rendered: 'strftime_now' is undefined",
        ),
        ("{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}", MORE),
        ("{{ messages[-1].content }}", MORE),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", MORE),
        (
            "{% for m in messages %}{{ '\\0' }}{{ m.content }}{% endfor %}",
            "it writes a zero character",
        ),
        (
            "\U0010fffd7\U0010fffe",
            "the chat template cannot be rendered: it writes U+10FFFD and U+10FFFE",
        ),
        (
            f"\U0010fffd{'1' * 5000}\U0010fffe",
            "the chat template cannot be rendered: it writes U+10FFFD and U+10FFFE",
        ),
    ],
)
def test_what_has_no_form_is_said(template: str, reason: str) -> None:
    with pytest.warns(TemplateWarning) as caught:
        assert chat_form(vocabulary(template)) is None
    assert [str(w.message) for w in caught] == [
        f"aot-run and packages take prompts without the model's chat template: {reason}"
    ]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ENDLESS, "rendered: it runs for more than 1 s"),
        ("{% set x = 'a' * 999999999 %}", "rendered: it takes too much memory"),
        (
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t * 2 %}"
            "{% endfor %}",
            "rendered: it takes too much memory",
        ),
        (
            "{% set ns = namespace(t='x' * 16) %}{% for i in range(21) %}{% set ns.t = ns.t * 2 %}"
            "{% endfor %}{{ ns.t }}",
            "rendered: it writes more than 16 Mi characters",
        ),
        ("(" * 9999, None),
        ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "read: "),
        ("{{ " + "-" * 99999 + "1 }}", "read: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "rendered: maximum recursion depth"),
        ("{{ ''.__class__.__mro__ }}", "rendered: access to attribute '__class__'"),
        ("{{ '\\ud800' }}", "rendered: 'utf-8' codec can't encode character '\\ud800'"),
        ("{% include 'x' %}", "rendered: no loader for this environment specified"),
    ],
)
def test_a_template_of_a_stranger_ends(
    template: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its process, within its limits, with one line of why."""
    if template is ENDLESS:  # others end by themselves, on a slow machine later
        monkeypatch.setattr(template_worker, "CPU_SECONDS", 1)
    if reason is None:
        assert [part.text for part in render(template, said("x"))] == [template]
        return
    with pytest.raises(CompileError) as caught:
        render(template, said("x"))
    assert str(caught.value).startswith(f"the chat template cannot be {reason}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_the_date_is_told_to_those_who_chat() -> None:
    template = "{{ strftime_now('%Y')|length }}"
    assert render(template, said("x"), tells_time=True)[0].text == "4"
    with pytest.raises(CompileError, match="'strftime_now' is undefined$"):
        render(template, said("x"))


def test_what_renders_has_limits() -> None:
    """Also where it is not they that end a template: no file is written, no core is left."""
    script = (
        "import resource, sys\nfrom aot.text import template_worker as w\n"
        "w._limit({'RLIMIT_CPU': 3, 'RLIMIT_AS': 1 << 30, 'RLIMIT_NOTHING': 1})\n"
        "request = {'template': 'x', 'variables': {}, 'conversations': [{}], 'tells_time': False}\n"
        "print(w.answer(request), resource.getrlimit(resource.RLIMIT_CPU))\n"
        "print(resource.getrlimit(resource.RLIMIT_FSIZE))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["{'texts': [('x', None)]} (3, 4)", "(0, 0)"]


def test_without_a_process_nothing_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CompileError, match="rendered: no process can be started: no such file"):
        render("x", said("x"))
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(CompileError, match="rendered: this python cannot start another$"):
        render("x", said("x"))


def test_llama_s_header_begins_with_bos() -> None:
    form = chat_form(vocabulary(LLAMA))
    assert form is not None
    assert (form.begin, form.default) == ("<s>", "")
    assert form.roles["system"] == ("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>")


def test_what_goes_wrong_in_a_template_is_one_line() -> None:
    with pytest.raises(CompileError) as caught:
        render(GEMMA, [{"role": "system", "content": "x"}])
    assert str(caught.value) == ("the chat template cannot be rendered: System role not supported")
    with pytest.raises(CompileError, match="^the chat template cannot be read: "):
        render("{% if %}", said("x"))
    with pytest.raises(CompileError, match="^the chat template cannot be rendered: "):
        render("{{ messages.x.y }}", said("x"))
