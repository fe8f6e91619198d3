"""The whole pipeline in order: frontend, passes, kernels, backend, link.

Runs each stage once and measures it; owns no algorithm.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from aot.analysis.alias.database import AliasCounts, count_alias
from aot.analysis.dispatches import dispatched
from aot.base.records import dataclass
from aot.driver.clock import Clock
from aot.driver.cpu_fallback import VariantPlan
from aot.driver.ledger import model_ledger, precision_of
from aot.driver.models import (
    GivenModel,
    check_options,
    gathered,
    given_models,
    metadata_of,
    naming,
    options_of,
    recognised,
    together,
)
from aot.driver.observer import Observer, VariantObserver
from aot.driver.variant import VariantBuilder, build_image
from aot.errors import CompileError, TemplateWarning, advice
from aot.frontends import registry
from aot.ir.clone import clone_module
from aot.ir.equalities import check_satisfiable
from aot.ir.graph import Module
from aot.ir.record import count_shape_rules
from aot.link.finish import finish_module
from aot.link.image import ModuleImage, VariantImage
from aot.link.rodata import RodataBytes
from aot.options import CompileOptions, Progress, no_progress
from aot.passes.base import PassContext, ops_after, run_passes
from aot.passes.bind import BIND
from aot.passes.fusion.remarks import FusionRemarks
from aot.passes.layout.choose_algorithms import CHOOSE_ALGORITHMS
from aot.passes.layout.eager_shapes import follow_eagerly
from aot.passes.layout.resolve_shapes import RESOLVE_SHAPES
from aot.passes.order import FORMED, MODEL_PASSES, OUTLINED, TARGET_PASSES, TUNED
from aot.passes.quantise.bf16_products import BF16_PRODUCTS
from aot.passes.quantise.narrow_arithmetic import NARROW_ARITHMETIC
from aot.passes.quantise.narrow_storage import NARROW_STORAGE
from aot.passes.quantise.quantise_contractions import multiply_adds_of
from aot.target import selection as targets
from aot.target.model import Target
from aot.version import __version__

if TYPE_CHECKING:
    from aot.driver.prefix import Prefix
    from aot.tuning.tuner import Tuner


@dataclass(frozen=True)
class Compilation:
    """The result of a compile.

    Attributes:
        image: what the file will hold.
        stats: counts and seconds, with the keys of `aotc compile --stats`.
    """

    image: ModuleImage
    stats: dict[str, Any]


def compile_module(
    source: Any,
    options: CompileOptions,
    progress: Progress,
    observer: Observer | None = None,
    frontend: registry.Frontend | None = None,
) -> Compilation:
    """Compiles a model for the targets of `options`.

    Args:
        source: a path, the bytes of an ONNX file or of text IR, an onnx.ModelProto, or a Module;
            a sequence of these, or a mapping from names of entry points.
        observer: receives the decisions of the stages that the module does not keep.
        frontend: which reads the only model; found if None.

    Raises:
        CompileError, UnsupportedError: the model or the options are at fault.
    """
    wanted = targets.load_together(options.targets)
    _check_arithmetic(wanted, options)
    models = given_models(source, frontend)
    check_options(models, options)
    models = [recognised(model) for model in models]
    with VariantBuilder(options, progress) as builder:
        for model in models:
            builder.expect(model.source, wanted)
        return _compiled(models, options, progress, observer, wanted, builder)


def _check_arithmetic(wanted: Sequence[Target], options: CompileOptions) -> None:
    """Checks that products in f16 or bf16 are requested only for targets that have fast ones.

    Raises:
        CompileError: a target has none.
    """
    slow = [target.name for target in wanted if not target.sums_bf16]
    if options.arithmetic == "bf16" and slow:
        raise CompileError(
            f"arithmetic bf16: target {', '.join(slow)} has no instruction that sums products of "
            "bfloat16"
        )
    slow = [target.name for target in wanted if not target.doubles_half]
    if options.arithmetic == "fp16" and slow:
        raise CompileError(
            f"arithmetic fp16: target {', '.join(slow)} has no vectors of float16 to multiply; "
            "storage fp16 stores them on every target"
        )


def _compiled(
    models: Sequence[GivenModel],
    options: CompileOptions,
    progress: Progress,
    observer: Observer | None,
    wanted: Sequence[Target],
    builder: VariantBuilder,
) -> Compilation:
    clock = Clock()
    with count_alias() as model_alias:
        module, context, import_calls = _read(models, options, progress, clock)
    options = context.options
    prefix = _prefix(module, options)
    tuner = _tuner(options, progress)
    sections: list[dict[str, Any]] = []
    variants: list[VariantImage] = []
    plan = VariantPlan(wanted)
    for target, host in plan:
        own = clock.split()
        copy = module if plan.is_last else clone_module(module)
        if not options.is_enabled("lazy-shapes") and copy is not module:
            follow_eagerly(copy)
        made = PassContext(
            _dumping_apart(options, target),
            target,
            runs=list(context.runs),
            statistics={k: dict(v) for k, v in context.statistics.items()},
            host=host,
        )
        progress("passes", 0, 0)
        about = None if observer is None else observer.variant()
        with count_alias() as alias:
            outlined = _run_target_passes(copy, made, own, about, tuner)
        alias.updates += model_alias.updates
        if copy is module:
            alias.builds += model_alias.builds  # a clone has a database of its own
            alias.solves += model_alias.solves
        with count_shape_rules() as build_rules:
            variant, section = builder.variant(copy, outlined, made, own, about)
        if about is not None:
            about.timed(target.name, own.spans)
        plan.built(uses_host=variant.host is not None)
        variants.append(_named(variant, _entry_names(models, options)))
        rules = {"import": import_calls, "build": build_rules.calls}
        tuned = {} if tuner is None else {"tuning": tuner.tuned.section()}
        sections.append({**_head(made, rules, alias), **tuned, **section})
    producer = f"aotc {__version__}"

    def ledger(rodata: RodataBytes) -> dict[str, Any]:
        with advice("the ledger of deduplication"):
            entries = [e.name for e in variants[0].entry_points]
            precision = precision_of(options)
            return model_ledger(entries, sections, rodata.stats, precision=precision)
        return {}

    image, rodata = finish_module(
        variants,
        builder.parts,
        builder.rodata,
        producer,
        None if options.strip else ledger,
        _vocabulary(module),
        module.metadata,
    )
    stats: dict[str, Any] = {"variants": sections, "rodata": rodata.stats}
    if prefix is not None:
        image, stats["prefix"] = prefix.put_into(image, progress)
    return Compilation(image, stats)


def _prefix(module: Module, options: CompileOptions) -> Prefix | None:
    """The prefix that is asked for."""
    if options.prefix is None:
        return None
    from aot.driver.prefix import Prefix

    return Prefix.read(options.prefix, module.vocabulary)


def _vocabulary(module: Module) -> bytes:
    """The module segment with a language model's vocabulary; a chat template that a module can't
    keep is a `TemplateWarning`."""
    vocabulary = module.vocabulary
    if vocabulary is None:
        return b""
    from aot.link.vocabulary import chat_code, encode_vocabulary

    _, refusal = chat_code(vocabulary)
    if refusal:
        warnings.warn(
            "the module does not keep the model's chat template, so that it takes text to be "
            f"continued and no conversations: {refusal}",
            TemplateWarning,
            stacklevel=2,
        )
    return encode_vocabulary(vocabulary)


def _read(
    models: Sequence[GivenModel], options: CompileOptions, progress: Progress, clock: Clock
) -> tuple[Module, PassContext, int]:
    """(all models as one module after the target-independent passes, their context, number of shape
    rules called by importing).
    """
    modules: list[Module] = []
    contexts: list[PassContext] = []
    calls = 0
    for model in models:
        progress("import", len(modules), len(models) if len(models) > 1 else 0)
        with naming(model):
            with count_shape_rules() as rules, clock.stage("import"):
                reported = progress if len(models) == 1 else no_progress
                module, own = prepared(
                    model.source, options_of(model, options), reported, model.frontend
                )
            calls += rules.calls
            context = PassContext(own)
            progress("passes", 0, 0)
            with clock.stage("passes"):
                run_passes(module, MODEL_PASSES, context)
            for function in module.entry_points:
                check_satisfiable(function)
        modules.append(module)
        contexts.append(context)
    made = together(modules)
    made.metadata = metadata_of(models, modules, options)
    return made, gathered(contexts, options), calls


def _run_target_passes(
    module: Module,
    context: PassContext,
    clock: Clock,
    observer: VariantObserver | None,
    tuner: Tuner | None,
) -> tuple[str, ...]:
    """Runs the target's passes; returns the executable name of each dispatch as outlined, before
    merging."""
    start = 0
    if observer is not None:
        context.remarks, start = FusionRemarks(), FORMED
        with clock.stage("passes"):
            run_passes(module, TARGET_PASSES[:FORMED], context)
        with advice("why regions end"):
            observer.formed(module, context)
        context.remarks = None
    with clock.stage("passes"):
        run_passes(module, TARGET_PASSES[start:OUTLINED], context)
        outlined = dispatched(module)
        run_passes(module, TARGET_PASSES[OUTLINED:TUNED], context)
    if tuner is not None and not context.is_stopped:
        with clock.stage("tune"):
            context.tuning = tuner.tune(module, context)
    with clock.stage("passes"):
        run_passes(module, TARGET_PASSES[TUNED:], context)
    return outlined


def _tuner(options: CompileOptions, progress: Progress) -> Tuner | None:
    """The tuner for these options; None if tuning is not requested."""
    if options.tune is None and options.tune_cache is None:
        return None
    from aot.tuning.tuner import Tuner

    return Tuner(options, build_image, progress)


def _entry_names(models: Sequence[GivenModel], options: CompileOptions) -> list[str]:
    """The entry point names that the user gave; empty if the models' own names are used."""
    names = [m.name for m in models] if options.entry_name is None else [options.entry_name]
    return [name for name in names if name is not None]


def _named(variant: VariantImage, names: Sequence[str]) -> VariantImage:
    """The variant with its entry points renamed as the user asked."""
    entries = variant.entry_points
    if not names:
        return variant
    if len(entries) != len(names):
        own = ", ".join(e.name for e in entries)
        raise CompileError(f"the model has the entry points {own}: none can be named {names[0]!r}")
    named = (replace(e, name=name) for e, name in zip(entries, names, strict=True))
    return replace(variant, entry_points=tuple(named))


def _head(context: PassContext, rules: dict[str, int], alias: AliasCounts) -> dict[str, Any]:
    """The first part of a variant's statistics: those of its passes."""
    assert context.target is not None
    calls = {"import": rules["import"], **_rules_by_pass(context), "build": rules["build"]}
    storage = context.statistics.get(NARROW_STORAGE.name, {})
    arithmetic = dict(context.statistics.get(NARROW_ARITHMETIC.name, {}))
    arithmetic.update(context.statistics.get(BF16_PRODUCTS.name, {}))
    winograd = context.statistics.get(CHOOSE_ALGORITHMS.name, {})
    quantised = multiply_adds_of(context)
    return {
        "target": context.target.name,
        "ops": ops_after(context, BIND),
        "shape_rule_calls": sum(calls.values()),
        "shape_rules": calls,
        "alias": asdict(alias),
        "pending": context.statistics.get(RESOLVE_SHAPES.name, {}),
        "storage": {"type": "fp16" if context.options.stores_half else "fp32", **storage},
        **({"arithmetic": arithmetic} if arithmetic else {}),
        **({"winograd": winograd} if winograd.get("convolutions") else {}),
        **({"multiply_adds": quantised} if quantised else {}),
    }


def _rules_by_pass(context: PassContext) -> dict[str, int]:
    """The number of shape rules that each pass called, added up over its runs."""
    found: dict[str, int] = {}
    for run in context.runs:
        found[run.name] = found.get(run.name, 0) + run.shape_rule_calls
    return found


def prepared(
    source: Any,
    options: CompileOptions,
    progress: Progress = no_progress,
    frontend: registry.Frontend | None = None,
) -> tuple[Module, CompileOptions]:
    """(model as a module, options left for the passes). `frontend` reads the model; None finds
    one."""
    frontend = frontend or registry.find(source)
    module = registry.read(frontend, source, options, progress)
    if not options.is_enabled("lazy-shapes"):
        follow_eagerly(module)
    if module.states:
        options = replace(options, states={**module.states, **options.states})
    if frontend.binds_inputs:
        options = replace(options, input_shapes={}, input_values={})
    return module, options


def read_model(source: Any, options: CompileOptions) -> Module:
    """The model as a module; its inputs are bound only if its frontend binds them."""
    return registry.read(registry.find(source), source, options)


def _dumping_apart(options: CompileOptions, target: Target) -> CompileOptions:
    """The options with a separate IR dump folder for the target, if there are several targets."""
    if options.dump_ir is None or len(options.targets) == 1:
        return options
    return replace(options, dump_ir=options.dump_ir / target.name)
