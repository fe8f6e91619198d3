"""The CPU fallback of a Vulkan variant: its CPU target, and the executables that run there.

Owns both decisions and their statistics; `aot/driver/kernels.py` lowers by them. The CPU runs an
executable if the Vulkan target cannot run one of its ops, if the kernel exceeds a limit of the
target, or if a lane would execute more loop iterations than drivers allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import count
from typing import Any

from aot.analysis.control import control_ops
from aot.analysis.cpu_fallback import why_on_cpu
from aot.analysis.dispatches import (
    dims_of_dispatch,
    dispatches_of,
    executable_of,
    is_dispatch,
    where,
)
from aot.base.records import dataclass
from aot.errors import UnsupportedError
from aot.ir import dims
from aot.ir.assumed_extents import ALONG_A_LINE, SORTED
from aot.ir.bounds import bounds_of
from aot.ir.clone import clone_function
from aot.ir.dims import Dim, Interval
from aot.ir.graph import Function, FunctionRef, Module, Op
from aot.ir.record import Kind
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import Unrolled, root_of
from aot.kernels.nest.steps import lane_iterations
from aot.link.image import EntryPointImage
from aot.link.program import decode
from aot.target.model import Target

# What a symbol without a bound counts as, by kinds of ops that go along lines. Lanes share the work
# of other kinds, so that those stay on the GPU, where the program checks how long a lane would be
# at it.
UNKNOWN = {Kind.SORT: SORTED, Kind.SCAN: ALONG_A_LINE, Kind.SCATTER: ALONG_A_LINE}


class VariantPlan:
    """The variants to build: each target with its host CPU, if any. A target with work for the host
    gets one variant per host architecture."""

    def __init__(self, wanted: Sequence[Target]) -> None:
        self._wanted = wanted
        self._hosts = hosts_of(wanted)
        self._uses_host = False
        self.is_last = False

    def __iter__(self) -> Iterator[tuple[Target, Target | None]]:
        for target in self._wanted:
            hosts = self._hosts if target.has_cpu_fallback and self._hosts else (None,)
            self._uses_host = False
            for host in hosts:
                self.is_last = target is self._wanted[-1] and host is hosts[-1]
                yield target, host
                if not self._uses_host:
                    break

    def built(self, *, uses_host: bool) -> None:
        """Records whether the variant just built uses its host."""
        self._uses_host = uses_host


def hosts_of(wanted: Sequence[Target]) -> tuple[Target, ...]:
    """For each architecture, in order of first mention, the CPU target with the lowest
    requirements.
    """
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
class CpuFallback:
    """Decides, for the executables of a variant, whether the target or the host CPU runs them.

    Attributes:
        why: why the host runs an executable, by name.
    """

    module: Module
    target: Target
    host: Target | None
    why: dict[str, str] = field(default_factory=dict)

    def apart(self, function: Function, iterations: Dim) -> Function | None:
        """Adds a copy of an executable for those of its dispatches whose lanes iterate too often;
        None if that applies to all of its dispatches, or to none.
        """
        assert self.target.gpu is not None
        most, name = self._most_iterations(function, iterations), function.name
        is_long = [n > self.target.gpu.max_lane_iterations for n in most]
        if all(is_long) or not any(is_long):
            return None
        made = clone_function(function)
        names = (f"e{n}" for n in count(len(self.module.executables)))
        made.name = next(n for n in names if n not in self.module.functions)
        self.module.add(made)
        for (op, _, _), is_its in zip(self._dims[name], is_long, strict=True):
            if is_its:
                op.attrs["executable"] = FunctionRef(made.name)
        del self._dims
        return made

    def may_be_too_long(self, kernel: Kernel, unrolled: Unrolled) -> bool:
        """Whether a lane may exceed its iteration limit for some extents known only at run time."""
        if self.target.gpu is None or isinstance(lane_iterations(kernel), int):
            return False
        iterations = lane_iterations(kernel, unrolled(kernel))
        for _, values, known in self._dims.get(kernel.name, ()):
            _, high = dims.bounds(dims.substitute(iterations, values), known)
            if high is None or high > self.target.gpu.max_lane_iterations:
                return True
        return False

    def why_by_type(self, function: Function) -> str:
        """Why the target cannot run an executable because of its dtypes; "" if it can."""
        if self.host is None:
            return ""
        return next(filter(None, (why_on_cpu(op, self.target) for op in function.block)), "")

    def why_too_long(self, name: str, iterations: Dim) -> str:
        """Why an executable has too many loop iterations per lane for the target; "" if it has not.

        Where the inputs' extents decide it, the host has what may be too long if it is there, and
        the program checks it if not.
        """
        assert self.target.gpu is not None
        limit, function = self.target.gpu.max_lane_iterations, self.module.functions[name]
        most = max(self._most_iterations(function, iterations), default=0)
        if most <= limit:
            return ""
        return f"a lane would go through {most:,} iterations, and may through {limit:,}"

    def _most_iterations(self, function: Function, iterations: Dim) -> list[int]:
        """The largest number of iterations of a lane, for each dispatch of an executable."""
        unknown = UNKNOWN.get(root_of(function).record.kind)
        most = []
        for _, values, known in self._dims.get(function.name, ()):
            here = dims.substitute(iterations, values)
            low, high = dims.bounds(here, known)
            if high is None and unknown is not None:
                _, high = dims.bounds(here, _assumed(here, known, unknown))
            most.append((low or 0) if high is None or self.host is None else high)
        return most

    @cached_property
    def _dims(self) -> dict[str, list[_Dims]]:
        """The dispatches of each executable, with their dim arguments and the bounds of their
        symbols."""
        return _dims_of_dispatches(self.module)

    def runner_of(self, function: Function) -> Target:
        """The target, or the host if that runs the executable."""
        is_hosted = function.name in self.why and self.host is not None
        return self.host if is_hosted else self.target  # type: ignore[return-value]

    def refuse(self) -> None:
        """Raises an error if executables need a host and there is none.

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
        """The dispatches that run on the host."""
        executables = {f.name: f for f in self.module.executables}
        for op, name in dispatches_of(self.module):
            if name in self.why:
                yield HostLaunch(root_of(executables[name]).name, op.origin, name, self.why[name])

    def section(self, entries: Sequence[EntryPointImage]) -> dict[str, Any] | None:
        """The statistics of the CPU fallback; None if the CPU runs nothing."""
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
    """A dispatch that runs on the host.

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
        return where(self.node, self.executable)


_Dims = tuple[Op, dict[str, Dim], dict[str, Interval]]


def _dims_of_dispatches(module: Module) -> dict[str, list[_Dims]]:
    found: dict[str, list[_Dims]] = {}
    names = {f.name: f.dim_names for f in module.executables}
    for function in module.entry_points:
        known = bounds_of(function.assumptions)
        for op in control_ops(function):
            if is_dispatch(op):
                name = executable_of(op)
                found.setdefault(name, []).append((op, dims_of_dispatch(op, names[name]), known))
    return found


def _assumed(dim: Dim, known: Mapping[str, Interval], unknown: int) -> dict[str, Interval]:
    """Bounds of the dim's symbols, with `unknown` for a symbol without an upper bound."""
    found = {name: known.get(name, (0, None)) for name in dims.symbols(dim)}
    return {n: (low, unknown if high is None else high) for n, (low, high) in found.items()}
