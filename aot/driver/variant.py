"""Builds a variant's image from its outlined module: kernels, code, program.

The stages after the passes, each once and measured. Owns their order and the statistics of a
variant, and no algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aot.analysis.cost.group_prices import group_prices
from aot.analysis.dispatches import dispatched
from aot.analysis.launches import Launch, launches_of
from aot.analysis.memory.storage import ARENA, INPUTS, OUTPUTS
from aot.analysis.needs import needs_of_function
from aot.backends.code import Code
from aot.backends.registry import Backend, Backends
from aot.driver.clock import Clock
from aot.driver.kernels import Kernels
from aot.driver.ledger import level_stats
from aot.driver.missed_merges import Settings, missed_merges
from aot.driver.observer import VariantObserver
from aot.driver.proofs import FEATURE, Proofs
from aot.errors import advice
from aot.ir.graph import Module
from aot.kernels.ir.nodes import BufferClass
from aot.kernels.lowering import root_of
from aot.link.class_sizes import ClassSize, class_sizes
from aot.link.code_image import ImageParts
from aot.link.emit_program import EmittedProgram, Entry, emit_program
from aot.link.finish import finish_module
from aot.link.image import (
    Arch,
    EntryPointImage,
    ExecutableImage,
    HostImage,
    ModuleImage,
    VariantImage,
)
from aot.link.rodata import RodataPool
from aot.options import CompileOptions, Progress, no_progress
from aot.passes.base import PassContext
from aot.target.model import Target


class VariantBuilder:
    """The state that the variants of one compile share; a context manager.

    Attributes:
        rodata: the constants of all variants.
        parts: of each variant's code image, in order.
    """

    def __init__(self, options: CompileOptions, progress: Progress) -> None:
        self.rodata = RodataPool(shares=options.is_enabled("share-constants"))
        self.parts: list[ImageParts | None] = []
        self._options = options
        self._progress = progress
        self._backends = Backends(options)

    def __enter__(self) -> VariantBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        self._backends.__exit__(*error)

    def expect(self, source: Any, wanted: Sequence[Target]) -> None:
        """Announces a model to the backends before it is read, so that they can prepare."""
        for target in {t.device: t for t in wanted}.values():
            self._backends.of(target).expect(source)

    def variant(
        self,
        module: Module,
        outlined: Sequence[str],
        context: PassContext,
        clock: Clock,
        observer: VariantObserver | None = None,
    ) -> tuple[VariantImage, dict[str, Any]]:
        """(image, statistics section) of a module after its target's passes.

        Executables become code, functions programs. Those whose code is equal are one of the
        image. `outlined` is the executable of each dispatch as outlining left them.
        """
        target = context.target
        assert target is not None
        backend = self._backends.of(target)
        self._progress("kernels", 0, len(module.executables))
        with clock.stage("kernels"):
            made = Kernels.of(module, target, context.host, backend.unrolled, backend.begin)
        proofs = Proofs(module, self._backends.cache)
        with clock.stage("proofs"):
            self._prove(proofs, made)
        with clock.stage("codegen"):
            code = self._code(made)
        with clock.stage("proofs"):
            self._prove(proofs, made)  # of what code generation gave to the host
        functions, kernels, fallback = module.executables, made.made, made.fallback
        self._progress("link", 0, 0)
        with clock.stage("link"):
            kept: dict[ExecutableImage, int] = {}
            numbers = [kept.setdefault(replace(e, name=""), len(kept)) for e in code.executables]
            names = dict(zip(reversed(numbers), (f.name for f in reversed(functions)), strict=True))
            limits = target.gpu
            most_iterations = None if limits is None else limits.max_lane_iterations
            entries = {
                f.name: Entry(
                    *(n, k.grid, f.dim_names, e.scratch_bytes if backend.scratch_in_arena else 0),
                    is_cpu_fallback=f.name in fallback.why,
                    iterations=code.iterations.get(f.name, 0),
                    most_iterations=most_iterations,
                    root=root_of(f).name,
                    needs=needs_of_function(f),
                )
                for f, k, n, e in zip(functions, kernels, numbers, code.executables, strict=True)
            }
            programs = [
                emit_program(f, entries, self.rodata, is_overlapping=backend.overlaps_dispatches)
                for f in module.entry_points
            ]
            classes: Mapping[int, ClassSize] = {}
            if target.gpu is not None:
                classes = class_sizes(module.entry_points, programs, self.rodata)
            windowed = backend.windowed(classes)
        if windowed:
            with clock.stage("codegen"):
                code = self._code(made, windowed)
        with clock.stage("link"):
            distinct = dict(zip(reversed(numbers), reversed(code.executables), strict=True))
            launches: list[tuple[Launch, ...]] = [() for _ in module.entry_points]
            prices: dict[int, int] = {}
            with advice("what each dispatch computes and moves"):
                launches = [launches_of(f, module) for f in module.entry_points]
                prices = _prices(module, launches, entries, target)
        if observer is not None:
            with advice("what a report says of dispatches and buffers"):
                observer.built(module, context, kernels, programs, launches)
        variant = VariantImage(
            target.name,
            backend.device,
            Arch[target.arch.upper()],
            target.word_bytes,
            tuple(
                replace(e, name=names[n], group_ns=0 if e.spirv is None else prices.get(n, 0))
                for n, e in sorted(distinct.items())
            ),
            tuple(
                replace(_placing_scratch(p.entry_point, backend), launches=found)
                for p, found in zip(programs, launches, strict=True)
            ),
            (*target.features, *code.features),
            code.image,
            target.page_bytes if code.host is None else code.host.page_bytes,
            _limits(code, programs, backend, {c.value: classes[c.value].largest for c in windowed}),
            None if code.host is None else _host_image(code.host),
        )
        self.parts.append(code.parts)
        section = _section(module, outlined, programs, code, clock, context)
        section["proofs"] = proofs.section()
        with advice("what the CPU runs beside the GPU"):
            hosted = fallback.section(variant.entry_points)
            if hosted is not None:
                section["cpu_fallback"] = hosted
        if not self._options.strip or observer is not None:  # for the notes, or for a report
            sizes = dict(zip([f.name for f in functions], code.emitted.sizes, strict=True))
            options = self._options
            settings = Settings(options.optimize, options.is_enabled("despecialise"))
            with advice("the list of missed merges"):
                section["missed_merges"] = missed_merges(module, sizes, target, settings)
        return variant, section

    def _prove(self, proofs: Proofs, kernels: Kernels) -> None:
        """Proves the kernels of a variant that have no proof yet."""
        if not self._options.is_enabled(FEATURE):
            return
        fallback = kernels.fallback
        for function, kernel in zip(fallback.module.executables, kernels.made, strict=True):
            proofs.prove(function, kernel, fallback.runner_of(function))

    def _code(self, kernels: Kernels, windowed: frozenset[BufferClass] = frozenset()) -> Code:
        """The code of all executables, in order: the target's, and the host's for those that the
        target cannot run."""
        fallback = kernels.fallback
        backend = self._backends.of(fallback.target)
        own = [k for k in kernels.made if k.name not in fallback.why]
        why = fallback.why_too_long
        code = backend.compile(own, fallback.target, self._progress, why, windowed)
        for number, kernel in enumerate(kernels.made):
            if kernel.name in code.refused:
                kernels.give(number, code.refused[kernel.name])
        fallback.refuse()
        if fallback.host is None or not fallback.why:
            return code
        given = [k for k in kernels.made if k.name in fallback.why]
        other = self._backends.of(fallback.host).compile(given, fallback.host, self._progress)
        made = {e.name: e for e in code.executables}
        made |= {e.name: replace(e, why_on_cpu=fallback.why[e.name]) for e in other.executables}
        sizes = {
            e.name: size
            for c in (code, other)
            for e, size in zip(c.executables, c.emitted.sizes, strict=True)
        }
        names = [k.name for k in kernels.made]
        return replace(
            other,
            executables=tuple(made[name] for name in names),
            emitted=code.emitted.with_(other.emitted, tuple(sizes[name] for name in names)),
            limits=code.limits,
            features=code.features,
            host=fallback.host,
            iterations=code.iterations,
        )


def build_image(module: Module, target: Target, options: CompileOptions) -> ModuleImage:
    """The image of a module with outlined functions, with one variant and no notes."""
    with VariantBuilder(options, no_progress) as builder:
        context = PassContext(options, target)
        variant, _ = builder.variant(module, dispatched(module), context, Clock())
        image, _ = finish_module([variant], builder.parts, builder.rodata, "aotc tune", None)
    return image


def _prices(
    module: Module,
    launches: Sequence[Sequence[Launch]],
    entries: Mapping[str, Entry],
    target: Target,
) -> dict[int, int]:
    """Nanoseconds of a workgroup on a GPU by the number of its executable; none on a CPU."""
    if target.gpu is None:
        return {}
    grids = {name: (entry.grid, entry.dim_names) for name, entry in entries.items()}
    found: dict[int, int] = {}
    for name, price in group_prices(module.entry_points, launches, grids, target.gpu).items():
        number = entries[name].number
        found[number] = max(found.get(number, 0), price)
    return found


def _limits(
    code: Code,
    programs: Sequence[EmittedProgram],
    backend: Backend,
    windowed: Mapping[int, int],
) -> tuple[tuple[str, int], ...]:
    """The device limits that the shaders, and the buffers of every run, require; of the classes
    `windowed` that is their largest operand."""
    sizes = [0, *windowed.values()]
    for program in programs:
        buffers = zip(_OF_A_RUN, _least_buffers(program.entry_point), strict=True)
        sizes += [size for number, size in buffers if number not in windowed]
    return tuple(sorted((*code.limits, *backend.limits_of_buffers(max(sizes)))))


_OF_A_RUN = (ARENA, INPUTS, OUTPUTS)


def _least_buffers(entry: EntryPointImage) -> tuple[int, int, int]:
    """(arena bytes, input bytes, output bytes) that every run needs at least. Tensors with dynamic
    extents count as 0."""
    inputs, outputs = (
        sum(t.least_bytes for t in tensors) for tensors in (entry.inputs, entry.outputs)
    )
    return entry.program.arena_bytes, inputs, outputs


def _host_image(host: Target) -> HostImage:
    return HostImage(host.name, Arch[host.arch.upper()], host.word_bytes, host.features)


def _placing_scratch(entry: EntryPointImage, backend: Backend) -> EntryPointImage:
    """The entry point with scratch placed where the backend wants it: in the arena, or in
    per-worker memory.
    """
    if backend.scratch_in_arena:
        return entry
    return replace(entry, program=replace(entry.program, scratch_offset=None))


def _section(
    module: Module,
    outlined: Sequence[str],
    programs: Sequence[EmittedProgram],
    code: Code,
    clock: Clock,
    context: PassContext,
) -> dict[str, Any]:
    names = [f.name for f in module.executables]
    seconds = clock.seconds.get("kernels", 0.0) + clock.seconds.get("codegen", 0.0)
    final = dispatched(module)
    levels = level_stats(outlined, final, names, code.emitted, seconds, context.code_estimate)
    spirv = {s for e in code.executables for s in e.shaders}
    made = [p.entry_point.program for p in programs]
    is_placed = all(p.entry_point.program.scratch_offset is not None for p in programs)
    own = [e.scratch_bytes for e in code.executables if code.host is None or e.spirv is None]
    scratch = 0 if is_placed and code.host is None else max(own, default=0)
    return {
        "dispatches": sum(p.dispatches for p in programs),
        "executables": levels,
        **code.objects,
        "code_bytes": len(code.image) + sum(map(len, spirv)),
        "arena_bytes": sum(p.arena_bytes for p in programs) + scratch,
        "arena_symbolic_buffers": sum(len(p.buffers) for p in made if p.arena_bound_bytes is None),
        "arena_lower_bound_bytes": sum(p.lower_bound_bytes for p in programs),
        "seconds": {k: round(v, 6) for k, v in clock.seconds.items()},
    }
