"""The options of a compile as one typed record, and the type of its progress callback.

Owns the options' meaning, their checks that need no model, and what the command line, a batch file
and the documentation need to know of each: all of them are made from `OPTIONS`. Reads no
environment and imports nothing that is slow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aot.base.records import dataclass
from aot.errors import CompileError, InternalError
from aot.switches import DISABLEABLE

DEFAULT_ENTRY = "main"  # what the entry point of a model is called that was given no name

Progress = Callable[[str, int, int], None]
DeviceName = Literal["cpu", "vulkan", "auto"]
"""Called with a stage's name, how many of its items are done and how many there are (0: unknown).

A stage begins with its first call; the next stage's first call ends it.
"""


# What options take: how a value of Python or TOML becomes a field's, or is refused.


@dataclass(frozen=True)
class Kind:
    """The type of an option's values.

    Attributes:
        name: by which the command line and batch files find how they spell such values.
        read: turns the value of an option into the field's; what it has turned stays as it is.
        is_table: the value is a mapping by the names of inputs.
        is_list: the value is a list of names.
    """

    name: str
    read: Callable[[Option, Any], Any]
    is_table: bool = False
    is_list: bool = False


def _wrong(option: Option, value: Any, expected: str) -> CompileError:
    return CompileError(f"{option.name} is {value!r}, expected {expected}")


def _a(types: tuple[type, ...], expected: str) -> Callable[[Option, Any], Any]:
    """A reader that takes values of `types` unchanged; True and False do not count as numbers."""

    def read(option: Option, value: Any) -> Any:
        is_flag = isinstance(value, bool) and bool not in types
        if not isinstance(value, types) or is_flag:
            raise _wrong(option, value, expected)
        return value

    return read


def _whole(option: Option, value: Any) -> Any:
    found = _a((int,), "a whole number")(option, value)
    if found < 0:
        raise _wrong(option, value, "0 or more")
    return found


def _seconds(option: Option, value: Any) -> Any:
    found = _a((int, float), "a number")(option, value)
    if not 0 <= found < math.inf:
        raise CompileError(f"{option.name} is {value}, expected seconds, 0 or more")
    return found


def _choice(option: Option, value: Any) -> Any:
    found = _a((str,), "a text")(option, value)
    if found not in option.choices:
        raise _wrong(option, value, f"one of {', '.join(option.choices)}")
    return found


def _path(option: Option, value: Any) -> Any:
    return Path(_a((str, os.PathLike), "a path")(option, value))


def _names(option: Option, value: Any, expected: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise _wrong(option, value, expected)
    return tuple(names)


def _targets(option: Option, value: Any) -> Any:
    names = _names(option, value, "names or paths")
    if not names:
        raise CompileError("no target is given")
    if len(set(names)) != len(names):
        raise CompileError(f"a target is given twice: {', '.join(names)}")
    return names


def _passes(option: Option, value: Any) -> Any:
    for name in (names := _names(option, value, "names of passes")):
        if name not in option.choices:
            raise CompileError(
                f"{option.name}: {name!r} is not a pass or feature that can be left out, expected "
                f"some of {', '.join(option.choices)}"
            )
    return tuple(name for name in option.choices if name in names)


def _table(option: Option, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise _wrong(option, value, "a mapping by name")
    return dict(value or {})


def _shapes(option: Option, value: Any) -> Any:
    found = _table(option, value)
    for name, dims in found.items():
        if isinstance(dims, str) or not isinstance(dims, Iterable):
            raise CompileError(f"{option.name}: {name} is {dims!r}, expected a sequence of dims")
    return {name: tuple(dims) for name, dims in found.items()}


class Tie(NamedTuple):
    """The declaration that an input is state: memory kept between runs.

    Attributes:
        output: what it is after a run.
        capacity: the most that it grows to; 0 where it does not grow.
        window: rows that stay of a long one; 0 is all.
    """

    output: str
    capacity: int = 0
    window: int = 0


def _states(option: Option, value: Any) -> Any:
    return {name: _state(option, name, tie) for name, tie in _table(option, value).items()}


def _state(option: Option, name: str, value: Any) -> tuple[str, int] | Tie:
    if isinstance(value, Tie):  # a model's own
        return value
    match (value, 0) if isinstance(value, str) else value:
        case (str(output), int(capacity)) if not isinstance(capacity, bool):
            if capacity < 0:
                raise CompileError(f"state {name!r}: max is {capacity}, expected a positive number")
            return output, capacity
    raise CompileError(
        f"{option.name}: {name} is {value!r}, expected an output's name, or that and a capacity"
    )


def _extents(option: Option, value: Any) -> Any:
    found = _table(option, value)
    for name, most in found.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise CompileError(f"{option.name}: {name} is {most!r}, expected a number, 0 or more")
    return found


def _metadata(option: Option, value: Any) -> Any:
    found = _table(option, value)
    for key, text in found.items():
        if not isinstance(text, str) or not isinstance(key, str):
            raise CompileError(f"{option.name}: {key} is {text!r}, expected a text")
        if not key or "\0" in key + text:
            raise CompileError(f"{option.name}: {key!r} is empty, or a zero byte is in it")
    return found


TARGETS = Kind("targets", _targets, is_list=True)
PASSES = Kind("passes", _passes, is_list=True)
SHAPES = Kind("shapes", _shapes, is_table=True)
METADATA = Kind("metadata", _metadata, is_table=True)
VALUES = Kind("values", _table, is_table=True)
STATES = Kind("states", _states, is_table=True)
EXTENTS = Kind("extents", _extents, is_table=True)
CHOICE = Kind("choice", _choice)
SWITCH = Kind("switch", _a((bool,), "true or false"))
TEXT = Kind("text", _a((str,), "a text"))
FILE = Kind("file", _path)
FOLDER = Kind("folder", _path)
COUNT = Kind("count", _whole)
SECONDS = Kind("seconds", _seconds)


@dataclass(frozen=True)
class Option:
    """The definition of one field of CompileOptions: how it is set, and its documentation.

    Attributes:
        kind: what it takes.
        help: one line, which the command line and the documentation show.
        details: sentences for readers of the API.
        in_batch: whether a batch file may set it: whether it is the module's, and not of how or
            where the work is done.
        spelling: on the command line; of the name if empty.
        metavar: what stands for a value there.
        choices: all values, of kinds that have a list of them.
        name, default: the field's.
    """

    kind: Kind
    help: str
    details: str
    in_batch: bool = True
    spelling: str = ""
    metavar: str | None = None
    choices: Sequence[str] = ()
    name: str = ""
    default: Any = None

    @property
    def flags(self) -> str:
        """The option's spelling on the command line, such as `--jobs` or `--cache/--no-cache`."""
        flag = self.spelling or f"--{self.name.replace('_', '-')}"
        return f"{flag}/--no-{flag[2:]}" if self.default is True else flag

    def read(self, value: Any) -> Any:
        """The field's value for an argument of the API or a key of a batch file.

        Raises:
            CompileError: it is of another type, or out of range.
        """
        if value is None and self.default is None:
            return None
        return self.kind.read(self, value)


def _option(default: Any, kind: Kind, help: str, details: str, **more: Any) -> Any:
    metadata = {"option": Option(kind, help, details, default=default, **more)}
    if kind.is_table:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compile.

    Raises:
        CompileError: an option is of another type, out of range, or goes with no other.
    """

    targets: tuple[str, ...] = _option(
        ("host",),
        TARGETS,
        "What to compile for; repeatable. Default: host.",
        "names (`aotc targets` lists them) or paths of target files; one variant each. A device "
        "runs the first variant that it can, in this order, except that of several levels of a "
        "CPU architecture the best comes first. "
        '"host" is the best target for this machine.',
        spelling="--target",
        metavar="NAME|FILE.toml",
        in_batch=False,  # an axis of its own
    )
    input_shapes: Mapping[str, tuple[int | str | None, ...]] = _option(
        {},
        SHAPES,
        "An input's shape: a number binds, a name leaves open, H:..960 bounds, '?' keeps the "
        "model's.",
        'input name -> dims, or their text, such as "1x3xHx224"; a number binds an extent, a name '
        'such as "H" leaves it open under that name, None keeps what the model says. "32*h" takes '
        'multiples of 32 only; "H:..960" or "H:32..960" bounds it (as "H<=960" and "32<=H<=960" '
        'do), "?:..8" what the model says.',
        spelling="--input-shape",
    )
    input_values: Mapping[str, Any] = _option(
        {},
        VALUES,
        "Compile an input in as a constant: a number, a list or FILE.npy.",
        "input name -> value; the input is compiled in as a constant.",
        spelling="--input-value",
    )
    states: Mapping[str, tuple[str, int] | Tie] = _option(
        {},
        STATES,
        "Keep output PRESENT, which is input PAST of the next run; :max=N where it grows.",
        "input name -> output name, or (output name, capacity) where the output is the input with "
        "something appended: both leave the signature, the program keeps the value from run to "
        "run (zeros at first), and `Program.reset` clears it.",
        spelling="--state",
    )
    context: int = _option(
        0,
        COUNT,
        "How many tokens a language model's states hold. Default: the model's, 2048 at most.",
        "how many tokens the states of a language model hold, prompts and answers together; 0 is "
        "the number that the model was made for, 2048 at most. For models without a graph (GGUF).",
        metavar="TOKENS",
    )
    all_logits: bool = _option(
        False,
        SWITCH,
        "Let a language model return the logits of all tokens, not only of the last one.",
        "whether a language model returns the logits of all tokens of a run, not only of the last "
        "one. For models without a graph (GGUF).",
    )
    cache_type: str = _option(
        "f16",
        CHOICE,
        "How a language model keeps keys and values; int8 halves them, int4 leaves two fifths, "
        "and both round.",
        '"f16", "int8" or "int4": how a language model keeps the keys and values of earlier '
        "tokens. int8 takes half the memory and rounds: a scale for each head of a token. int4 "
        "keeps values in 4 bits, turned, with a scale and a minimum for each 32 elements, and keys "
        "as int8 does. For models without a graph (GGUF).",
        choices=("f16", "int8", "int4"),
    )
    sequences: int = _option(
        1,
        COUNT,
        "How many texts a language model continues at once, each with keys and values of its own.",
        "how many texts a language model continues at once. With more than one a run takes tokens "
        "[sequences, T] and how many first rows of each are padding. For models without a graph "
        "(GGUF).",
        metavar="N",
    )
    prefix: Path | None = _option(
        None,
        FILE,
        "A text that a language model's conversations begin with: the module has the state behind "
        "it.",
        "a file of text that a language model's conversations begin with: the system message, or "
        "where the model has no chat template the text that prompts continue. The module has the "
        "state behind it, computed here, for each target that this machine runs.",
        metavar="FILE",
        in_batch=False,
    )
    random_seed: int = _option(
        0,
        COUNT,
        "Decides the numbers of a model's random tensors, with the nodes' own seeds or names.",
        "decides the numbers of a model's random tensors, with the nodes' own seeds or names; they "
        "are the same in every run. For ONNX models and PyTorch programs.",
        metavar="SEED",
    )
    max_extents: Mapping[str, int] = _option(
        {},
        EXTENTS,
        "Upper bound of the extents that node NAME computes, or of the iterations of a loop that "
        "only its condition ends.",
        "upper bounds by node name: of the extents that the node computes, where no rule bounds "
        "them, or of the iterations of a loop that only its condition ends (default 1,000,000); a "
        "run that would exceed one ends with an error that names the node.",
        spelling="--max",
    )
    max_default: int = _option(
        64,
        COUNT,
        "Upper bound of other computed extents: N times the largest extent of the inputs.",
        "upper bound of an extent that a node computes and nothing else limits, as a multiple of "
        "the largest extent of the model's inputs; also of the iterations of a loop whose rows or "
        "carried values grow. A warning names the node. With 0 such a model is refused.",
        metavar="N",
    )
    optimize: str = _option(
        "balanced",
        CHOICE,
        "How much time sharing code between dispatches may cost; speed also stores transformed "
        "filters.",
        '"speed", "balanced" or "size": how much time sharing code between dispatches may cost. '
        "speed also stores filters transformed for Winograd's algorithm, for up to 16 MiB more, "
        "where that pays.",
        choices=("speed", "balanced", "size"),
    )
    storage: str = _option(
        "fp32",
        CHOICE,
        "How float32 weights and activations are stored; fp16 rounds them.",
        '"fp32" or "fp16": how float32 weights and activations are stored. fp16 halves the '
        "file and rounds what it stores; inputs, outputs and arithmetic stay float32.",
        choices=("fp32", "fp16"),
    )
    arithmetic: str = _option(
        "fp32",
        CHOICE,
        "The type in which float32 products are computed; narrow ones are faster on CPUs that "
        "support them, and round.",
        '"fp32", "fp16" or "bf16": the type in which float32 convolutions and matrix products are '
        "computed. fp16 stores as storage fp16 does and sums pieces of products in float16, on "
        "CPUs that multiply twice as many numbers of it at a time; bf16 rounds the operands of "
        "products with constant weights to bfloat16 and sums in float32, on CPUs that sum pairs "
        "of them.",
        choices=("fp32", "fp16", "bf16"),
    )
    activations: str = _option(
        "model",
        CHOICE,
        "The type of activations that are multiplied with quantised weights in a float model; int8 "
        "rounds them.",
        '"model", "f32" or "int8": the type of activations that are multiplied with quantised '
        "weights in an otherwise float model. int8 rounds them by blocks to 8 bits on CPUs, f32 "
        "never does, and by default only MatMulNBits with accuracy_level 4 does.",
        choices=("model", "f32", "int8"),
    )
    winograd: bool = _option(
        True,
        SWITCH,
        "Whether 3x3 convolutions may be computed by Winograd's algorithm.",
        "whether 3x3 convolutions may be computed by Winograd's algorithm, which rounds otherwise "
        "and may overflow where inputs come near the largest floats.",
    )
    disable: tuple[str, ...] = _option(
        (),
        PASSES,
        "Leave out a pass or feature, to compare or to find a fault; repeatable: "
        f"{', '.join(DISABLEABLE)}.",
        "names of passes and features to leave out, to compare or to find a fault "
        "(`aot.switches` has the list).",
        metavar="PASS",
        choices=tuple(DISABLEABLE),
    )
    entry_name: str | None = _option(
        None,
        TEXT,
        "The name of the entry point in the module file. Default: main.",
        'what `load` and `merge` know the entry point by; "main" if None.',
        metavar="NAME",
    )
    metadata: Mapping[str, str] = _option(
        {},
        METADATA,
        "A fact about the model that the module keeps, such as author=NAME; empty leaves out what "
        "the model's file says.",
        "facts about the model by key, such as author or license, which the module keeps beside "
        "those of the model's file (ONNX's metadata_props, TFLite Metadata, GGUF's general keys); "
        "an empty text leaves out what the file says.",
    )
    strip: bool = _option(
        False,
        SWITCH,
        "Leave out the notes that merge and inspect --dedup need.",
        "leaves out what `merge`, `aotc inspect --dedup` and `aotc explain-dedup` need.",
    )
    dump_ir: Path | None = _option(
        None,
        FOLDER,
        "Write the IR after each pass to this folder.",
        "a folder that gets the IR after each pass.",
        metavar="DIR",
        in_batch=False,
    )
    cache: bool = _option(
        True,
        SWITCH,
        "Whether compiled code may be kept on disk and found there.",
        "whether compiled code may be kept on disk, and found there by later compiles; the module "
        "is the same.",
        in_batch=False,
    )
    cache_dir: Path | None = _option(
        None,
        FOLDER,
        "Where it is kept; 'aotc cache' shows the default.",
        "where; by default `AOT_CACHE_DIR`, or the user's cache folder.",
        metavar="DIR",
        in_batch=False,
    )
    jobs: int = _option(
        0,
        COUNT,
        "Processes that may compile code at a time. Default: one a processor.",
        "processes that may compile code at a time; 0 is one for each processor. The module does "
        "not depend on it.",
        in_batch=False,
    )
    limit_memory: int = _option(
        0,
        COUNT,
        "The most memory that an import may take. Default: 64 times the model, and 256 MiB.",
        "the most memory, in MiB, that importing the model may take beyond what the process has; 0 "
        "is 64 times the bytes of the model's file, and 256 MiB. A model that unfolds to more ends "
        "in an error.",
        metavar="MIB",
        in_batch=False,
    )
    tune: float | None = _option(
        None,
        SECONDS,
        "Measure how kernels run fastest, for so long; later compiles remember.",
        "seconds in which to measure how executables run fastest, on this machine; the records "
        "are kept, and used by later compiles that tune or have `tune_cache`. 0 measures nothing "
        "and uses the records.",
        metavar="SECONDS",
        in_batch=False,  # modules are compiled on many machines
    )
    tune_runner: str | None = _option(
        None,
        TEXT,
        "Measure on a device: CMD gets a module and options, as aot-run does.",
        "a command that measures on another device: it gets a module's path and options as "
        "`aot-run` does, and prints what that prints.",
        metavar="CMD",
        in_batch=False,
    )
    tune_cache: Path | None = _option(
        None,
        FILE,
        "Where what was measured is kept; without --tune it is used as it is.",
        "a file of tuning records; with it and without `tune` nothing is measured, and the "
        "module is the same on every machine.",
        metavar="FILE",
        in_batch=False,
    )

    def __post_init__(self) -> None:
        for option in OPTIONS.values():
            object.__setattr__(self, option.name, option.read(getattr(self, option.name)))
        if self.tune_runner is not None and self.tune is None:
            raise CompileError("a tune runner is given, but no seconds to tune in")
        if self.entry_name is not None:
            check_entry_name(self.entry_name)
        for name in self.input_values:
            for kind, others in (("shape", self.input_shapes), ("state", self.states)):
                if name in others:
                    raise CompileError(f"input {name!r} is given both a {kind} and a value")

    @property
    def stores_half(self) -> bool:
        """Whether values passed between dispatches are stored as float16."""
        return "fp16" in (self.storage, self.arithmetic)

    def is_enabled(self, name: str) -> bool:
        """Whether a pass or feature that can be disabled is enabled."""
        if name not in DISABLEABLE:
            raise InternalError(f"{name!r} is nothing that can be disabled")
        return name not in self.disable


OPTIONS: Mapping[str, Option] = {
    f.name: replace(f.metadata["option"], name=f.name) for f in fields(CompileOptions)
}
"""By name, in the order of the fields."""


def check_entry_name(name: str) -> None:
    """Raises a CompileError unless `name` is a valid name of an entry point."""
    if not name or not name.isprintable() or name != name.strip():
        raise CompileError(
            f"an entry point cannot be called {name!r}: expected printable text that neither "
            "begins nor ends with a space"
        )


def check_entry_names(names: Iterable[tuple[str, str]]) -> None:
    """Raises a CompileError unless the (label, entry point name) pairs have distinct, valid
    names."""
    owners: dict[str, str] = {}
    for label, name in names:
        check_entry_name(name)
        if name in owners:
            raise CompileError(
                f"{owners[name]} and {label} both have an entry point {name!r}; give one another "
                f"name, as in {label}:NAME"
            )
        owners[name] = label


def split_name(source: Any) -> tuple[Any, str | None]:
    """(path, entry point name) of a source `FILE:NAME`; a colon may belong to a path that
    exists."""
    if not isinstance(source, str) or ":" not in source:
        return source, None
    parts = source.split(":")
    for count in range(len(parts), 0, -1):
        path = ":".join(parts[:count])
        if Path(path).is_file():
            return path, None if count == len(parts) else ":".join(parts[count:])
    return ":".join(parts[:-1]), parts[-1]


def no_progress(stage: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""
