"""The three ways a compile can fail, and the runtime's own failures as seen from Python.

The user's mistake (`CompileError`), what we do not support (`UnsupportedError`) and our own bug
(`InternalError`) never mix: the first two are one clear message, the third asks for a report.
"""

from __future__ import annotations

from collections.abc import Sequence


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


class CacheWarning(UserWarning):
    """Compiled code is not kept or not found; the compile goes on and takes longer."""


class TuningWarning(UserWarning):
    """Something cannot be measured, or what was measured not be used: the plan's choice stays."""
