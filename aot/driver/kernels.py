"""Lowers the executables of a variant to kernels, for the target or the host, and records the rules
used.

Owns which executables are lowered again, by two ways or for the host. Must not decide who runs
what, which the CPU fallback does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field

from aot.analysis.memory.alignment import buffer_alignments
from aot.analysis.stages import planned
from aot.base.records import dataclass
from aot.driver.cpu_fallback import CpuFallback
from aot.ir.graph import Function, Module
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import Unrolled, lower, recorded
from aot.kernels.nest.steps import lane_iterations
from aot.target.model import Target


@dataclass
class Kernels:
    """The kernels of a module's executables, in order, each for the target or the host."""

    fallback: CpuFallback
    made: list[Kernel] = field(default_factory=list)

    @staticmethod
    def of(
        module: Module,
        target: Target,
        host: Target | None,
        unrolled: Unrolled,
        begin: Callable[[Kernel, Target], None] | None = None,
    ) -> Kernels:
        """The kernels of a module with outlined functions. Each kernel of the target is passed to
        `begin` as soon as it is lowered; refusals by code generation come later, see `give`.

        The executables' schedules have the rules that built them from then on.
        """
        fallback = CpuFallback(module, target, host if target.has_cpu_fallback else None)
        kernels = Kernels(fallback)
        alignments = buffer_alignments(module) if target.has_workgroups else {}
        waiting = deque(module.executables)
        while waiting:
            function = waiting.popleft()
            why = fallback.why_by_type(function)
            known = alignments.get(function.name, ())
            kernel = kernels._hosted(function, why) if why else lower(function, target, known)
            if not why and fallback.may_be_too_long(kernel, unrolled):
                kernel = lower(function, target, known, unrolled=unrolled)
                apart = fallback.apart(function, lane_iterations(kernel, unrolled(kernel)))
                if apart is not None:
                    alignments[apart.name] = known
                    waiting.append(apart)
            kernels.made.append(kernel)
            if why:
                continue
            function.schedule = recorded(function, kernel)
            if begin is not None:
                begin(kernel, target)
        return kernels

    def give(self, number: int, why: str) -> bool:
        """Moves an executable to the host and returns True; returns False if there is no host."""
        function = self.fallback.module.executables[number]
        if self.fallback.host is None:
            self.fallback.why[function.name] = why
            return False
        self.made[number] = self._hosted(function, why)
        return True

    def _hosted(self, function: Function, why: str) -> Kernel:
        """Lowers an executable for the host, or for the target if there is no host."""
        self.fallback.why[function.name] = why
        runner = self.fallback.host or self.fallback.target
        function.schedule = planned(function, runner)  # it had the target's
        kernel = lower(function, runner)
        function.schedule = recorded(function, kernel)
        return kernel
