"""What of a Vulkan variant its host runs: which CPU that is, and which executables.

Owns the two questions, and what is told of the answers. An executable is the host's if the target
can't run one of its ops, if the kernel breaks one of the target's limits, or if a lane would be so
long at it that drivers give up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot.analysis.control import control_ops
from aot.analysis.dispatches import dispatches_of, executable_of, is_dispatch
from aot.analysis.memory.alignment import operand_alignments
from aot.analysis.on_host import why_on_host
from aot.errors import UnsupportedError
from aot.ir import dims
from aot.ir.bounds import bounds_of
from aot.ir.dims import Dim, DimExpr, Interval
from aot.ir.graph import Function, Module
from aot.ir.record import Kind
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lower.lowering import lower, root_of
from aot.kernels.lower.steps import lane_steps
from aot.link.image import EntryPointImage
from aot.link.program import decode
from aot.target.model import Target

# Iterations that a lane may go through along a line. lavapipe ends a lane's loops after so many,
# without a word; a GPU that needs a microsecond for each shows nothing else for that long.
MOST_STEPS = 65535
# What an extent without a bound counts as, by kinds of ops that go along lines: what is sorted may
# well be that long.
UNKNOWN = {Kind.SORT: 1 << 16, Kind.SCAN: 1 << 12, Kind.SCATTER: 1 << 12}


class Rounds:
    """Targets to build variants for, each with its host: one variant for each architecture that
    there is a host of, if a host has anything to run."""

    def __init__(self, wanted: Sequence[Target]) -> None:
        self._wanted = wanted
        self._hosts = hosts_of(wanted)
        self._uses_host = False
        self.is_last = False

    def __iter__(self) -> Iterator[tuple[Target, Target | None]]:
        for target in self._wanted:
            hosts = (None,) if target.is_cpu or not self._hosts else self._hosts
            self._uses_host = False
            for host in hosts:
                self.is_last = target is self._wanted[-1] and host is hosts[-1]
                yield target, host
                if not self._uses_host:
                    break

    def built(self, *, uses_host: bool) -> None:
        """Is told whether the host of this round has anything to run."""
        self._uses_host = uses_host


def hosts_of(wanted: Sequence[Target]) -> tuple[Target, ...]:
    """For each architecture the CPU target that asks least of a CPU, in their order."""
    by_arch: dict[tuple[str, int], list[Target]] = {}
    for target in wanted:
        if target.is_cpu:
            by_arch.setdefault((target.arch, target.word_bytes), []).append(target)
    return tuple(_least(found) for found in by_arch.values())


def _least(found: Sequence[Target]) -> Target:
    for target in reversed(found):
        if all(set(target.features) <= set(other.features) for other in found):
            return target
    return found[-1]


@dataclass
class Hosting:
    """The executables of a variant, and who runs them.

    Attributes:
        why: why the host runs an executable, by name.
        kernels: of the executables, in order, for whoever runs them.
    """

    module: Module
    target: Target
    host: Target | None
    why: dict[str, str] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)

    @staticmethod
    def of(module: Module, target: Target, host: Target | None) -> Hosting:
        """Kernels of a module whose functions are outlined; what only code generation finds is
        still to come, see `give`."""
        made = Hosting(module, target, None if target.is_cpu else host)
        extents = _largest_dims(module)
        alignments = {} if target.is_cpu else operand_alignments(module)
        for function in module.executables:
            why = made.why_by_type(function)
            known = alignments.get(function.name, ())
            kernel = made._lowered(function, why) if why else lower(function, target, known)
            if made.host is not None and not why:
                why = _why_too_long(function, kernel, extents.get(function.name, {}))
                kernel = made._lowered(function, why) if why else kernel
            made.kernels.append(kernel)
        return made

    def why_by_type(self, function: Function) -> str:
        """Why the types of an executable are not for the target; "" where they are."""
        if self.host is None:
            return ""
        return next(filter(None, (why_on_host(op, self.target) for op in function.block)), "")

    def give(self, number: int, why: str) -> bool:
        """Gives an executable to the host; False where there is none."""
        function = self.module.executables[number]
        if self.host is None:
            self.why[function.name] = why
            return False
        self.kernels[number] = self._lowered(function, why)
        return True

    def _lowered(self, function: Function, why: str) -> Kernel:
        self.why[function.name] = why
        function.tiles = ()  # those of the target
        return lower(function, self.host or self.target)

    def refuse(self) -> None:
        """Refuses what there is no host for.

        Raises:
            UnsupportedError: lists all of it.
        """
        if self.host is None and self.why:
            lines = [f"{line.op} ({line.where}): {line.why}" for line in self.launches()]
            raise UnsupportedError(
                f"target {self.target.name} can't run these; add a --target for the CPU, which "
                "then runs them in the same program:",
                list(dict.fromkeys(lines)),
            )

    def launches(self) -> Iterator[HostLaunch]:
        """The dispatches that the host runs."""
        executables = {f.name: f for f in self.module.executables}
        for op, name in dispatches_of(self.module):
            if name in self.why:
                yield HostLaunch(root_of(executables[name]).name, op.origin, name, self.why[name])

    def section(self, entries: Sequence[EntryPointImage]) -> dict[str, Any] | None:
        """What the statistics say of it; None where the host has nothing to run."""
        if self.host is None or not self.why:
            return None
        launches = list(self.launches())
        copies = Counter(i.name for e in entries for i in decode(e.program.code))
        return {
            "target": self.host.name,
            "executables": len(self.why),
            "dispatches": len(launches),
            "copies": {"to_host": copies["TO_HOST"], "to_device": copies["TO_DEVICE"]},
            "because": [
                {"op": launch.op, "node": launch.node, "executable": launch.executable}
                | {"why": launch.why}
                for launch in launches
            ],
        }


@dataclass(frozen=True)
class HostLaunch:
    """A dispatch that the host runs.

    Attributes:
        op: the heaviest op of the executable.
        node: the model's node, if it is known.
    """

    op: str
    node: str
    executable: str
    why: str

    @property
    def where(self) -> str:
        return f"node {self.node!r}" if self.node else f"executable {self.executable}"


def _largest_dims(module: Module) -> dict[str, dict[str, Interval]]:
    """Bounds of the dim parameters of each executable, over all of its dispatches."""
    found: dict[str, dict[str, Interval]] = {}
    names = {f.name: f.dim_names for f in module.executables}
    for function in module.entry_points:
        known = bounds_of(function.assumptions)
        for op in control_ops(function):
            if not is_dispatch(op):
                continue
            values = op.attrs.get("dims", ())
            assert isinstance(values, tuple)
            own = found.setdefault(executable_of(op), {})
            for name, value in zip(names[executable_of(op)], values, strict=True):
                assert isinstance(value, int | DimExpr)
                _, high = dims.bounds(value, known)
                _, before = own.get(name, (0, 0))
                most = None if high is None or before is None else max(high, before)
                own[name] = (0, most)
    return found


def _why_too_long(function: Function, kernel: Kernel, known: Mapping[str, Interval]) -> str:
    unknown = UNKNOWN.get(root_of(function).record.kind)
    if unknown is None:
        return ""  # lanes share the work, however much it is

    def extent_of(dim: Dim) -> int:
        _, high = dims.bounds(dim, known)
        return unknown if high is None else high

    steps = lane_steps(kernel, extent_of)
    if steps <= MOST_STEPS:
        return ""
    return f"a lane would go through {steps:,} iterations, and may through {MOST_STEPS:,}"
