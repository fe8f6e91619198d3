"""The three ways a compile can fail, what may not fail it, and the runtime's own failures.

The user's mistake (`CompileError`), what we do not support (`UnsupportedError`) and our own bug
(`InternalError`) never mix: the first two are one clear message, the third asks for a report.
What a compile tells of itself, such as notes, remarks, the ledger and reports, is needed by no
module: it is computed under `advice`, where our bug is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class AotError(Exception):
    """Base of every error that `aot` raises on purpose."""


class CompileError(AotError):
    """The user's model or options are wrong; the message names node, rule, expected and found."""


class UnsupportedError(AotError):
    """The model needs what we do not have; lists everything that is missing, at once.

    Attributes:
        items: one line per unsupported thing, in model order.
    """

    def __init__(self, summary: str, items: Sequence[str]) -> None:
        self.items = tuple(items)
        super().__init__("\n  ".join([summary, *self.items]))


class InternalError(AotError):
    """Our bug: an invariant of the compiler does not hold."""


class RuntimeFailure(AotError):
    """The runtime refused a module, an input or a device; the message is the runtime's own.

    Attributes:
        status: name of the `aot_status_t` code, such as `"invalid_argument"`.
    """

    def __init__(self, message: str, status: str = "internal") -> None:
        self.status = status
        super().__init__(message)


class AdviceWarning(UserWarning):
    """Something that a compile tells of itself could not be computed, which is our bug; the module
    is as it would be.

    Attributes:
        subject: what is missing.
        error: what went wrong.
    """

    def __init__(self, subject: str, error: Exception) -> None:
        self.subject, self.error = subject, error
        text = " ".join(str(error).split()) or "no message"
        super().__init__(f"{subject} is left out: {type(error).__name__}: {text}{_place(error)}")


def _place(error: Exception) -> str:
    """File and line that raised an error; "" where that is not known."""
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
    """Compiled code is not kept or not found; the compile goes on and takes longer."""


class TuningWarning(UserWarning):
    """Something cannot be measured, or what was measured not be used: the plan's choice stays."""
