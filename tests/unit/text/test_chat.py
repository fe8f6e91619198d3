"""Chat templates: what they write, whose text is whose, and the form for the usual roles."""

from __future__ import annotations

import pytest

from aot.errors import CompileError
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
        ("", None),
        ("{% if", None),
        ("{{ raise_exception('no') }}", None),
        ("{{ strftime_now('%Y') }}{{ messages[0].content }}", None),
        ("{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}", None),
        ("{{ messages[-1].content }}", None),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", None),
    ],
)
def test_the_form_of_the_usual_roles(template: str, form: ChatForm | None) -> None:
    assert chat_form(vocabulary(template)) == form


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
