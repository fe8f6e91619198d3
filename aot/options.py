"""What a caller may ask of a compile, as one typed record, and how it hears of the progress.

Owns the options' meaning and their checks that need no model. Reads no environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.errors import CompileError

OPTIMIZE_LEVELS = ("speed", "balanced", "size")
STORAGE_TYPES = ("fp32", "fp16")
SHAPE_MODES = ("lazy", "eager")

DEFAULT_ENTRY = "main"  # what the entry point of a model is called that was given no name

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many of its items are done and how many there are (0: unknown).

A stage begins with its first call; the next stage's first call ends it.
"""


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compile.

    Attributes:
        targets: names of targets, or paths of TOML files; one variant each; devices try
            them in the order of `aot.target.selection.load_together`.
        input_shapes: input name -> dims: a number binds an extent, a name leaves it open, None
            keeps what the model says; "32*h" makes it a multiple and "H<=960" bounds it
            (`aot.ir.bounds.parse_wanted` reads them).
        input_values: input name -> numpy array or number; the input becomes a constant.
        states: input name -> (output name, capacity): the output is kept and is the input of the
            next run; a capacity of 0 means that it does not grow (`aot.passes.memory.bind_state`).
        optimize: one of OPTIMIZE_LEVELS.
        storage: one of STORAGE_TYPES: how float32 weights and activations lie in memory. Inputs,
            outputs and arithmetic stay float32.
        fusion: whether ops may share a dispatch.
        winograd: whether 3x3 convolutions may be computed by Winograd's algorithm.
        despecialise: whether executables that differ in extents only may become one.
        shapes: one of SHAPE_MODES: when users of a changed value are told. The program is the same;
            eager, the classical cascade, is there to compare with.
        share_constants: whether equal constants, and those inside others, are stored once.
        entry_name: what the entry point is called in the module; None is DEFAULT_ENTRY.
        strip: whether the module does without notes for tools (`aot.link.notes`).
        dump_ir: a folder that gets the IR after each pass.
        cache: whether compiled code may be kept on disk and found there; the module is the same.
        cache_dir: where it is kept; None is where the environment says
            (`aot.backends.cpu.object_cache`).
        jobs: processes that may compile code at a time; 0 is one for each processor. The module
            does not depend on it.
        tune: seconds in which executables may be measured; None measures nothing, 0 uses what is
            known.
        tune_runner: a command that runs a module on the device that is tuned for
            (`aot.tuning.runner`); None is this machine's `aot-run`.
        tune_cache: the file of what was learnt (`aot.tuning.cache`), used without `tune` as well;
            None is one beside compiled code, which is used with `tune` only.
    """

    targets: tuple[str, ...] = ("host",)
    input_shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    input_values: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    optimize: str = "balanced"
    storage: str = "fp32"
    fusion: bool = True
    winograd: bool = True
    despecialise: bool = True
    shapes: str = "lazy"
    share_constants: bool = True
    entry_name: str | None = None
    strip: bool = False
    dump_ir: Path | None = None
    cache: bool = True
    cache_dir: Path | None = None
    jobs: int = 0
    tune: float | None = None
    tune_runner: str | None = None
    tune_cache: Path | None = None

    def __post_init__(self) -> None:
        if not self.targets:
            raise CompileError("no target is given")
        if len(set(self.targets)) != len(self.targets):
            raise CompileError(f"a target is given twice: {', '.join(self.targets)}")
        if self.optimize not in OPTIMIZE_LEVELS:
            raise CompileError(
                f"optimize is {self.optimize!r}, expected one of {', '.join(OPTIMIZE_LEVELS)}"
            )
        if self.storage not in STORAGE_TYPES:
            raise CompileError(
                f"storage is {self.storage!r}, expected one of {', '.join(STORAGE_TYPES)}"
            )
        if self.shapes not in SHAPE_MODES:
            raise CompileError(
                f"shapes is {self.shapes!r}, expected one of {', '.join(SHAPE_MODES)}"
            )
        if self.jobs < 0:
            raise CompileError(f"jobs is {self.jobs}, expected 0 or more")
        if self.tune is not None and not 0 <= self.tune < math.inf:
            raise CompileError(f"tune is {self.tune}, expected seconds, 0 or more")
        if self.tune_runner is not None and self.tune is None:
            raise CompileError("a tune runner is given, but no seconds to tune in")
        if self.entry_name is not None:
            check_entry_name(self.entry_name)
        for name in self.input_shapes:
            if name in self.input_values:
                raise CompileError(f"input {name!r} is given both a shape and a value")
        for name, (_, capacity) in self.states.items():
            if name in self.input_values:
                raise CompileError(f"input {name!r} is given both a state and a value")
            if capacity < 0:
                raise CompileError(f"state {name!r}: max is {capacity}, expected a positive number")


def check_entry_name(name: str) -> None:
    """Raises a CompileError unless an entry point may be called `name`."""
    if not name or not name.isprintable() or name != name.strip():
        raise CompileError(
            f"an entry point cannot be called {name!r}: expected printable text that neither "
            "begins nor ends with a space"
        )


def no_progress(stage: str, done: int, total: int) -> None:
    """A Progress that tells nobody."""
