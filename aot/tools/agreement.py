"""Measures the agreement of two arrays: the largest error, the worst element, a histogram of
errors.

Owns how far an output of a compiled module is from what another engine gives for it. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import CompileError

Arrays = Mapping[str, NDArray[Any]]
TOLERANCE = 1e-4
DECADES = tuple(10.0**-n for n in range(8, -1, -1))
"""Upper ends of a histogram's bins, behind the first, which has the elements without an error."""


@dataclass(frozen=True)
class Worst:
    """The element of an output that differs most from the engine's.

    Attributes:
        index: where it is, an index along each dim.
        found, expected: the module's number, and the engine's.
    """

    index: tuple[int, ...]
    found: float
    expected: float


@dataclass(frozen=True)
class OutputAgreement:
    """The agreement of one output with the engine's result.

    Attributes:
        magnitude: the largest finite absolute value that the engine has.
        error: the largest absolute difference, divided by the magnitude where that is not 0;
            infinite where shapes, dtypes, or the places of NaN and infinities differ.
        rms: the root of the mean squared difference, divided likewise.
        tolerance, rms_tolerance: how large the two may be.
        problem: why the error is infinite.
        is_constant: the engine's elements are all one number, so that agreement says little.
        worst: the element with the largest error; None where no element has one.
        histogram: how many elements have no error, an error up to each of DECADES, and a larger
            one: len(DECADES) + 2 counts; empty where elements can't be compared.
        noise: the error that the model's own roundings explain, as `aot.tools.rounding` measures
            it; None where it was not measured.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    magnitude: float
    error: float
    problem: str = ""
    is_constant: bool = False
    rms: float = 0.0
    tolerance: float = TOLERANCE
    rms_tolerance: float = float("inf")
    worst: Worst | None = None
    histogram: tuple[int, ...] = ()
    noise: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether the differences are within the tolerance."""
        return self.error <= self.tolerance and self.rms <= self.rms_tolerance


def compare_all(results: Arrays, expected: Arrays) -> tuple[OutputAgreement, ...]:
    """The agreement of each of a module's outputs with the engine's output of the same name.

    Raises:
        CompileError: the two have other names, or another order.
    """
    if list(results) != list(expected):
        raise CompileError(
            f"the module's outputs are {', '.join(results)}; the model's are {', '.join(expected)}"
        )
    return tuple(compare(name, result, expected[name]) for name, result in results.items())


def compare(name: str, result: NDArray[Any], expected: NDArray[Any]) -> OutputAgreement:
    """The agreement of `result` with `expected`."""
    dtype, shape = str(result.dtype), result.shape
    if result.dtype != expected.dtype or shape != expected.shape:
        problem = f"the engine gives {expected.dtype}{list(expected.shape)}"
        return OutputAgreement(name, dtype, shape, 0.0, float("inf"), problem)
    if result.dtype == object:
        wrong = int(np.count_nonzero(result != expected))
        problem = f"{wrong} of {result.size} strings differ" if wrong else ""
        return OutputAgreement(name, "string", shape, 0.0, float("inf") if wrong else 0.0, problem)
    a, b = _wide(result), _wide(expected)
    finite = np.isfinite(b)
    magnitude = float(np.max(np.abs(b[finite]), initial=0))
    # Where one is not finite, both must be the same: NaN with NaN, an infinity with its like.
    is_same = np.isfinite(a) & finite | (a == b) | np.isnan(a) & np.isnan(b)
    if not is_same.all():
        problem = "NaN or infinities in different places"
        worst = _element(~is_same, a, b)
        return OutputAgreement(name, dtype, shape, magnitude, float("inf"), problem, worst=worst)
    with np.errstate(invalid="ignore"):
        differences = np.where(finite, np.abs(a - b), 0)
    is_constant = b.size > 1 and bool(finite.all()) and bool((b == b.flat[0]).all())
    errors = differences / (magnitude or 1.0)
    rms = float(np.sqrt(np.mean(errors[finite] ** 2))) if finite.any() else 0.0
    return OutputAgreement(
        name,
        dtype,
        shape,
        magnitude,
        float(np.max(errors, initial=0)),
        is_constant=is_constant,
        rms=rms,
        worst=_element(errors, a, b),
        histogram=_histogram(errors),
    )


def least_agreement(steps: Sequence[tuple[OutputAgreement, ...]]) -> tuple[OutputAgreement, ...]:
    """The least agreement of each output over all steps. It is constant if it is so in all steps,
    and its histogram counts the errors of all steps."""
    return tuple(
        replace(
            max(same, key=lambda o: (o.error, not o.is_constant)),
            rms=max(o.rms for o in same),
            is_constant=all(o.is_constant for o in same),
            histogram=_sums([o.histogram for o in same if o.histogram]),
        )
        for same in zip(*steps, strict=True)
    )


def _sums(histograms: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(counts) for counts in zip(*histograms, strict=True))


def _element(score: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> Worst | None:
    """The element with the highest score, the first of several; None if no score is above 0."""
    if not score.size or not score.max() > 0:
        return None
    index = tuple(int(n) for n in np.unravel_index(np.argmax(score), score.shape))
    return Worst(index, float(a[index]), float(b[index]))


def _histogram(errors: NDArray[Any]) -> tuple[int, ...]:
    bins = np.searchsorted(np.asarray(DECADES), errors[errors > 0])
    none = errors.size - bins.size
    return (none, *np.bincount(bins.ravel(), minlength=len(DECADES) + 1).tolist())


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    # Where long double is 80 bits it holds every 64-bit integer.
    return array.astype(np.longdouble if array.dtype.itemsize == 8 else np.float64)
