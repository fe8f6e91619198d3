"""Single ONNX ops on values and extents that their cases lack, beside ONNX Runtime.

A variation is a case with other extents, with NaN, infinities, zeros of both signs, halves and the
ends of its types among its elements, behind and before ops that fusion joins it with, its extents
known or open. It follows from its number:

    python -m tests.support.onnx_properties FIRST COUNT [TARGET]

compares COUNT variations from FIRST on with ONNX Runtime, in the reference interpreter or compiled
for a target of this machine, prints those that differ, and exits with 1 then.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import aot
from aot.errors import ProofWarning
from aot.frontends.onnx import import_onnx
from tests.support.onnx_cases import CASES
from tests.support.onnx_models import Array, Case, ort_run, our_run

EXTENTS = (0, 1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 33)
MOST = 1 << 15  # elements of an operand
HALVES = tuple(n / 2 for n in range(-7, 8))
SPECIAL = (
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5),
    *(88.8, -88.8, 1e-20, 1e20, -1e20, 1e-38, 1e-45, 65504.0, 3e38, -3e38),
)
LARGE = 1e4  # from here on, squares and sums overflow in one order and not in another
# Ops of which integers are numbers, not places: the operands that may have any.
_THREE = "Add Sub Mul Min Max Sum Equal Less Greater Where Mod"
_ONE = "Neg Abs Sign Clip ReduceMax ReduceMin ArgMax ArgMin TopK CumSum Transpose Concat Flatten"
NUMBERS = {**dict.fromkeys(_THREE.split(" "), 3), **dict.fromkeys(_ONE.split(" "), 1)}


@dataclass(frozen=True)
class Exclusion:
    """What is not asked of some ops, as their specification leaves it open, or as ONNX Runtime
    gives something else than we promise.

    Attributes:
        values: elements that are left out: "large" ones, "special" ones, which NaN and infinities
            are as well, or "all" but the case's own.
        extents: those that are left out: "empty" ones, which are 0, or "all" but the case's own.
        why: what is open, or what we promise.
    """

    ops: str
    values: str
    extents: str
    why: str


EXCLUSIONS = (
    Exclusion(
        "ArgMax ArgMin Hardmax MaxPool GlobalMaxPool ReduceMax ReduceMin ScatterElements Unique "
        "NonMaxSuppression ScatterND",
        *("special", "", "NaN is greater than any number here; there, order decides"),
    ),
    Exclusion(
        "Cast CastLike DynamicQuantizeLinear",
        *("special", "", "what integer NaN or infinity becomes is not said"),
    ),
    Exclusion("ReduceProd", *("all", "all", "products overflow in one order, and not in another")),
    Exclusion("Det", *("special", "all", "large ones differ by the order of their sums")),
    Exclusion("Clip", *("special", "", "what a bound that is NaN does is not said")),
    Exclusion(
        "QuantizeLinear QLinearMatMul QLinearConv",
        *("all", "", "nor what a quotient by a step of 0 does"),
    ),
    Exclusion(
        "Conv ConvTranspose AveragePool LpPool GridSample RoiAlign DFT STFT Einsum "
        "InstanceNormalization GroupNormalization LRN",
        *("special", "", "0 of a padding, or of a weight, times infinity is left out or is not"),
    ),
    Exclusion("Attention", *("special", "", "keys that are masked are not read here, NaN or not")),
    Exclusion(
        "GRU LSTM RNN",
        *("special", "all", "its activations make numbers of NaN; its states of 0 steps are unset"),
    ),
    Exclusion(
        "MatMul Gemm BatchNormalization MeanVarianceNormalization LpNormalization ReduceSum "
        "ReduceMean ReduceL2 ReduceSumSquare ReduceLogSumExp ReduceLogSum ReduceL1 CumSum Softmax "
        "LogSoftmax LayerNormalization GlobalAveragePool GlobalLpPool",
        *("large", "", "sums overflow in one order and not in another"),
    ),
    Exclusion(
        "AveragePool MaxPool LpPool", *("special", "all", "windows that do not fit once: 0 or 1")
    ),
    Exclusion(
        "Compress", *("large", "all", "what chooses behind the end is refused here, left out there")
    ),
    Exclusion("MaxUnpool", *("special", "all", "places that are met twice")),
    Exclusion(
        "Resize Upsample", *("special", "all", "a scale in float32 is exact here, and rounds there")
    ),
    Exclusion(
        "ConvTranspose", *("special", "all", "SAME of a kernel below its stride: by the text here")
    ),
    Exclusion("ReduceMean", *("large", "empty", "the mean of nothing is NaN here and 0 there")),
    Exclusion(
        "GroupNormalization",
        *("special", "empty", "the Reshape of its definition copies a dim where an extent is 0"),
    ),
)


@dataclass(frozen=True)
class Variation:
    """Attributes:
    case: what was varied.
    before, after: ops that compute its first operand, and what is done with its first result.
    is_open: whether extents are unknown when it is imported.
    """

    case: Case
    before: str
    after: str
    is_open: bool

    def model(self) -> onnx.ModelProto:
        """The model: the op, and those around it."""
        model = self.case.model(symbolic=self.is_open)
        graph = model.graph
        (node,) = graph.node
        if self.before:
            graph.node.insert(0, helper.make_node(self.before, ["x0"], ["made"], name="before"))
            node = graph.node[1]
            node.input[0] = "made"
        if self.after:
            graph.node.append(helper.make_node(self.after, ["y0"], ["done"], name="after"))
            graph.output[0].name = "done"
        return model

    def __str__(self) -> str:
        shapes = [None if a is None else f"{a.dtype}{list(a.shape)}" for a in self.case.inputs]
        return f"{self.case} of {shapes} {dict(self.case.attrs)}, {self.before} {self.after}"


def variation_of(number: int) -> Variation:
    """The variation of a number."""
    rng = random.Random(number)
    case = rng.choice([c for c in CASES if c.domain == ""])
    arrays = [None if a is None else np.asarray(a) for a in case.inputs]
    excluded = [e for e in EXCLUSIONS if case.op in e.ops.split(" ")]
    kept = {e.extents for e in excluded}
    if "all" not in kept:
        arrays = _resized(arrays, rng, least=1 if "empty" in kept else 0)
    values = rng.choice(("special", "special", "halves", "plain"))
    left_out = {e.values for e in excluded}
    if "all" in left_out:
        values = "plain"
    elif values == "special" and left_out:
        values = "halves" if "special" in left_out else "small"
    arrays = [
        a if a is None or n in case.constant else _filled(a, n, case.op, values, rng)
        for n, a in enumerate(arrays)
    ]
    first = arrays[0] if arrays else None
    is_float = first is not None and first.dtype == np.float32 and 0 not in case.constant
    before = rng.choice(("", "", "Neg", "Abs")) if is_float else ""
    is_joined = is_float and case.outputs == 1 and case.op not in ("Cast",)
    after = rng.choice(("", "", "Neg")) if is_joined else ""
    is_open = case.is_symbolic and bool(case.feeds()) and rng.random() < 0.4
    return Variation(replace(case, inputs=arrays), before, after, is_open)


def _resized(
    arrays: Sequence[Array | None], rng: random.Random, *, least: int
) -> list[Array | None]:
    """The arrays with other extents of `least` or more, equal ones where they were equal."""
    if rng.random() < 0.4:
        return list(arrays)
    old = sorted({n for a in arrays if a is not None for n in a.shape if n > 1})
    has_places = any(a is not None and a.dtype.kind in "iu" for a in arrays)
    new = {n: max(rng.choice(EXTENTS), n if has_places else least) for n in old}
    new = {n: m if rng.random() < 0.7 else n for n, m in new.items()}
    made: list[Array | None] = []
    for a in arrays:
        if a is None:
            made.append(None)
            continue
        shape = tuple(new.get(n, n) for n in a.shape)
        if np.prod(shape) > MOST:
            return list(arrays)
        made.append(np.resize(a, shape) if a.size else np.zeros(shape, a.dtype))
    return made


def _filled(a: Array, number: int, op: str, values: str, rng: random.Random) -> Array:
    """An array with special values among its own."""
    chance = np.random.default_rng(rng.randrange(1 << 31))
    if values == "plain" or not a.size:
        return a
    if a.dtype.kind == "f":
        pool = np.asarray(HALVES if values == "halves" else SPECIAL)
        pool = pool if values != "small" else pool[~(np.abs(pool) > LARGE) | np.isinf(pool)]
        with np.errstate(over="ignore"):
            drawn = chance.choice(pool, a.shape).astype(a.dtype)
        keeps = chance.random(a.shape) < (0.0 if values == "halves" else 0.6)
        return np.where(keeps, a, drawn)
    if a.dtype.kind in "iu" and number < NUMBERS.get(op, 0):
        ends = np.iinfo(a.dtype)
        pool = np.array([ends.min, ends.max, 0, 1, ends.max // 2], a.dtype)
        return np.where(chance.random(a.shape) < 0.5, a, chance.choice(pool, a.shape))
    return a


class Oracle:
    """ONNX Runtime in a process of its own, as some of its kernels divide by an extent of 0."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._ours: Connection | None = None

    def __call__(self, model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array] | None:
        """The results; None where it does not run the model."""
        if self._process is None or not self._process.is_alive() or self._ours is None:
            context = multiprocessing.get_context("spawn")
            self._ours, theirs = context.Pipe()
            self._process = context.Process(target=_answer, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._ours.send((model.SerializeToString(), feeds))
            found: list[Array] | None = self._ours.recv()
        except (EOFError, OSError):
            self._process.join()
            self._process = None
            return None
        return found

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _answer(pipe: Connection) -> None:
    onnxruntime.set_default_logger_severity(3)  # errors; RoiAlign warns about itself
    while True:
        try:
            data, feeds = pipe.recv()
        except EOFError:
            return
        try:
            found: list[Array] | None = ort_run(onnx.ModelProto.FromString(data), feeds)
        except Exception:  # its exceptions have no common base
            found = None
        pipe.send(found)


def problem_of(variation: Variation, oracle: Oracle, target: str = "") -> str | None:
    """How results differ from ONNX Runtime's; "" where they don't, None where it does not run the
    variation, or we refuse it."""
    model, feeds = variation.model(), variation.case.feeds()
    expected = oracle(model, feeds)
    if expected is None:
        return None
    try:
        if target:
            with warnings.catch_warnings():
                if variation.is_open:  # as weights of open extents: other tests ask for proofs
                    warnings.simplefilter("ignore", ProofWarning)
                module = aot.compile(model, targets=[target], cache=False, jobs=1)
            with aot.load(module) as program:
                found = list(program(feeds).values())
        else:
            found = our_run(import_onnx(model).main, feeds)
    except (aot.UnsupportedError, aot.CompileError):
        return None  # told in one line
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    with np.errstate(all="ignore"):
        return _difference(found, expected)


def _difference(found: Sequence[Array], expected: Sequence[Array]) -> str:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return f"result {number}: {ours.dtype}{ours.shape}, {theirs.dtype}{theirs.shape}"
        off = _off(ours, theirs)
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            return f"result {number} at {at}: {ours[at]}, ONNX Runtime {theirs[at]}"
    return ""


def _off(ours: Array, theirs: Array) -> Array:
    if theirs.dtype.kind != "f":
        return np.asarray(ours != theirs)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    largest = float(np.finfo(theirs.dtype).max) / 8  # sums that overflow in another order
    a, b = (np.where(np.abs(x) > largest, np.sign(x) * np.inf, x) for x in (a, b))
    usual = np.abs(b[np.isfinite(b) & (np.abs(b) < 1e4)])
    scale = float(np.max(usual, initial=0))
    narrow = 2e-3 if theirs.dtype.itemsize == 2 else 1e-4
    is_near = np.abs(a - b) <= narrow * (np.abs(b) + scale)
    return ~(is_near | (a == b) | (np.isnan(a) & np.isnan(b)))


def main(arguments: Sequence[str]) -> int:
    """Runs the variations that the command line asks for."""
    first, count, *target = arguments
    oracle, found = Oracle(), Counter[str]()
    for number in range(int(first), int(first) + int(count)):
        variation = variation_of(number)
        problem = problem_of(variation, oracle, *target)
        found["none" if problem is None else "differ" if problem else "agree"] += 1
        if problem:
            print(f"{number}: {variation}\n  {problem}", flush=True)
    oracle.close()
    print(f"{found['agree']} agree, {found['differ']} differ, {found['none']} are none")
    return 1 if found["differ"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
