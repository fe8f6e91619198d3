"""Kernels of ops at extents by chance: what schedules do at their edges, which samples rarely meet.

The samples of an op's record say which operands and attributes go together; here each of their
extents becomes another one, wherever it stands. What the op's shape rule then refuses is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import aot.ops  # noqa: F401
from aot.analysis.dispatches import dispatches_of
from aot.errors import AotError
from aot.ir.dims import Dim, product
from aot.ir.graph import Module
from aot.ir.record import REGISTRY, OpRecord, Sample
from aot.ir.types import TensorType
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import lower
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.lowering import sample_function
from tests.support.tiny_target import tiny

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 31, 32, 33, 48, 49, 63, 64, 65, 96, 100, 127)
LARGE = (128, 144, 192, 197, 200, 255, 256, 257, 300, 320, 384, 400, 512, 513, 768, 1000, 1024)
MOST = 1 << 24  # elements of an operand


@dataclass(frozen=True)
class Random:
    """A kernel, what it is of, and whether it writes all of its results: none lies where an operand
    does, or has padding."""

    kernel: Kernel
    target: Target
    what: str
    is_whole: bool


def random_kernels(rng: random.Random, names: tuple[str, ...] | None = None) -> Iterator[Random]:
    """Kernels without end, for `targets` by name; by default for all of them, and as often for
    CPUs with tiny caches and scratch."""
    machines = [targets.load(name) for name in names or targets.names()]
    if not names:
        machines += [targets.load(tiny(t.name)) for t in machines if t.gpu is None]
    samples = [(record, sample) for record in REGISTRY.values() for sample in record.samples]
    while True:
        record, sample = rng.choice(samples)
        changed = changed_sample(rng, sample)
        if changed is not None:
            yield from kernels_of(record, changed, rng.choice(machines))


def changed_sample(rng: random.Random, sample: Sample) -> Sample | None:
    """The sample with other extents; None where they are too many."""
    others: dict[Dim, Dim] = {}

    def dim(old: Dim) -> Dim:
        if not isinstance(old, int) or old == 1:
            return old
        if old not in others:
            fresh = rng.choice(LARGE if rng.random() < 0.25 else EXTENTS)
            others[old] = fresh if rng.random() < 0.7 else old
        return others[old]

    operands = tuple(
        None if t is None else TensorType(t.dtype, tuple(map(dim, t.dims)), t.layout)
        for t in sample.operands
    )
    sizes = [product(t.dims) for t in operands if t is not None]
    if any(isinstance(size, int) and size > MOST for size in sizes):
        return None
    return replace(sample, operands=operands)


def module_of(record: OpRecord, sample: Sample) -> Module | None:
    """A sample by itself, outlined; None where the op has no such operands."""
    try:
        function = sample_function(record, sample)
        module = Module([function])
        fuse(function)
        tie_operands(function)
        outline(module)
    except (AotError, AssertionError, ValueError, IndexError):
        return None
    return module


def kernels_of(record: OpRecord, sample: Sample, target: Target) -> Iterator[Random]:
    """The kernels of a sample; none where the op has no such operands."""
    module = module_of(record, sample)
    if module is None:
        return
    types = ", ".join("-" if t is None else str(t) for t in sample.operands)
    tied = {
        name
        for op, name in dispatches_of(module)
        if any(isinstance(tie, int) and tie >= 0 for tie in op.attrs["ties"])  # type: ignore[union-attr]
    }
    for executable in module.executables:
        what = f"{record.name}({types}) {dict(sample.attrs)} for {target.name}"
        is_padded = any(v.type.layout is not None for v in executable.results)
        is_whole = not is_padded and executable.name not in tied
        yield Random(lower(executable, target), target, what, is_whole)
