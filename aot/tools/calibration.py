"""Reads calibration data for quantisation: samples that map the names of inputs to arrays.

Owns where it comes from and what it must look like. Invents nothing: numbers that no input ever has
would give steps that fit nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir import array_files
from aot.ir.types import Array
from aot.tools.pictures import NEEDED, SUFFIXES, Pictures, array_of

Sample = Mapping[str, Array]
MOST_SAMPLES = 4096
# what the name of an open first dim has where it counts the parts of a sample
_PARTS = ("seq", "time", "step", "len", "frame", "token")


@dataclass(frozen=True)
class InputSpec:
    """An input that calibration data must have.

    Attributes:
        dims: a number, or None for one that is open.
        first: the name of the first dim, where it is open and has one.
    """

    name: str
    dtype: np.dtype[np.generic]
    dims: tuple[int | None, ...]
    first: str = ""

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype}[{dims}]"

    @property
    def is_length(self) -> bool:
        """Whether the name of the first dim says that it counts the parts of a sample, such as
        tokens."""
        name = self.first.lower()
        return name == "t" or any(part in name for part in _PARTS)

    @property
    def has_batch(self) -> bool:
        """Whether the first dim is a batch: it is 1 or dynamic, and its name is not that of a
        length."""
        return len(self.dims) > 1 and self.dims[0] in (1, None) and not self.is_length


def samples_of(
    path: str | os.PathLike[str], inputs: Sequence[InputSpec], pictures: Pictures | None = None
) -> list[Sample]:
    """Reads the samples from a folder or a file.

    Args:
        path: a folder of .npz files with an array an input, of .npy files for a model with one
            input, or of pictures for one; or one such file. An array holds several samples where
            its input's batch, which is 1 or open, has several, or where it has one dim more than
            its input.
        pictures: how pictures become numbers.

    Raises:
        CompileError: nothing is there, or an array does not fit; names the file and the input.
    """
    where = Path(path)
    if where.is_dir():
        known = {".npz", ".npy", *SUFFIXES}
        files = sorted(p for p in where.iterdir() if p.suffix.lower() in known)
        if not files:
            raise CompileError(f"{where}: no .npz or .npy file and no picture is in this folder")
    elif where.is_file():
        files = [where]
    else:
        raise CompileError(f"cannot read {where}: no such file or folder")
    found: list[Sample] = []
    for file in files:
        if file.suffix.lower() in SUFFIXES:
            found.append(_of_picture(file, inputs, pictures))
        else:
            found += split_samples(str(file), _arrays(file, inputs), inputs)
        _check_count(str(where), found)
    return found


def samples_in(given: Iterable[Sample], inputs: Sequence[InputSpec]) -> list[Sample]:
    """Checks samples given as mappings from names of inputs to arrays, each like an .npz file.

    Raises:
        CompileError: there is none, or an array does not fit; names the number and the input.
    """
    found: list[Sample] = []
    for number, arrays in enumerate(given):
        named = {name: np.asarray(array) for name, array in arrays.items()}
        found += split_samples(f"sample {number}", named, inputs)
        _check_count("the calibration data", found)
    if not found:
        raise CompileError("the calibration data has no samples")
    return found


def _check_count(where: str, found: Sequence[Sample]) -> None:
    if len(found) > MOST_SAMPLES:
        raise CompileError(f"{where}: more than {MOST_SAMPLES} samples; some hundred are enough")


def _of_picture(file: Path, inputs: Sequence[InputSpec], pictures: Pictures | None) -> Sample:
    if pictures is None:
        raise CompileError(f"{file}: how a picture becomes numbers is not given: {NEEDED}")
    if len(inputs) != 1 or inputs[0].dtype != np.float32:
        shown = ", ".join(f"{spec.name}: {spec}" for spec in inputs)
        raise CompileError(f"{file}: a picture is one input of float32, the model has {shown}")
    return {inputs[0].name: array_of(file, pictures, inputs[0].dims)}


def split_samples(
    file: str, arrays: Mapping[str, Array], inputs: Sequence[InputSpec]
) -> list[Sample]:
    """The samples in arrays that hold several, by the names of inputs.

    Args:
        file: what errors call where they come from.
    """
    missing = [spec.name for spec in inputs if spec.name not in arrays]
    if missing:
        names = ", ".join(sorted(arrays)) or "none"
        raise CompileError(f"{file}: no array for input {missing[0]!r}; it has {names}")
    batches = _batches(inputs)
    several = {
        spec.name: _several(file, spec, arrays[spec.name], has_batch=spec in batches)
        for spec in inputs
    }
    counts = {name: len(array) for name, array in several.items() if array is not None}
    if len(set(counts.values())) > 1:
        texts = ", ".join(f"{name} {n}" for name, n in counts.items())
        raise CompileError(f"{file}: inputs have unlike numbers of samples: {texts}")
    (count,) = set(counts.values()) or {1}
    return [
        {name: arrays[name] if found is None else found[number] for name, found in several.items()}
        for number in range(count)
    ]


def _batches(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    """The inputs whose first dim is a batch; none if some other dynamic first dim may be one
    too."""
    found = [spec for spec in inputs if spec.has_batch]
    names = {spec.first for spec in found} - {""}
    found += [spec for spec in inputs if len(spec.dims) == 1 and spec.first in names]
    unclear = [s for s in inputs if s.dims[:1] == (None,) and not s.is_length and s not in found]
    return [] if unclear else found


def _arrays(file: Path, inputs: Sequence[InputSpec]) -> dict[str, Array]:
    loaded = array_files.arrays(file)
    if not isinstance(loaded, np.ndarray):
        return loaded
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise CompileError(f"{file}: one array, but the model has inputs {names}; use .npz files")
    return {inputs[0].name: loaded}


def _several(file: str, spec: InputSpec, array: Array, *, has_batch: bool) -> Array | None:
    """The samples in an array, along its first dim; None if the array is a single sample.

    Raises:
        CompileError: the array is of another dtype or shape, or not finite.
    """
    if array.dtype != spec.dtype:
        raise CompileError(f"{file}: input {spec.name!r} is {array.dtype}, expected {spec.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CompileError(f"{file}: input {spec.name!r} has NaN or infinite elements")
    if has_batch and len(array.shape) == len(spec.dims) and len(array) > 1:
        if _fits(array.shape[1:], spec.dims[1:]):
            return array[:, None]
    elif _fits(array.shape, spec.dims):
        return None
    if array.ndim and _fits(array.shape[1:], spec.dims):
        return array
    shown = ", ".join(map(str, array.shape))
    raise CompileError(
        f"{file}: input {spec.name!r} has shape [{shown}], expected {spec} "
        "or one dim more in front, for several samples"
    )


def _fits(shape: Sequence[int], dims: Sequence[int | None]) -> bool:
    return len(shape) == len(dims) and all(d in (None, n) for d, n in zip(dims, shape, strict=True))
