"""Chat templates: a conversation as the text that a model was trained on.

Owns how a template is rendered, which parts of the text are its own and which are people's, and the
form for the usual roles that runtimes without Jinja use. Encodes nothing. A template is a program
of a stranger: it runs in `template_worker.py`, never in this process.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from aot.base.records import dataclass
from aot.errors import CompileError, TemplateWarning
from aot.text import template_worker
from aot.text.vocabulary import ChatForm, Vocabulary

# Stand for what people and models wrote while a template is rendered: code points that no text has.
_MARK = "\U0010fffd{}\U0010fffe"
_MARKS = re.compile("\U0010fffd([0-9]+)\U0010fffe")
_MOST_DIGITS = 9

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
    tells_time: bool = False,
) -> list[Part]:
    """A conversation as a Jinja template writes it, in parts.

    Args:
        asks: whether the text ends by asking for the model's reply.
        bos, eos: the names of these tokens.
        tells_time: whether a template that asks for the date is given it, or refused.

    Raises:
        CompileError: the template can't be rendered, or refuses the messages.
    """
    asked = [_Conversation(messages, asks)]
    (found,) = _render_each(template, asked, bos=bos, eos=eos, tells_time=tells_time)
    return _parts(found)


class _Conversation(NamedTuple):
    messages: Sequence[Message]
    asks: bool


class _Rendered(NamedTuple):
    """A conversation's text: with marks for what people wrote, and with that itself; or why there
    is none."""

    contents: list[str]
    marked: str
    plain: str
    fault: str | None


def _parts(found: _Rendered) -> list[Part]:
    if found.fault is not None:
        raise CompileError(f"the chat template cannot be rendered: {found.fault}")
    # Templates may strip what people wrote; where they do more to it, it stays as it was.
    for wanted in (found.contents, [content.strip() for content in found.contents]):
        parts = _split(found.marked, wanted)
        if "".join(part.text for part in parts) == found.plain:
            return parts
    return _split(found.marked, found.contents)


def _split(marked: str, contents: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for index, text in enumerate(_MARKS.split(marked)):
        is_template = index % 2 == 0
        if is_template and text:
            parts.append(Part(text, True))
        elif not is_template:
            number = int(text[:_MOST_DIGITS])
            if len(text) > _MOST_DIGITS or number >= len(contents):
                raise CompileError(
                    "the chat template cannot be rendered: it writes U+10FFFD and U+10FFFE"
                )
            parts.append(Part(contents[number], False, number))
    return parts


# ---- the process ----


def _render_each(
    template: str,
    conversations: Sequence[_Conversation],
    *,
    bos: str,
    eos: str,
    tells_time: bool = False,
) -> list[_Rendered]:
    """Renders conversations in one process.

    Raises:
        CompileError: the template is none, or the process ended.
    """
    own = [[dict(m) for m in c.messages] for c in conversations]
    marked = [[m | {"content": _MARK.format(i)} for i, m in enumerate(ms)] for ms in own]
    asked = [
        {"messages": messages, "add_generation_prompt": conversation.asks}
        for both, conversation in zip(zip(marked, own, strict=True), conversations, strict=True)
        for messages in both
    ]
    variables = {"bos_token": bos, "eos_token": eos, "tools": None}
    found = _ask(
        {
            "template": template,
            "variables": variables,
            "conversations": asked,
            "tells_time": tells_time,
        }
    )
    if "unread" in found:
        raise CompileError(f"the chat template cannot be read: {found['unread']}")
    texts = [*found["texts"], *[("", "it was not reached")] * len(asked)]
    return [
        _Rendered(
            [message["content"] for message in messages],
            texts[2 * i][0] or "",
            texts[2 * i + 1][0] or "",
            texts[2 * i][1] or texts[2 * i + 1][1],
        )
        for i, messages in enumerate(own)
    ]


def _ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a template worker process."""
    origins = [_origin(name) for name in ("jinja2", "markupsafe")]
    script = Path(template_worker.__file__)
    if not sys.executable or not script.is_file() or None in origins:
        raise CompileError("the chat template cannot be rendered: this python cannot start another")
    # Isolated and without `site`: what renders does not depend on the user's folder and settings.
    limits = (template_worker.CPU_SECONDS, template_worker.MEMORY_BYTES)
    words = map(str, (script, *limits, *dict.fromkeys(origins)))
    command = [sys.executable, "-I", "-S", *words]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"it runs for more than {_PATIENCE_SECONDS} s"
    except OSError as error:
        reason = f"no process can be started: {(error.strerror or str(error)).lower()}"
    else:
        if done.returncode == 0:
            return json.loads(done.stdout)  # type: ignore[no-any-return]
        reason = _end_of(done.returncode)
    raise CompileError(f"the chat template cannot be rendered: {reason}")


_PATIENCE_SECONDS = 60  # of any clock, for systems that have no limit of processor time


def _origin(module: str) -> Path | None:
    """The folder that a package is in."""
    found = importlib.util.find_spec(module)
    return None if found is None or found.origin is None else Path(found.origin).parent.parent


def _end_of(status: int) -> str:
    """Why the process ended without an answer: a limit, or what Python does at one."""
    if hasattr(signal, "SIGXCPU") and status == -signal.SIGXCPU:
        return f"it runs for more than {template_worker.CPU_SECONDS} s"
    name = signal.strsignal(-status) if status < 0 else f"exit status {status}"
    return f"its process ended by: {name}"


# ---- the form for the usual roles ----


def chat_form(vocabulary: Vocabulary) -> ChatForm | None:
    """A vocabulary's chat template, rendered for the roles system, user and assistant; None where
    it has none and, with a `TemplateWarning` that says why, where it cannot be rendered or does
    more than to write something before and behind each message."""
    if not vocabulary.chat_template:
        return None
    try:
        return _chat_form(vocabulary)
    except _NoFormError:
        reason = "it does more than to write something before and behind each message"
    except CompileError as error:
        reason = str(error)
    warnings.warn(
        f"aot-run and packages take prompts without the model's chat template: {reason}",
        TemplateWarning,
        stacklevel=2,
    )
    return None


class _Around(Protocol):
    def __call__(self, roles: str, *, asks: bool = False) -> list[str]: ...


def _chat_form(vocabulary: Vocabulary) -> ChatForm:
    bos, eos = (
        "" if token is None else vocabulary.tokens[token]
        for token in (vocabulary.bos, vocabulary.eos)
    )
    ways = [(roles, asks) for roles in _CONVERSATIONS for asks in (False, True)]
    found = _render_each(
        vocabulary.chat_template,
        [_Conversation(_messages(roles), asks) for roles, asks in ways],
        bos=bos,
        eos=eos,
    )
    by_way = dict(zip(ways, found, strict=True))

    def text(roles: str, *, asks: bool = False) -> list[str]:
        """The texts around the contents of messages whose roles begin with these letters."""
        around, expected = [""], 0
        for part in _parts(by_way[roles, asks]):
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

    made = _form(text, bos)
    for roles in _COMPARED:
        if roles[0] == "s" and "system" not in made.roles:
            continue
        for asks in (False, True):
            if text(roles, asks=asks) != _around(made, roles, asks=asks):
                raise _NoFormError
    written = (made.begin, made.default, made.reply, *(t for ts in made.roles.values() for t in ts))
    if "\0" in "".join(written):
        raise CompileError("it writes a zero character")
    return made


# Messages, by the first letters of their roles, with which a form is compared, and from which it is
# made.
_COMPARED = ("u", "uau", "uauau", "su", "suau")
_CONVERSATIONS = (*_COMPARED, "ua")


def _messages(roles: str) -> list[Message]:
    return [{"role": _ROLES[role], "content": f"c{n}"} for n, role in enumerate(roles)]


_ROLES = {"s": "system", "u": "user", "a": "assistant"}


class _NoFormError(Exception):
    """A template does more than a form can say."""


def _form(text: _Around, bos: str) -> ChatForm:
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
