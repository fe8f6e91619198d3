"""`aot.compile` and `aot.load`: the compiler and the runtime behind two calls.

Owns the public signatures and the groups of options; what options mean is `aot.options`', all work
the pipeline's and the loader's. What `compile` and the groups say of options is generated: `python
docs/generate_tables.py`. Each call imports what it needs: `load` nothing of the compiler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from numpy.typing import ArrayLike

from aot.base.records import dataclass
from aot.errors import CompileError

if TYPE_CHECKING:
    from aot.link.image import ModuleImage
    from aot.options import DeviceName, Progress
    from aot.report.details import Details
    from aot.runtime.loader import Program
    from aot.runtime.protocols import Calling
    from aot.target.model import Target


@dataclass(frozen=True)
class CompiledModule:
    """A compiled model, not yet a file.

    Attributes:
        image: what the file will hold.
        stats: counts and seconds of the compile, with the keys of `aotc compile --stats`.
        details: what `save_report` shows beside them; None where nobody asked for it.
        calling: how the model is called, where that is more than arrays by name: a program of the
            module takes and gives what a `torch.nn.Module` does. A file does not have it.
    """

    image: ModuleImage
    stats: Mapping[str, Any] = field(default_factory=dict)
    details: Details | None = field(default=None, repr=False)
    calling: Calling | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<CompiledModule {self.image.summary}>"

    def _repr_html_(self) -> str:
        from aot.base.html import html_table
        from aot.link.image import code_sizes

        rows = [(v.label, len(v.executables), sum(code_sizes(v))) for v in self.image.variants]
        names = ", ".join(e.name for v in self.image.variants[:1] for e in v.entry_points)
        title = f"{names}: {len(self.to_bytes()):,} bytes, {len(self.image.rodata):,} of constants"
        return html_table(title, ("target", "executables", "bytes of code"), rows)

    @cached_property
    def _bytes(self) -> bytes:
        from aot.link.module import module_bytes

        return module_bytes(self.image)

    def to_bytes(self) -> bytes:
        """The module file's bytes; the same for the same model, options and version."""
        return self._bytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the module file, whole or not at all.

        Raises:
            CompileError: `path` cannot be written.
        """
        from aot.link.module import write_module

        write_module(self.image, path)

    def save_report(
        self,
        path: str | os.PathLike[str],
        title: str = "",
        *,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a page that shows what became of the model: one HTML file, whole or not at all.

        Args:
            title: what the page calls the module; the name of its entry point if empty.
            run: command line, machine, date and versions; those of this process if None.

        Raises:
            CompileError: `path` cannot be written, SOURCE_DATE_EPOCH is no number, or the model was
                compiled without `details`.
        """
        from aot import report
        from aot.driver.provenance import provenance

        if self.details is None:
            raise CompileError("a report needs details: compile the model with details=True")
        facts = run if run is not None else provenance("compile")
        page = report.compile_page(self.to_bytes(), self.stats, self.details, title, facts)
        report.write_page(page, path)


@dataclass(frozen=True)
class OptionGroup:
    """A group of related compile options; each field has the meaning of the option.

    Raises:
        CompileError: an option is of another type, or out of range.
    """

    def __post_init__(self) -> None:
        from aot.options import OPTIONS

        for own, name in self.names().items():
            option = replace(OPTIONS[name], name=f"{type(self).__name__}.{own}")
            object.__setattr__(self, own, option.read(getattr(self, own)))

    @classmethod
    def names(cls) -> dict[str, str]:
        """Option name by field name."""
        return {f.name: f.metadata.get("option", f.name) for f in fields(cls)}

    def options(self) -> dict[str, Any]:
        """The values by the options' own names."""
        return {name: getattr(self, own) for own, name in self.names().items()}


@dataclass(frozen=True)
class LanguageModel(OptionGroup):
    """How a language model is compiled.

    Attributes:
        context: how many tokens the states of a language model hold, prompts and answers together;
            0 is the number that the model was made for, 2048 at most. For models without a graph
            (GGUF).
        all_logits: whether a language model returns the logits of all tokens of a run, not only of
            the last one. For models without a graph (GGUF).
        cache_type: "f16", "int8" or "int4": how a language model keeps the keys and values of
            earlier tokens. int8 takes half the memory and rounds: a scale for each head of a token.
            int4 keeps values in 4 bits, turned, with a scale and a minimum for each 32 elements,
            and keys as int8 does. For models without a graph (GGUF).
        sequences: how many texts a language model continues at once. With more than one a run takes
            tokens [sequences, T] and how many first rows of each are padding. For models without a
            graph (GGUF).
        prefix: a file of text that a language model's conversations begin with: the system message,
            or where the model has no chat template the text that prompts continue. The module has
            the state behind it, computed here, for each target that this machine runs.
    """

    context: int = 0
    all_logits: bool = False
    cache_type: str = "f16"
    sequences: int = 1
    prefix: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Precision(OptionGroup):
    """In what a module stores and computes, and what may round otherwise than the model says.

    Attributes:
        storage: "fp32" or "fp16": how float32 weights and activations are stored. fp16 halves the
            file and rounds what it stores; inputs, outputs and arithmetic stay float32.
        arithmetic: "fp32", "fp16" or "bf16": the type in which float32 convolutions and matrix
            products are computed. fp16 stores as storage fp16 does and sums pieces of products in
            float16, on CPUs that multiply twice as many numbers of it at a time; bf16 rounds the
            operands of products with constant weights to bfloat16 and sums in float32, on CPUs that
            sum pairs of them.
        activations: "model", "f32" or "int8": the type of activations that are multiplied with
            quantised weights in an otherwise float model. int8 rounds them by blocks to 8 bits on
            CPUs, f32 never does, and by default only MatMulNBits with accuracy_level 4 does.
        winograd: whether 3x3 convolutions may be computed by Winograd's algorithm, which rounds
            otherwise and may overflow where inputs come near the largest floats.
    """

    storage: str = "fp32"
    arithmetic: str = "fp32"
    activations: str = "model"
    winograd: bool = True


@dataclass(frozen=True)
class Tuning(OptionGroup):
    """Whether and where kernels are measured, and where the records are.

    Attributes:
        seconds: seconds in which to measure how executables run fastest, on this machine; the
            records are kept, and used by later compiles that tune or have `cache`. 0 measures
            nothing and uses the records.
        runner: a command that measures on another device: it gets a module's path and options as
            `aot-run` does, and prints what that prints.
        cache: a file of tuning records; with it and without `seconds` nothing is measured, and the
            module is the same on every machine.
    """

    seconds: float | None = field(default=None, metadata={"option": "tune"})
    runner: str | None = field(default=None, metadata={"option": "tune_runner"})
    cache: str | os.PathLike[str] | None = field(default=None, metadata={"option": "tune_cache"})


@dataclass(frozen=True)
class Debugging(OptionGroup):
    """What a compile leaves out, and what it writes beside the module.

    Attributes:
        disable: names of passes and features to leave out, to compare or to find a fault
            (`aot.switches` has the list).
        dump_ir: a folder that gets the IR after each pass.
    """

    disable: Sequence[str] = ()
    dump_ir: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Resources(OptionGroup):
    """The cache, the processes and the memory of a compile; the module does not depend on them.

    Attributes:
        cache: whether compiled code may be kept on disk, and found there by later compiles; the
            module is the same.
        cache_dir: where; by default `AOT_CACHE_DIR`, or the user's cache folder.
        jobs: processes that may compile code at a time; 0 is one for each processor. The module
            does not depend on it.
        limit_memory: the most memory, in MiB, that importing the model may take beyond what the
            process has; 0 is 64 times the bytes of the model's file, and 256 MiB. A model that
            unfolds to more ends in an error.
    """

    cache: bool = True
    cache_dir: str | os.PathLike[str] | None = None
    jobs: int = 0
    limit_memory: int = 0


GROUPS: Mapping[str, type[OptionGroup]] = {
    "language_model": LanguageModel,
    "precision": Precision,
    "tuning": Tuning,
    "debugging": Debugging,
    "resources": Resources,
}
"""By the keyword of `compile` that takes one."""


class GroupedOptions(TypedDict, total=False):
    """What the groups hold, as keywords of `compile` by the options' own names."""

    context: int
    all_logits: bool
    cache_type: str
    sequences: int
    prefix: str | os.PathLike[str] | None
    storage: str
    arithmetic: str
    activations: str
    winograd: bool
    tune: float | None
    tune_runner: str | None
    tune_cache: str | os.PathLike[str] | None
    disable: Sequence[str]
    dump_ir: str | os.PathLike[str] | None
    cache: bool
    cache_dir: str | os.PathLike[str] | None
    jobs: int
    limit_memory: int


def ungrouped(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The options among keywords of `compile`, by name, with groups taken apart.

    Raises:
        CompileError: an option is given by itself and in a group, or a group is something else.
    """
    found = {name: value for name, value in keywords.items() if name not in GROUPS}
    for keyword, kind in GROUPS.items():
        group = keywords.get(keyword)
        if group is None:
            continue
        if not isinstance(group, kind):
            raise CompileError(f"{keyword} is {group!r}, expected aot.{kind.__name__}(...)")
        for name, value in group.options().items():
            if name in found:
                raise CompileError(f"{name} is given twice: by itself, and in {keyword}")
            found[name] = value
    return found


def compile(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    targets: Sequence[str] = ("host",),
    input_shapes: Mapping[str, str | Sequence[int | str | None]] | None = None,
    input_values: Mapping[str, ArrayLike] | None = None,
    states: Mapping[str, str | tuple[str, int]] | None = None,
    random_seed: int = 0,
    max_extents: Mapping[str, int] | None = None,
    max_default: int = 64,
    optimize: str = "balanced",
    entry_name: str | None = None,
    metadata: Mapping[str, str] | None = None,
    strip: bool = False,
    language_model: LanguageModel | None = None,
    precision: Precision | None = None,
    tuning: Tuning | None = None,
    debugging: Debugging | None = None,
    resources: Resources | None = None,
    details: bool = False,
    progress: Progress | None = None,
    **options: Unpack[GroupedOptions],
) -> CompiledModule:
    """Compiles a model for one or more targets.

    Args:
        model: a path of an ONNX file, of a file of `torch.export.save`, or of text IR, the bytes of
            one, an `onnx.ModelProto`, a `torch.nn.Module`, a `torch.export.ExportedProgram`, a
            `torch.onnx.ONNXProgram`, or a module made with `aot.builder`. Or several, which share
            code and constants and have an entry point each: a list of paths ("FILE:NAME" names
            one), or a mapping from names to models. Names of inputs in other arguments then begin
            with the model's: "det:x".
        args: example inputs of a `torch.nn.Module`, which is exported with them.
        kwargs: example inputs of it by name.
        dynamic_shapes: the module's open dims, as `torch.export.export` takes them; a dim may be
            its name, or text such as "H:32..960" or "32*h".
        targets: names (`aotc targets` lists them) or paths of target files; one variant each. A
            device runs the first variant that it can, in this order, except that of several levels
            of a CPU architecture the best comes first. "host" is the best target for this machine.
        input_shapes: input name -> dims, or their text, such as "1x3xHx224"; a number binds an
            extent, a name such as "H" leaves it open under that name, None keeps what the model
            says. "32*h" takes multiples of 32 only; "H:..960" or "H:32..960" bounds it (as "H<=960"
            and "32<=H<=960" do), "?:..8" what the model says.
        input_values: input name -> value; the input is compiled in as a constant.
        states: input name -> output name, or (output name, capacity) where the output is the input
            with something appended: both leave the signature, the program keeps the value from run
            to run (zeros at first), and `Program.reset` clears it.
        random_seed: decides the numbers of a model's random tensors, with the nodes' own seeds or
            names; they are the same in every run. For ONNX models and PyTorch programs.
        max_extents: upper bounds by node name: of the extents that the node computes, where no rule
            bounds them, or of the iterations of a loop that only its condition ends (default
            1,000,000); a run that would exceed one ends with an error that names the node.
        max_default: upper bound of an extent that a node computes and nothing else limits, as a
            multiple of the largest extent of the model's inputs; also of the iterations of a loop
            whose rows or carried values grow. A warning names the node. With 0 such a model is
            refused.
        optimize: "speed", "balanced" or "size": how much time sharing code between dispatches may
            cost. speed also stores filters transformed for Winograd's algorithm, for up to 16 MiB
            more, where that pays.
        entry_name: what `load` and `merge` know the entry point by; "main" if None.
        metadata: facts about the model by key, such as author or license, which the module keeps
            beside those of the model's file (ONNX's metadata_props, TFLite Metadata, GGUF's general
            keys); an empty text leaves out what the file says.
        strip: leaves out what `merge`, `aotc inspect --dedup` and `aotc explain-dedup` need.
        language_model: how language models without a graph (GGUF) are compiled.
        precision: in what the module stores and computes.
        tuning: whether and where kernels are measured.
        debugging: what a compile leaves out, and what it writes beside.
        resources: the cache, processes and memory of this compile.
        details: whether to write down what `CompiledModule.save_report` shows: why regions end, and
            where each buffer is placed, and when. It takes a little time; the module is the same.
        progress: called with each stage's name, items done and items in all.
        options: what the groups hold, one by one, by the names that the command line has for it:
            `storage="fp16"` is `precision=aot.Precision(storage="fp16")`, `tune=60` is
            `tuning=aot.Tuning(seconds=60)`.

    Raises:
        CompileError: the model or an option is wrong, or an option is given twice.
        UnsupportedError: the model needs what there is not; lists everything at once.
    """
    given = locals()
    from aot.driver.pipeline import compile_module
    from aot.frontends import registry
    from aot.options import OPTIONS, CompileOptions, no_progress

    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"compile() got an unexpected keyword argument {name!r}")
    own = {name: given[name] for name in (*OPTIONS, *GROUPS) if name in given}
    if isinstance(input_shapes, Mapping):
        own["input_shapes"] = {name: _dims(name, shape) for name, shape in input_shapes.items()}
    read = CompileOptions(**ungrouped({**own, **options}))
    opened = registry.opened(model, args, kwargs, dynamic_shapes, read.limit_memory)
    known = None
    if details:
        from aot.report.details import Details

        known = Details()
    compilation = compile_module(
        opened.source, read, progress or no_progress, known, opened.frontend
    )
    return CompiledModule(compilation.image, compilation.stats, known, opened.calling)


def _dims(name: str, shape: Any) -> Any:
    """The dims of an input's shape, which may be text such as "1x3xHx224"."""
    from aot.ir.bounds import parse_shape

    if not isinstance(shape, str):
        return shape
    try:
        return parse_shape(shape)
    except ValueError as error:
        raise CompileError(
            f"input_shapes: {name} is {shape!r}, expected a shape such as 1x3xHx224: {error}"
        ) from None


def load(
    module: str | os.PathLike[str] | bytes | CompiledModule,
    device: DeviceName = "cpu",
    *,
    entry: str | None = None,
    target: str | None = None,
    threads: int | Literal["auto"] = 1,
) -> Program:
    """Loads a compiled module to run it here.

    Args:
        module: a path, which is mapped, the file's bytes, or what `aot.compile` returned.
        device: "cpu", "vulkan" or "auto", the first variant that runs here.
        entry: the entry point; the first one if None.
        target: the target whose variant must be used; the first that runs here if None.
        threads: threads that share the work on a CPU, the caller's included; the results are the
            same whatever their number. "auto" takes one for each fast core: `aotc devices` tells
            how many that are, and why.

    Raises:
        RuntimeFailure: no such file, not a module, damaged, or no variant for this machine.
    """
    from aot.runtime.loader import load as load_program

    source = module.to_bytes() if isinstance(module, CompiledModule) else module
    calling = module.calling if isinstance(module, CompiledModule) else None
    return load_program(
        source, device, entry=entry, target=target, threads=threads, calling=calling
    )


def targets() -> tuple[Target, ...]:
    """The targets that come with the compiler, by name."""
    from aot.target import files, selection

    return tuple(selection.load(name) for name in files.names())
