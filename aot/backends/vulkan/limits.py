"""Checks kernels against a target's limits: which are refused, and why. Defines no limit."""

from __future__ import annotations

from aot.errors import InternalError


class LimitError(InternalError):
    """A kernel needs more than the target has; another device may run it.

    Attributes:
        what: what it needs and what there is.
    """

    def __init__(self, kernel: str, what: str) -> None:
        super().__init__(f"kernel {kernel}: {what}")
        self.what = what
