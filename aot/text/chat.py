"""Chat templates: a conversation as the text that a model was trained on.

Owns how a template is rendered, which parts of the text are its own and which are people's, and the
form for the usual roles that runtimes without Jinja use. Encodes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot.errors import CompileError
from aot.records import dataclass
from aot.text.vocabulary import ChatForm, Vocabulary

# Stand for what people and models wrote while a template is rendered: code points that no text has.
_MARK = "\U0010fffd{}\U0010fffe"
_MARKS = re.compile("\U0010fffd([0-9]+)\U0010fffe")

Message = Mapping[str, str]  # "role" and "content"


@dataclass(frozen=True)
class Part:
    """A part of a rendered conversation.

    Attributes:
        is_template: the template wrote it, so that names of control tokens in it are these tokens;
            what people wrote is plain text.
        message: the index of the message of which it is the content; -1 for the template's.
    """

    text: str
    is_template: bool
    message: int = -1


def render(
    template: str,
    messages: Sequence[Message],
    *,
    asks: bool = True,
    bos: str = "",
    eos: str = "",
    now: Callable[[str], str] | None = None,
) -> list[Part]:
    """A conversation as a Jinja template writes it, in parts.

    Args:
        asks: whether the text ends by asking for the model's reply.
        bos, eos: the names of these tokens.
        now: gives the date in a format of strftime; templates that ask for it are refused if None.

    Raises:
        CompileError: the template can't be rendered, or refuses the messages.
    """
    compiled = _compile(template, now)
    variables = {"add_generation_prompt": asks, "bos_token": bos, "eos_token": eos, "tools": None}
    contents = [message["content"] for message in messages]

    def text_of(found: Sequence[str]) -> str:
        own = [dict(m, content=c) for m, c in zip(messages, found, strict=True)]
        return _render(compiled, dict(variables, messages=own))

    marked = text_of([_MARK.format(number) for number in range(len(messages))])
    # Templates may strip what people wrote; where they do more to it, it stays as it was.
    parts: list[Part] = []
    for wanted in (contents, [content.strip() for content in contents]):
        parts = _split(marked, wanted)
        if "".join(part.text for part in parts) == text_of(contents):
            return parts
    return _split(marked, contents)


def _split(marked: str, contents: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for index, text in enumerate(_MARKS.split(marked)):
        is_template = index % 2 == 0
        if is_template and text:
            parts.append(Part(text, True))
        elif not is_template:
            parts.append(Part(contents[int(text)], False, int(text)))
    return parts


def _compile(template: str, now: Callable[[str], str] | None) -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = lambda value, **how: json.dumps(
        value, ensure_ascii=False, indent=how.get("indent")
    )
    environment.globals["raise_exception"] = refuse
    if now is not None:
        environment.globals["strftime_now"] = now
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise CompileError(f"the chat template cannot be read: {error}") from error


def _render(compiled: Any, variables: Mapping[str, Any]) -> str:
    try:
        return str(compiled.render(**variables))
    except Exception as error:  # a template is a program: anything may go wrong in it
        raise CompileError(f"the chat template cannot be rendered: {error}") from error


def chat_form(vocabulary: Vocabulary) -> ChatForm | None:
    """A vocabulary's chat template, rendered for the roles system, user and assistant; None where
    it has none, or where it does more than to write something before and behind each message."""
    template = vocabulary.chat_template
    if not template:
        return None
    bos, eos = (
        "" if token is None else vocabulary.tokens[token]
        for token in (vocabulary.bos, vocabulary.eos)
    )

    def text(roles: str, *, asks: bool = False) -> list[str]:
        """What stands around the contents of messages whose roles begin with these letters."""
        messages = [{"role": _ROLES[role], "content": f"c{n}"} for n, role in enumerate(roles)]
        found = render(template, messages, asks=asks, bos=bos, eos=eos)
        around, expected = [""], 0
        for part in found:
            if part.is_template:
                around[-1] += part.text
                continue
            if part.message != expected:
                raise _NoFormError
            expected += 1
            around.append("")
        if expected != len(roles):
            raise _NoFormError
        return around

    try:
        made = _form(text, bos)
        for roles in ("u", "uau", "uauau", *(["su", "suau"] if "system" in made.roles else [])):
            for asks in (False, True) if roles[-1] == "u" else (False,):
                if text(roles, asks=asks) != _around(made, roles, asks=asks):
                    return None
    except (CompileError, _NoFormError):
        return None
    return made


_ROLES = {"s": "system", "u": "user", "a": "assistant"}


class _NoFormError(Exception):
    """A template does more than a form can say."""


def _form(text: Callable[..., list[str]], bos: str) -> ChatForm:
    first, after_user = text("u")
    _, user_assistant, assistant_user, _ = text("uau")
    after_assistant = text("ua")[2]
    before_assistant = _without(user_assistant, after_user)
    before_user = _without(assistant_user, after_assistant)
    whole = _without(first, before_user, at_end=True)
    begin = bos if bos and whole.startswith(bos) else ""
    reply = _without(text("u", asks=True)[1], after_user)
    roles = {
        "user": (before_user, after_user),
        "assistant": (before_assistant, after_assistant),
    }
    try:
        head, between, _ = text("su")
        before_system = _without(head, begin)
        roles["system"] = before_system, _without(between, before_user, at_end=True)
    except (CompileError, _NoFormError):
        pass  # a template may know no system message
    return ChatForm(roles, begin, whole[len(begin) :], reply)


def _without(text: str, part: str, *, at_end: bool = False) -> str:
    if not (text.endswith(part) if at_end else text.startswith(part)):
        raise _NoFormError
    return text[: len(text) - len(part)] if at_end else text[len(part) :]


def _around(form: ChatForm, roles: str, *, asks: bool) -> list[str]:
    found = [form.begin + ("" if roles[0] == "s" else form.default)]
    for role in roles:
        before, after = form.roles[_ROLES[role]]
        found[-1] += before
        found.append(after)
    found[-1] += form.reply if asks else ""
    return found
