"""The way of the data, whole: frontend, passes, kernels, backend, link. The one place of its order.

Runs each stage once and measures it; owns no algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.analysis.alias.database import AliasCounts, count_alias
from aot.driver.cpu_fallback import Rounds
from aot.driver.ledger import dispatched, model_ledger
from aot.driver.variant import Building, Clock
from aot.errors import CompileError
from aot.ir.clone import clone_module
from aot.ir.graph import Module
from aot.ir.record import count_shape_rules
from aot.link.finish import finish_module
from aot.link.image import ModuleImage, VariantImage
from aot.link.rodata import RodataBytes
from aot.options import CompileOptions, Progress
from aot.passes.base import Pass, PassContext, ops_after, run_passes
from aot.passes.bind import BIND
from aot.passes.check_supported import CHECK_SUPPORTED
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.join_regions import JOIN_REGIONS
from aot.passes.fusion.journal import FusionJournal
from aot.passes.fusion.merge_siblings import MERGE_SIBLINGS
from aot.passes.fusion.outline import OUTLINE
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.passes.layout.assign_layouts import ASSIGN_LAYOUTS
from aot.passes.layout.choose_algorithms import CHOOSE_ALGORITHMS
from aot.passes.layout.defer_transposes import DEFER_TRANSPOSES
from aot.passes.layout.eager_shapes import follow_eagerly
from aot.passes.layout.pack import PACK
from aot.passes.layout.resolve_shapes import RESOLVE_SHAPES
from aot.passes.memory.bind_state import BIND_STATE
from aot.passes.memory.place_views import PLACE_VIEWS
from aot.passes.memory.settle_views import SETTLE_VIEWS
from aot.passes.memory.write_values import WRITE_VALUES
from aot.passes.quantise.legalise_dtypes import LEGALISE_DTYPES
from aot.passes.quantise.narrow_storage import NARROW_STORAGE
from aot.passes.simplify.algebra import ALGEBRA
from aot.passes.simplify.canonicalize import CANONICALIZE
from aot.passes.simplify.cse import CSE
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.fold_constants import FOLD_CONSTANTS
from aot.passes.simplify.sink_counters import SINK_COUNTERS
from aot.passes.specialise.apply_tuning import APPLY_TUNING
from aot.passes.specialise.despecialise import DESPECIALISE
from aot.target import selection as targets
from aot.target.model import Target

if TYPE_CHECKING:
    from aot.report.details import Details, VariantDetails
    from aot.tuning.tuner import Tuner

# Once a model, whatever the target.
MODEL_PASSES: tuple[Pass, ...] = (
    BIND,
    BIND_STATE,  # while what grows is still a concat, and before what is not read goes
    WRITE_VALUES,  # rules are for values that never change
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
    CHOOSE_ALGORITHMS,  # by the layouts that are
    PACK,
    FOLD_CONSTANTS,  # packs weights; casts that legalising made
    CSE,
    DCE,  # nothing dead may become a region
    SINK_COUNTERS,  # after CSE, which would undo it
    PLACE_VIEWS,  # before fusion: what is a view needs no region
    SETTLE_VIEWS,  # what is a view by its type only, now that types are final
    FUSE,
    JOIN_REGIONS,
    NARROW_STORAGE,  # what is stored is known; the buffers' types are not relied on yet
    TIE_OPERANDS,  # part of an executable's identity: before outlining
    OUTLINE,  # merges structurally equal executables
    DESPECIALISE,  # merges those that differ in extents
    APPLY_TUNING,  # by what executables are in the end
    DCE,
)


FORMED = TARGET_PASSES.index(JOIN_REGIONS) + 1  # where it can be told why regions end
_OUTLINED = TARGET_PASSES.index(OUTLINE) + 1  # where the ledger asks what became one
_TUNED = TARGET_PASSES.index(APPLY_TUNING)  # where executables are measured, if at all


@dataclass(frozen=True)
class Compilation:
    """Attributes:
    image: what the file will hold.
    stats: counts and seconds, with the keys of `aotc compile --stats`.
    """

    image: ModuleImage
    stats: dict[str, Any]


def compile_module(
    source: Any, options: CompileOptions, progress: Progress, details: Details | None = None
) -> Compilation:
    """Compiles a model for the targets of `options`.

    Args:
        source: a path, the bytes of an ONNX file or of text IR, an onnx.ModelProto, or a Module.
        details: is told what a report shows and the module does not keep.

    Raises:
        CompileError, UnsupportedError: the model or the options are at fault.
    """
    wanted = targets.load_together(options.targets)
    with Building(options, progress) as building:
        building.expect(source, wanted)
        return _compiled(source, options, progress, details, wanted, building)


def _compiled(
    source: Any,
    options: CompileOptions,
    progress: Progress,
    details: Details | None,
    wanted: Sequence[Target],
    building: Building,
) -> Compilation:
    clock = Clock()
    progress("import", 0, 0)
    with count_shape_rules() as import_rules, clock.stage("import"):
        module, options = prepared(source, options)
    context = PassContext(options)
    progress("passes", 0, 0)
    with clock.stage("passes"), count_alias() as model_alias:
        run_passes(module, MODEL_PASSES, context)
    tuner = _tuner(options, progress)
    sections: list[dict[str, Any]] = []
    variants: list[VariantImage] = []
    rounds = Rounds(wanted)
    for target, host in rounds:
        own = Clock(dict(clock.seconds))
        copy = module if rounds.is_last else clone_module(module)
        if options.shapes == "eager" and copy is not module:
            follow_eagerly(copy)
        made = PassContext(
            _dumping_apart(options, target),
            target,
            runs=list(context.runs),
            statistics={k: dict(v) for k, v in context.statistics.items()},
            host=host,
        )
        progress("passes", 0, 0)
        about = None if details is None else details.variant()
        with count_alias() as alias:
            outlined = _run_target_passes(copy, made, own, about, tuner)
        alias.updates += model_alias.updates
        if copy is module:
            alias.builds += model_alias.builds  # a clone has a database of its own
        with count_shape_rules() as build_rules:
            variant, section = building.variant(copy, outlined, made, own, about)
        rounds.built(uses_host=variant.host is not None)
        variants.append(_named(variant, options.entry_name))
        rules = {"import": import_rules.calls, "build": build_rules.calls}
        tuned = {} if tuner is None else {"tuning": tuner.tuned.section()}
        sections.append({**_head(made, rules, alias), **tuned, **section})
    producer = f"aotc {_version()}"

    def ledger(rodata: RodataBytes) -> dict[str, Any]:
        entries = [e.name for e in variants[0].entry_points]
        return model_ledger(entries, sections, rodata.stats)

    image, rodata = finish_module(
        variants,
        building.parts,
        building.rodata,
        producer,
        None if options.strip else ledger,
    )
    return Compilation(image, {"variants": sections, "rodata": rodata.stats})


def _run_target_passes(
    module: Module,
    context: PassContext,
    clock: Clock,
    details: VariantDetails | None,
    tuner: Tuner | None,
) -> tuple[str, ...]:
    """Returns the executable of each dispatch as outlining left them."""
    start = 0
    if details is not None:
        context.journal, start = FusionJournal(), FORMED
        with clock.stage("passes"):
            run_passes(module, TARGET_PASSES[:FORMED], context)
        details.formed(module, context)
        context.journal = None
    with clock.stage("passes"):
        run_passes(module, TARGET_PASSES[start:_OUTLINED], context)
        outlined = dispatched(module)
        run_passes(module, TARGET_PASSES[_OUTLINED:_TUNED], context)
    if tuner is not None and not context.is_stopped:
        with clock.stage("tune"):
            context.tuning = tuner.tune(module, context)
    with clock.stage("passes"):
        run_passes(module, TARGET_PASSES[_TUNED:], context)
    return outlined


def _tuner(options: CompileOptions, progress: Progress) -> Tuner | None:
    """What measures executables, or knows what was measured; None where nobody asks."""
    if options.tune is None and options.tune_cache is None:
        return None
    from aot.tuning.tuner import Tuner

    return Tuner(options, progress)


def _named(variant: VariantImage, name: str | None) -> VariantImage:
    """The variant with its entry point under the name that the user gave it."""
    if name is None:
        return variant
    if len(variant.entry_points) != 1:
        names = ", ".join(e.name for e in variant.entry_points)
        raise CompileError(f"the model has the entry points {names}: none can be named {name!r}")
    (entry,) = variant.entry_points
    return replace(variant, entry_points=(replace(entry, name=name),))


def _head(context: PassContext, rules: dict[str, int], alias: AliasCounts) -> dict[str, Any]:
    """What a variant's section says of its passes."""
    assert context.target is not None
    calls = {"import": rules["import"], **_rules_by_pass(context), "build": rules["build"]}
    storage = context.statistics.get(NARROW_STORAGE.name, {})
    return {
        "target": context.target.name,
        "ops": ops_after(context, BIND),
        "shape_rule_calls": sum(calls.values()),
        "shape_rules": calls,
        "alias": {"builds": alias.builds, "updates": alias.updates},
        "pending": context.statistics.get(RESOLVE_SHAPES.name, {}),
        "storage": {"type": context.options.storage, **storage},
    }


def _rules_by_pass(context: PassContext) -> dict[str, int]:
    """Shape rules that passes called; a pass that runs several times is one."""
    found: dict[str, int] = {}
    for run in context.runs:
        found[run.name] = found.get(run.name, 0) + run.shape_rule_calls
    return found


def prepared(source: Any, options: CompileOptions) -> tuple[Module, CompileOptions]:
    """The model as a fresh module, and the options that are left for the passes."""
    module = read_model(source, options)
    if options.shapes == "eager":
        follow_eagerly(module)
    if not _is_bound_by_passes(source):
        options = replace(options, input_shapes={}, input_values={})
    return module, options


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


def _version() -> str:
    import aot

    return aot.__version__
