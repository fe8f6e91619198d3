"""Calibration data: what a user's model is quantised by, one mapping of arrays a sample.

Owns where it comes from and what it must look like. Invents nothing: numbers that no input ever has
would give steps that fit nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir import array_files
from aot.ir.types import Array

Sample = Mapping[str, Array]
MOST_SAMPLES = 4096


@dataclass(frozen=True)
class InputSpec:
    """An input that calibration data must have.

    Attributes:
        dims: a number, or None for one that is open.
    """

    name: str
    dtype: np.dtype[np.generic]
    dims: tuple[int | None, ...]

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype}[{dims}]"


def samples_of(path: str | os.PathLike[str], inputs: Sequence[InputSpec]) -> list[Sample]:
    """The samples of a folder or a file.

    Args:
        path: a folder, each .npz file of which is a sample, with an array an input, and each .npy
            file one of a model with one input; or one such file. An array may have one dim more
            than its input: then it holds several samples.

    Raises:
        CompileError: nothing is there, or an array does not fit; names the file and the input.
    """
    where = Path(path)
    if where.is_dir():
        files = sorted(p for p in where.iterdir() if p.suffix in (".npz", ".npy"))
        if not files:
            raise CompileError(f"{where}: no .npz or .npy file is in this folder")
    elif where.is_file():
        files = [where]
    else:
        raise CompileError(f"cannot read {where}: no such file or folder")
    found: list[Sample] = []
    for file in files:
        found += _of_file(file, inputs)
        if len(found) > MOST_SAMPLES:
            raise CompileError(
                f"{where}: more than {MOST_SAMPLES} samples; some hundred are enough"
            )
    return found


def _of_file(file: Path, inputs: Sequence[InputSpec]) -> list[Sample]:
    arrays = _arrays(file, inputs)
    missing = [spec.name for spec in inputs if spec.name not in arrays]
    if missing:
        names = ", ".join(sorted(arrays)) or "none"
        raise CompileError(f"{file}: no array for input {missing[0]!r}; it has {names}")
    counts = {spec.name: _count(file, spec, arrays[spec.name]) for spec in inputs}
    numbers = {n for n in counts.values() if n is not None}
    if len(numbers) > 1:
        texts = ", ".join(f"{name} {n}" for name, n in counts.items() if n is not None)
        raise CompileError(f"{file}: inputs have unlike numbers of samples: {texts}")
    (count,) = numbers or {1}
    return [
        {
            s.name: arrays[s.name] if counts[s.name] is None else arrays[s.name][number]
            for s in inputs
        }
        for number in range(count)
    ]


def _arrays(file: Path, inputs: Sequence[InputSpec]) -> dict[str, Array]:
    loaded = array_files.arrays(file)
    if not isinstance(loaded, np.ndarray):
        return loaded
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise CompileError(f"{file}: one array, but the model has inputs {names}; use .npz files")
    return {inputs[0].name: loaded}


def _count(file: Path, spec: InputSpec, array: Array) -> int | None:
    """How many samples an array holds; None where it is one."""
    if array.dtype != spec.dtype:
        raise CompileError(f"{file}: input {spec.name!r} is {array.dtype}, expected {spec.dtype}")
    for shape, count in ((array.shape, None), (array.shape[1:], len(array) if array.ndim else 0)):
        is_like = len(shape) == len(spec.dims) and all(
            d in (None, n) for d, n in zip(spec.dims, shape, strict=True)
        )
        if is_like:
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise CompileError(f"{file}: input {spec.name!r} has NaN or infinite elements")
            return count
    shown = ", ".join(map(str, array.shape))
    raise CompileError(
        f"{file}: input {spec.name!r} has shape [{shown}], expected {spec} "
        "or one dim more in front, for several samples"
    )
