"""The observer protocol, through which reports receive the decisions of a compile.

Calls go one way: nothing that an observer does changes a module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aot.analysis.launches import Launch
from aot.driver.clock import Span
from aot.ir.graph import Module
from aot.kernels.ir.nodes import Kernel
from aot.link.emit_program import EmittedProgram
from aot.passes.base import PassContext


class VariantObserver(Protocol):
    """Receives the decisions of one variant."""

    def formed(self, module: Module, context: PassContext) -> None:
        """Called when the regions are formed; `context.remarks` says why each ends."""

    def built(
        self,
        module: Module,
        context: PassContext,
        kernels: Sequence[Kernel],
        programs: Sequence[EmittedProgram],
        launches: Sequence[tuple[Launch, ...]],
    ) -> None:
        """Called with a finished variant: the kernels of its dispatches, in the order of the
        module's executables, and its programs.
        """

    def timed(self, target: str, spans: Sequence[Span]) -> None:
        """Called last, with the stages of the model and of the variant, as they ended."""


class Observer(Protocol):
    """Receives the decisions of one compile."""

    def variant(self) -> VariantObserver:
        """The observer of the next variant."""
