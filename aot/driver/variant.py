"""From a variant's outlined module to its image: kernels, code, the program.

The stages after the passes, each once and measured. Owns their order and the statistics of a
variant, and no algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aot.analysis.dispatches import dispatched
from aot.analysis.launches import launches_of
from aot.driver.clock import Clock
from aot.driver.cpu_fallback import Hosting
from aot.driver.ledger import Emitted, level_stats
from aot.driver.near_misses import Settings, near_misses
from aot.driver.observer import VariantObserver
from aot.ir.dims import Dim
from aot.ir.graph import Function, Module
from aot.kernels.ir.nodes import Kernel
from aot.link.code_image import ImageParts
from aot.link.emit_program import EmittedProgram, Entry, emit_program
from aot.link.finish import finish_module
from aot.link.image import (
    Arch,
    Device,
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

if TYPE_CHECKING:
    from aot.backends.cpu.codegen import CodeMaker
    from aot.backends.vulkan import Shader


_NO_OBJECTS: dict[str, Any] = {"cache": {"hits": 0, "misses": 0}, "llvm_calls": 0}


@dataclass(frozen=True)
class Code:
    """What a backend made of a variant's kernels.

    Attributes:
        image: machine code; empty where executables hold their own.
        executables: one for each kernel.
        emitted: how much code they had, and what of it is kept.
        parts: what the machine code is made of; None where there is none.
        objects: what the cache had and LLVM compiled, by the keys of the statistics.
        limits: what a GPU must have at least.
        features: what it must have beside the target's.
        host: what a GPU's machine code is for; None where all of its executables are shaders.
        iterations: that a lane of a shader makes at most, by executable.
    """

    image: bytes
    executables: tuple[ExecutableImage, ...]
    emitted: Emitted
    parts: ImageParts | None = None
    objects: dict[str, Any] = field(default_factory=lambda: dict(_NO_OBJECTS))
    limits: tuple[tuple[str, int], ...] = ()
    features: tuple[str, ...] = ()
    host: Target | None = None
    iterations: Mapping[str, Dim] = field(default_factory=dict)


class Building:
    """What the variants of one compile share; a context manager.

    Attributes:
        rodata: the constants of all variants.
        parts: of each variant's code image, in order.
    """

    def __init__(self, options: CompileOptions, progress: Progress) -> None:
        self.rodata = RodataPool(shares=options.is_enabled("share-constants"))
        self.parts: list[ImageParts | None] = []
        self._options = options
        self._progress = progress
        self._stack = ExitStack()
        self._maker: CodeMaker | None = None

    def __enter__(self) -> Building:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def expect(self, source: Any, wanted: Sequence[Target]) -> None:
        """Tells of a model that will be compiled, before it is read."""
        if any(target.is_cpu for target in wanted):
            self._code_maker().expect(source, self._options)

    def variant(
        self,
        module: Module,
        outlined: Sequence[str],
        context: PassContext,
        clock: Clock,
        observer: VariantObserver | None = None,
    ) -> tuple[VariantImage, dict[str, Any]]:
        """The image of a module after its target's passes, and its section of the statistics.

        Executables become code, functions programs. Those whose code is equal are one of the
        image. `outlined` is the executable of each dispatch as outlining left them.
        """
        target = context.target
        assert target is not None
        functions = module.executables
        self._progress("kernels", 0, len(functions))
        with clock.stage("kernels"):
            hosting = Hosting.of(module, target, context.host)
        with clock.stage("codegen"):
            if target.is_cpu:
                code = self._cpu_code(hosting.kernels, functions, target)
            else:
                code = self._vulkan_code(hosting)
        kernels = hosting.kernels
        self._progress("link", 0, 0)
        with clock.stage("link"):
            kept: dict[ExecutableImage, int] = {}
            numbers = [kept.setdefault(replace(e, name=""), len(kept)) for e in code.executables]
            names = dict(zip(reversed(numbers), (f.name for f in reversed(functions)), strict=True))
            limits = target.gpu
            most_iterations = None if limits is None else limits.max_lane_iterations
            entries = {
                f.name: Entry(
                    *(n, k.grid, f.dim_names, e.scratch_bytes if target.is_cpu else 0),
                    is_on_host=f.name in hosting.why,
                    iterations=code.iterations.get(f.name, 0),
                    most_iterations=most_iterations,
                )
                for f, k, n, e in zip(functions, kernels, numbers, code.executables, strict=True)
            }
            programs = [
                emit_program(f, entries, self.rodata, is_overlapping=not target.is_cpu)
                for f in module.entry_points
            ]
            launches = [launches_of(f, module) for f in module.entry_points]
        if observer is not None:
            observer.built(module, context, kernels, programs, launches)
        variant = VariantImage(
            target.name,
            Device.CPU if target.is_cpu else Device.VULKAN,
            Arch[target.arch.upper()],
            target.word_bytes,
            tuple(replace(e, name=names[n]) for e, n in kept.items()),
            tuple(
                replace(_placing_scratch(p.entry_point, target), launches=found)
                for p, found in zip(programs, launches, strict=True)
            ),
            (*target.features, *code.features),
            code.image,
            target.page_bytes if code.host is None else code.host.page_bytes,
            code.limits,
            None if code.host is None else _host_image(code.host),
        )
        self.parts.append(code.parts)
        section = _section(module, outlined, programs, code, clock)
        hosted = hosting.section(variant.entry_points)
        if hosted is not None:
            section["on_host"] = hosted
        if not self._options.strip or observer is not None:  # for the notes, or for a report
            sizes = dict(zip([f.name for f in functions], code.emitted.sizes, strict=True))
            options = self._options
            settings = Settings(options.optimize, options.is_enabled("despecialise"))
            section["near_misses"] = near_misses(module, sizes, target, settings)
        return variant, section

    def _code_maker(self) -> CodeMaker:
        if self._maker is None:
            from aot.backends.cpu.codegen import CodeMaker

            self._maker = self._stack.enter_context(CodeMaker.of(self._options))
        return self._maker

    def _cpu_code(
        self, kernels: Sequence[Kernel], functions: Sequence[Function], target: Target
    ) -> Code:
        """Objects, linked into one position-free image."""
        from aot.backends.cpu import scratch_bytes
        from aot.link.code_image import link_image

        objects = self._code_maker().objects(kernels, target, self._progress)
        image = link_image(objects.data, target, [k.name for k in kernels])
        executables = tuple(
            ExecutableImage(f.name, len(k.params), offset, None, scratch_bytes(k, target))
            for f, k, offset in zip(functions, kernels, image.offsets, strict=True)
        )
        counts = {
            "cache": {"hits": objects.hits, "misses": objects.misses},
            "llvm_calls": objects.llvm_calls,
        }
        return Code(image.data, executables, Emitted.of_image(image), image.parts, counts)

    def _vulkan_code(self, hosting: Hosting) -> Code:
        """One shader an executable; equal words are one segment of the file. What the target can't
        run is machine code for its host."""
        from aot.backends.vulkan import LimitError, compile_kernel, requirements

        functions, target = hosting.module.executables, hosting.target
        shaders: dict[str, Shader] = {}
        for number, function in enumerate(functions):
            self._progress("codegen", number, len(functions))
            if function.name in hosting.why:
                continue
            try:
                shader = compile_kernel(hosting.kernels[number], target)
            except LimitError as error:
                hosting.give(number, error.what)
                continue
            if not hosting.give_too_long(number, shader.iterations):
                shaders[function.name] = shader
        hosting.refuse()
        kernels = dict(zip((f.name for f in functions), hosting.kernels, strict=True))
        made = {
            name: ExecutableImage(
                name,
                len(kernels[name].params),
                spirv=shader.words,
                scratch_bytes=shader.shared_bytes,
                workgroup_size=shader.workgroup_size,
                param_buffer_bytes=shader.param_buffer_bytes,
                texel_spirv=None if shader.texel is None else shader.texel.words,
            )
            for name, shader in shaders.items()
        }
        emitted = Emitted.of_shaders([b"".join(e.shaders) for e in made.values()])
        limits = requirements.limits(shaders.values())
        features = requirements.features(shaders.values())
        iterations = {name: shader.iterations for name, shader in shaders.items()}
        if hosting.host is None or not hosting.why:
            executables = tuple(made[f.name] for f in functions)
            return Code(
                *(b"", executables, emitted),
                limits=limits,
                features=features,
                iterations=iterations,
            )
        own = [f for f in functions if f.name in hosting.why]
        code = self._cpu_code([kernels[f.name] for f in own], own, hosting.host)
        made |= {e.name: replace(e, why_on_host=hosting.why[e.name]) for e in code.executables}
        sizes = dict(zip(shaders, emitted.sizes, strict=True))
        sizes |= {f.name: size for f, size in zip(own, code.emitted.sizes, strict=True)}
        return replace(
            code,
            executables=tuple(made[f.name] for f in functions),
            emitted=emitted.with_(code.emitted, tuple(sizes[f.name] for f in functions)),
            limits=limits,
            features=features,
            host=hosting.host,
            iterations=iterations,
        )


def build_image(module: Module, target: Target, options: CompileOptions) -> ModuleImage:
    """The image of a module whose functions are outlined already, of one variant and no notes."""
    with Building(options, no_progress) as building:
        context = PassContext(options, target)
        variant, _ = building.variant(module, dispatched(module), context, Clock())
        image, _ = finish_module([variant], building.parts, building.rodata, "aotc tune", None)
    return image


def _host_image(host: Target) -> HostImage:
    return HostImage(host.name, Arch[host.arch.upper()], host.word_bytes, host.features)


def _placing_scratch(entry: EntryPointImage, target: Target) -> EntryPointImage:
    """A GPU has no scratch in the arena, and its host's workers have their own."""
    if target.is_cpu:
        return entry
    return replace(entry, program=replace(entry.program, scratch_offset=None))


def _section(
    module: Module,
    outlined: Sequence[str],
    programs: Sequence[EmittedProgram],
    code: Code,
    clock: Clock,
) -> dict[str, Any]:
    names = [f.name for f in module.executables]
    seconds = clock.seconds.get("kernels", 0.0) + clock.seconds.get("codegen", 0.0)
    levels = level_stats(outlined, dispatched(module), names, code.emitted, seconds)
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
