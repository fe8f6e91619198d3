"""Conversations as a model's chat template writes them.

Owns what a template is given. The template was compiled into the module (`aot.link`), and the
runtime renders it, so that Python, `aot-run` and browsers ask a model the same. Encodes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from aot.errors import RuntimeFailure
from aot.runtime.text import Rendered, Tokeniser

# "role" and "content"; a template may know more of a message, such as "tool_calls".
Message = Mapping[str, Any]
Variables = Mapping[str, Any]


def render(
    tokeniser: Tokeniser,
    messages: Sequence[Message],
    variables: Variables | None = None,
    *,
    asks: bool = True,
) -> Rendered:
    """A conversation as the module's chat template writes it.

    Args:
        variables: what the template is given beside the messages, such as `tools` and
            `enable_thinking`; values of JSON.
        asks: whether the text ends by asking for the model's reply.

    Raises:
        RuntimeFailure: the module has no template, which is "unsupported"; or that fails, refuses
            the conversation, takes too much, or leaves a system message, tools or documents out.
    """
    given = {**(variables or {}), "messages": list(messages), "add_generation_prompt": asks}
    return tokeniser.render(given, seconds=local_seconds(), is_strict=True)


def local_seconds() -> int:
    """The local clock, as templates that write the date read it: seconds since 1970."""
    return int((datetime.now() - datetime(1970, 1, 1)).total_seconds())


# Stand for what was said in a state that was loaded, of which only the program knows the text.
UNKNOWN_MESSAGES: tuple[Message, ...] = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
)


def behind_reply(rendered: Rendered) -> Rendered:
    """What a conversation that begins with `UNKNOWN_MESSAGES` has behind them.

    Raises:
        RuntimeFailure: the template does not write a reply as it is.
    """
    at = rendered.marks.rfind(len(UNKNOWN_MESSAGES))
    if at < 0:
        raise RuntimeFailure(
            "the state has a conversation, and the chat template does not say how one goes on; "
            "reset the chat, or continue raw text",
            "unsupported",
        )
    return Rendered(rendered.data[at + 1 :], rendered.marks[at + 1 :])
