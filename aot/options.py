"""What a caller may ask of a compile, as one typed record, and how it hears of the progress.

Owns the options' meaning and their checks that need no model. Reads no environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.errors import CompileError

OPTIMIZE_LEVELS = ("speed", "balanced", "size")
STORAGE_TYPES = ("fp32", "fp16")
SHAPE_MODES = ("lazy", "eager")

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many of its items are done and how many there are (0: unknown).

A stage begins with its first call; the next stage's first call ends it.
"""


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compile.

    Attributes:
        targets: names of targets, or paths of TOML files; one variant each, tried in this order.
        input_shapes: input name -> dims: a number binds an extent, a name leaves it open, None
            keeps what the model says; "32*h" makes it a multiple and "H<=960" bounds it
            (`aot.ir.bounds.parse_wanted` reads them).
        input_values: input name -> numpy array or number; the input becomes a constant.
        optimize: one of OPTIMIZE_LEVELS.
        storage: one of STORAGE_TYPES: how float32 weights and activations lie in memory. Inputs,
            outputs and arithmetic stay float32.
        fusion: whether ops may share a dispatch.
        despecialise: whether executables that differ in extents only may become one.
        shapes: one of SHAPE_MODES: when users of a changed value are told. The program is the same;
            eager, the classical cascade, is there to compare with.
        dump_ir: a folder that gets the IR after each pass.
    """

    targets: tuple[str, ...] = ("host",)
    input_shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    input_values: Mapping[str, Any] = field(default_factory=dict)
    optimize: str = "balanced"
    storage: str = "fp32"
    fusion: bool = True
    despecialise: bool = True
    shapes: str = "lazy"
    dump_ir: Path | None = None

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
        for name in self.input_shapes:
            if name in self.input_values:
                raise CompileError(f"input {name!r} is given both a shape and a value")


def no_progress(stage: str, done: int, total: int) -> None:
    """A Progress that tells nobody."""
