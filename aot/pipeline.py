"""The way of the data, whole: frontend, passes, kernels, backend, link. The one place of its order.

Runs each stage once and measures it; owns no algorithm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aot import target as targets
from aot.analysis.alias import count_alias
from aot.errors import CompileError
from aot.ir.clone import clone_module
from aot.ir.core import Function, Module
from aot.kernels.ir import Kernel
from aot.kernels.lower import lower
from aot.link.emit_program import EmittedProgram, Entry, emit_program
from aot.link.image import Arch, Device, ExecutableImage, ModuleImage, VariantImage
from aot.link.rodata import RodataPool
from aot.ops.record import count_shape_rules
from aot.options import CompileOptions, Progress
from aot.passes.algebra import ALGEBRA
from aot.passes.assign_layouts import ASSIGN_LAYOUTS
from aot.passes.base import Pass, PassContext, ops_after, run_passes
from aot.passes.bind import BIND
from aot.passes.canonicalize import CANONICALIZE
from aot.passes.check_supported import CHECK_SUPPORTED
from aot.passes.cse import CSE
from aot.passes.dce import DCE
from aot.passes.defer_transposes import DEFER_TRANSPOSES
from aot.passes.despecialise import DESPECIALISE
from aot.passes.eager_shapes import follow_eagerly
from aot.passes.fold_constants import FOLD_CONSTANTS
from aot.passes.fuse import FUSE
from aot.passes.join_regions import JOIN_REGIONS
from aot.passes.legalise_dtypes import LEGALISE_DTYPES
from aot.passes.merge_siblings import MERGE_SIBLINGS
from aot.passes.narrow_storage import NARROW_STORAGE
from aot.passes.outline import OUTLINE
from aot.passes.pack import PACK
from aot.passes.place_views import PLACE_VIEWS
from aot.passes.resolve_shapes import RESOLVE_SHAPES
from aot.passes.sink_counters import SINK_COUNTERS
from aot.passes.tie_operands import TIE_OPERANDS
from aot.target import Target

# Once a model, whatever the target.
MODEL_PASSES: tuple[Pass, ...] = (
    BIND,
    FOLD_CONSTANTS,  # what the model computes from constants, before patterns are looked for
    DEFER_TRANSPOSES,  # before those of extents of 1 become reshapes, and algebra looks around
    RESOLVE_SHAPES,
    CANONICALIZE,
    CSE,  # what two users share is seen as one, before algebra asks who uses it
    DCE,
    ALGEBRA,
    FOLD_CONSTANTS,
    MERGE_SIBLINGS,  # weights and biases are constants again
    DCE,
)

# Once a target.
TARGET_PASSES: tuple[Pass, ...] = (
    CHECK_SUPPORTED,  # before passes that know only what can be run
    LEGALISE_DTYPES,
    ASSIGN_LAYOUTS,  # changes producers and leaves pending shape changes
    RESOLVE_SHAPES,
    PACK,
    FOLD_CONSTANTS,  # packs weights; casts that legalising made
    CSE,
    DCE,  # nothing dead may become a region
    SINK_COUNTERS,  # after CSE, which would undo it
    # alias analysis is built here, once a function, and updated by the passes after it
    PLACE_VIEWS,  # before fusion: what is a view needs no region
    FUSE,
    JOIN_REGIONS,
    NARROW_STORAGE,  # what is stored is known; the buffers' types are not relied on yet
    TIE_OPERANDS,  # part of an executable's identity: before outlining
    OUTLINE,  # merges structurally equal executables
    DESPECIALISE,  # merges those that differ in extents
    DCE,
)


@dataclass(frozen=True)
class Compilation:
    """Attributes:
    image: what the file will hold.
    stats: counts and seconds, with the keys of `aotc compile --stats`.
    """

    image: ModuleImage
    stats: dict[str, Any]


@dataclass
class _Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent


def compile_module(source: Any, options: CompileOptions, progress: Progress) -> Compilation:
    """Compiles a model for the targets of `options`.

    Args:
        source: a path, the bytes of an ONNX file or of text IR, an onnx.ModelProto, or a Module.

    Raises:
        CompileError, UnsupportedError: the model or the options are at fault.
    """
    wanted = [targets.load(name) for name in options.targets]
    _check_together(wanted)
    clock = _Clock()
    progress("import", 0, 0)
    with count_shape_rules() as import_rules, clock.stage("import"):
        module = read_model(source, options)
    if options.shapes == "eager":
        follow_eagerly(module)
    if not _is_bound_by_passes(source):
        options = replace(options, input_shapes={}, input_values={})
    context = PassContext(options)
    progress("passes", 0, 0)
    with clock.stage("passes"):
        run_passes(module, MODEL_PASSES, context)
    rodata = RodataPool()
    variants: list[VariantImage] = []
    sections: list[dict[str, Any]] = []
    for target in wanted:
        own = _Clock(dict(clock.seconds))
        copy = module if target is wanted[-1] else clone_module(module)
        if options.shapes == "eager" and copy is not module:
            follow_eagerly(copy)
        made = PassContext(
            _dumping_apart(options, target),
            target,
            runs=list(context.runs),
            statistics={k: dict(v) for k, v in context.statistics.items()},
        )
        progress("passes", 0, 0)
        with own.stage("passes"), count_alias() as alias:
            run_passes(copy, TARGET_PASSES, made)
        with count_shape_rules() as build_rules:
            variant, section = _build_variant(copy, made, rodata, own, progress)
        variants.append(variant)
        rules = {"import": import_rules.calls, **_rules_by_pass(made), "build": build_rules.calls}
        head = {
            "target": target.name,
            "ops": ops_after(made, BIND),
            "shape_rule_calls": sum(rules.values()),
            "shape_rules": rules,
            "alias": {"builds": alias.builds, "updates": alias.updates},
            "pending": made.statistics.get(RESOLVE_SHAPES.name, {}),
            "storage": {"type": options.storage, **made.statistics.get(NARROW_STORAGE.name, {})},
        }
        sections.append({**head, **section})
    data, segments = rodata.finish()
    image = ModuleImage(tuple(variants), data, segments, f"aotc {_version()}")
    return Compilation(
        image,
        {
            "variants": sections,
            "rodata": {"bytes_met": rodata.bytes_met, "bytes_kept": rodata.bytes_kept},
        },
    )


def _rules_by_pass(context: PassContext) -> dict[str, int]:
    """Shape rules that passes called; a pass that runs several times is one."""
    found: dict[str, int] = {}
    for run in context.runs:
        found[run.name] = found.get(run.name, 0) + run.shape_rule_calls
    return found


def read_model(source: Any, options: CompileOptions) -> Module:
    """The model as a fresh module; the text form is known by its first bytes or its extension."""
    from aot.frontends.text import import_text, load_text

    if isinstance(source, Module):
        return clone_module(source)
    if _is_text(source):
        return import_text(source.decode()) if isinstance(source, bytes) else load_text(source)
    from aot.frontends.onnx import import_onnx

    return import_onnx(source, input_shapes=options.input_shapes, input_values=options.input_values)


def _is_text(source: Any) -> bool:
    if isinstance(source, bytes):
        return source.lstrip()[:4] in (b"func", b"exec", b"# ao")
    return isinstance(source, (str, Path)) and Path(source).suffix in (".ir", ".repro")


def _is_bound_by_passes(source: Any) -> bool:
    """Whether the pass `bind` is to bind inputs; the ONNX importer, whose shape rules may need
    their values, has done it already."""
    return isinstance(source, Module) or _is_text(source)


def _dumping_apart(options: CompileOptions, target: Target) -> CompileOptions:
    """Several targets dump their IR to folders of their own."""
    if options.dump_ir is None or len(options.targets) == 1:
        return options
    return replace(options, dump_ir=options.dump_ir / target.name)


def _check_together(wanted: Sequence[Target]) -> None:
    """Variants share one pool of packed weights: their panels must agree."""
    panels = {t.panel for t in wanted}
    if len(panels) > 1:
        raise CompileError(
            f"targets {', '.join(t.name for t in wanted)} have panels of "
            f"{sorted(panels)}; the targets of one module need one panel width"
        )


def _build_variant(
    module: Module, context: PassContext, rodata: RodataPool, clock: _Clock, progress: Progress
) -> tuple[VariantImage, dict[str, Any]]:
    """Executables to code, functions to programs."""
    target = context.target
    assert target is not None
    functions = module.executables
    progress("kernels", 0, len(functions))
    with clock.stage("kernels"):
        kernels = [lower(f, target) for f in functions]
    build = _build_cpu if target.is_cpu else _build_vulkan
    with clock.stage("codegen"):
        code, executables, emitted = build(kernels, functions, target, progress)
    progress("link", 0, 0)
    with clock.stage("link"):
        entries = {
            f.name: Entry(n, k.grid, f.dim_names)
            for n, (f, k) in enumerate(zip(functions, kernels, strict=True))
        }
        programs = [emit_program(f, entries, rodata) for f in module.entry_points]
    device = Device.CPU if target.is_cpu else Device.VULKAN
    variant = VariantImage(
        target.name,
        device,
        Arch[target.arch.upper()],
        target.word_bytes,
        tuple(executables),
        tuple(p.entry_point for p in programs),
        target.features,
        code,
        target.page_bytes,
    )
    structural = context.statistics[OUTLINE.name]["kept"]
    return variant, _section(module, programs, structural, executables, code, emitted, clock)


def _section(
    module: Module,
    programs: Sequence[EmittedProgram],
    structural: int,
    executables: Sequence[ExecutableImage],
    code: bytes,
    emitted: int,
    clock: _Clock,
) -> dict[str, Any]:
    met = sum(1 for f in module.entry_points for op in f.block if op.name == "dispatch")
    kept = len(executables)
    spirv = {e.spirv for e in executables if e.spirv is not None}
    scratch = max((e.scratch_bytes for e in executables), default=0)
    return {
        "dispatches": sum(p.dispatches for p in programs),
        "executables": {
            "structural": {"met": met, "kept": structural},
            "despecialised": {"met": structural, "kept": kept},
            "emitted": {"met": kept, "kept": emitted},
        },
        "code_bytes": len(code) + sum(map(len, spirv)),
        "arena_bytes": sum(p.arena_bytes for p in programs) + scratch,
        "arena_lower_bound_bytes": sum(p.lower_bound_bytes for p in programs),
        "seconds": {k: round(v, 6) for k, v in clock.seconds.items()},
    }


Built = tuple[bytes, list[ExecutableImage], int]
Builder = Callable[[Sequence[Kernel], Sequence[Function], Target, Progress], Built]


def _build_cpu(
    kernels: Sequence[Kernel], functions: Sequence[Function], target: Target, progress: Progress
) -> Built:
    """Objects, linked into one position-free image."""
    from aot.backends.cpu import compile_kernel, scratch_bytes
    from aot.link.code_image import link_image

    objects: list[bytes] = []
    for number, kernel in enumerate(kernels):
        progress("codegen", number, len(kernels))
        objects.append(compile_kernel(kernel, target))
    image = link_image(objects, target)
    executables = [
        ExecutableImage(f.name, len(k.params), entry, None, scratch_bytes(k, target))
        for f, k, entry in zip(functions, kernels, image.entries, strict=True)
    ]
    return image.data, executables, len(set(image.entries))


def _build_vulkan(
    kernels: Sequence[Kernel], functions: Sequence[Function], target: Target, progress: Progress
) -> Built:
    """One shader an executable; equal words are one segment of the file."""
    from aot.backends.vulkan import compile_kernel

    executables: list[ExecutableImage] = []
    for number, (kernel, function) in enumerate(zip(kernels, functions, strict=True)):
        progress("codegen", number, len(kernels))
        shader = compile_kernel(kernel, target)
        executables.append(
            ExecutableImage(
                function.name,
                len(kernel.params),
                spirv=shader.words,
                workgroup_size=shader.workgroup_size,
            )
        )
    return b"", executables, len({e.spirv for e in executables})


def _version() -> str:
    import aot

    return aot.__version__
