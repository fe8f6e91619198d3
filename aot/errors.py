"""The errors and warnings of a compile, and the error of a runtime call.

The user's mistake (`CompileError`), what we do not support (`UnsupportedError`) and our own bug
(`InternalError`) never mix: the first two are one clear message, the third asks for a report.
What a compile tells of itself, such as notes, remarks, the ledger and reports, is needed by no
module: it is computed under `advice`, where our bug is a warning. Names and texts in messages come
from models and modules of strangers: what may not be seen of them is escaped here, as JSON does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Control characters of ASCII and Latin-1, which move a terminal's cursor, change its colours or its
# title; what embeds, overrides or isolates a direction of writing, by which text reads otherwise
# than it is; Unicode's ends of lines and paragraphs; halves of surrogates, which are no characters.
_UNSEEN = "\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINE = re.compile(f"[{_UNSEEN}]")
_IN_TEXT = re.compile(f"(?![\n\t])[{_UNSEEN}]")


def printable(text: str) -> str:
    """Text that may have several lines, with control characters escaped except line ends and
    tabs."""
    return text if text.isascii() and text.isprintable() else _IN_TEXT.sub(_escaped, text)


def one_line(text: str) -> str:
    """Text escaped so that it prints in one line; line ends and tabs are escaped too."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escaped, text)


MOST_NAME = 256
"""Characters of a file's name that a message shows."""


def shortened(name: str) -> str:
    """A file's name for a message: of a very long one the beginning and the end, in one line."""
    half = MOST_NAME // 2
    return one_line(name if len(name) <= MOST_NAME else f"{name[:half]}...{name[-half:]}")


def of_facts(facts: Any) -> Any:
    """Facts as JSON values; `one_line` escapes keys and texts."""
    if isinstance(facts, str):
        return one_line(facts)
    if isinstance(facts, Mapping):
        return {of_facts(key): of_facts(value) for key, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [of_facts(value) for value in facts]
    return facts


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class AotError(Exception):
    """Base of every error that `aot` raises on purpose."""


class CompileError(AotError):
    """The user's model or options are wrong. The message names the node, the rule, and what was
    expected and found.

    Args:
        summary: the message, in one line: a model's names are escaped where they would end it.
        lines: what stands below it.
    """

    def __init__(self, summary: str = "", lines: Sequence[str] = ()) -> None:
        super().__init__("\n  ".join(map(one_line, (summary, *lines))))


class UnsupportedError(AotError):
    """The model needs something that the compiler does not support; lists all such things at once.

    Attributes:
        items: one line per unsupported thing, in model order.
    """

    def __init__(self, summary: str, items: Sequence[str]) -> None:
        self.items = tuple(map(one_line, items))
        super().__init__("\n  ".join([one_line(summary), *self.items]))


class InternalError(AotError):
    """A bug of the compiler: one of its invariants does not hold."""


class RuntimeFailure(AotError):
    """The runtime refused a module, an input or a device; the message is the runtime's own.

    Attributes:
        status: name of the `aot_status_t` code, such as `"invalid_argument"`.
    """

    def __init__(self, message: str, status: str = "internal") -> None:
        self.status = status
        super().__init__(message)


class TemplateWarning(UserWarning):
    """A module does not keep its model's chat template, which uses what a module can't keep."""


class PrefixWarning(UserWarning):
    """A module has no state of its prefix for a variant, or only of the prefix's beginning, and
    programs compute the rest."""


class ProofWarning(UserWarning):
    """A dispatch, or a kernel with dynamic extents, was not proved to stay inside its memory. That
    is a weakness of the compiler; the code is compiled all the same."""


class BoundWarning(UserWarning):
    """A data-dependent extent without an upper bound got one from a rule."""


class AdviceWarning(UserWarning):
    """An optional result of a compile, such as a note or a figure, failed by a bug of the compiler.
    The module is not affected.

    Attributes:
        subject: what is missing.
        error: what went wrong.
    """

    def __init__(self, subject: str, error: Exception) -> None:
        self.subject, self.error = subject, error
        text = " ".join(str(error).split()) or "no message"
        super().__init__(f"{subject} is left out: {type(error).__name__}: {text}{_place(error)}")


def _place(error: Exception) -> str:
    """The file and line that raised an error; "" if unknown."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"


@contextmanager
def advice(subject: str, *, writes: bool = False) -> Iterator[None]:
    """Turns a failure of the `with` block into an `AdviceWarning`, which is an error in the tests.

    A variable that the block assigns needs a value before it: that is what remains if it fails.

    Args:
        subject: what is missing then, for the warning: "the list of missed merges".
        writes: whether the block writes a file that the user has named.

    Raises:
        CompileError: with `writes`, the file can't be written.
    """
    try:
        yield
    except Exception as error:
        if writes and isinstance(error, CompileError):
            raise
        warnings.warn(AdviceWarning(subject, error), stacklevel=3)


class CacheWarning(UserWarning):
    """The cache of compiled code cannot be used; the compile continues and takes longer."""


class TuningWarning(UserWarning):
    """A candidate cannot be measured, or a measurement cannot be used; the planned choice stays."""
