"""Compares what a compiled module computes with another engine: the proof of the pudding.

Owns the measure of agreement. Engines get the model as the user has it, so that the importer is
under test as well as everything behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.api import CompiledModule, load
from aot.api import compile as compile_model
from aot.errors import CompileError
from aot.frontends import registry
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import Disturbance, run
from aot.options import CompileOptions, Tie
from aot.records import dataclass
from aot.runtime.inputs import make_inputs
from aot.runtime.tensors import TensorInfo
from aot.tools.litert_engine import run_litert
from aot.tools.onnx_engine import first_line, numpy_name
from aot.tools.open_extents import with_followers
from aot.tools.rounding import ALLOWANCE, RUNS, OtherRoundings, rounds
from aot.tools.string_numbers import StringNumbers
from aot.tools.torch_engine import run_torch

Arrays = Mapping[str, NDArray[Any]]
TOLERANCE = 1e-4
STATE_STEPS = 3
TRIES = 4  # random inputs that are tried until every output has elements that differ


@dataclass(frozen=True)
class OutputAgreement:
    """How one output compares.

    Attributes:
        magnitude: the largest finite absolute value that the engine has.
        error: the largest absolute difference, divided by the magnitude where that is not 0;
            infinite where shapes, dtypes, or the places of NaN and infinities differ.
        rms: the root of the mean squared difference, divided likewise.
        tolerance, rms_tolerance: how large the two may be.
        problem: why the error is infinite.
        is_constant: the engine's elements are all one number, so that agreement says little.
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

    @property
    def agrees(self) -> bool:
        """Whether the differences are as small as they may be."""
        return self.error <= self.tolerance and self.rms <= self.rms_tolerance


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify`.

    Attributes:
        engine: what the module was compared with.
        target: the variant that ran.
        tolerance: what was asked for; an output's own is more where the model's roundings explain
            more.
        inputs: the arrays that both got.
    """

    engine: str
    target: str
    tolerance: float
    inputs: Arrays
    outputs: tuple[OutputAgreement, ...]

    def __repr__(self) -> str:
        worst = max((o.error for o in self.outputs), default=0.0)
        outcome = "agrees" if self.agrees else "does not agree"
        return (
            f"<Verification: {self.target} {outcome} with {self.engine}, {len(self.outputs)} "
            f"outputs, largest error {worst:.2g}, tolerance {self.tolerance:g}>"
        )

    @property
    def uninformative(self) -> tuple[str, ...]:
        """Outputs whose agreement says little: all elements are one number, whatever the inputs
        that were tried."""
        return tuple(o.name for o in self.outputs if o.is_constant)

    @property
    def agrees(self) -> bool:
        """Whether every output is within the tolerance."""
        return all(o.agrees for o in self.outputs)

    @property
    def rounded(self) -> tuple[OutputAgreement, ...]:
        """Outputs that may differ by more than `tolerance`, as the model rounds."""
        return tuple(o for o in self.outputs if o.tolerance > self.tolerance)


def verify(
    module: Any,
    model: Any,
    *,
    against: str | None = None,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    shapes: Mapping[str, Sequence[int] | Sequence[Sequence[int]]] | None = None,
    input_values: Mapping[str, ArrayLike] | None = None,
    states: Mapping[str, str | tuple[str, int]] | None = None,
    steps: int | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    target: str | None = None,
    entry: str | None = None,
) -> Verification:
    """Runs a compiled module and the model it came from on the same inputs, and compares.

    A module of PyTorch is its own engine: `verify(module, (x,))` compiles it and compares what both
    make of x, `verify(compiled, module, inputs=(x,))` compares what was compiled.

    Args:
        module: what was compiled; or a `torch.nn.Module` or `torch.export.ExportedProgram`.
        model: the model file it was compiled from; or the module of PyTorch; or, where `module` is
            one, the tuple of its arguments.
        against: "reference", our numpy interpreter, or "onnxruntime", "litert" or "torch", where
            these are installed. By default litert of a TFLite file and torch of a PyTorch program,
            if it keeps no states, else the reference.
        inputs: input name -> array; the others are random. Of a module of PyTorch, the tuple of its
            arguments.
        kwargs: more arguments of a module of PyTorch, by name.
        dynamic_shapes: the open dims of a module of PyTorch, as `aot.compile` takes them.
        shapes: input name -> extents, for random inputs with symbolic dims; or a list of extents,
            one for each step, of which the last is that of all further steps. What follows from
            others is found, such as a mask's extent of `past + T`.
        input_values: what the module was compiled with; the engine gets it as input.
        states: what the module was compiled with; the engine gets its own outputs as inputs of the
            next step, and zeros at first.
        steps: calls one after another, each on random inputs of its own. By default STATE_STEPS
            where there are states, and as many as `shapes` has lists for; else 1, and up to TRIES
            where an output is one number all over.
        tolerance: of the error relative to each output's largest magnitude. By default TOLERANCE,
            or, of a model that quantises or computes in 16 bits, what `aot.tools.rounding` finds
            that roundings explain.
        seed: of the random inputs.
        device, target, entry: as `load` takes them.

    Raises:
        CompileError: an input, a shape or the engine is wrong.
        RuntimeFailure: the module does not run.
    """
    if registry.is_torch(module) or registry.is_torch(model):
        return _with_module(
            module, model, inputs, kwargs, dynamic_shapes, steps, tolerance, device, target
        )
    if kwargs is not None or dynamic_shapes is not None:
        raise CompileError("kwargs and dynamic_shapes go with a module of PyTorch")
    if against is not None and against not in ENGINES:
        raise CompileError(f"no engine is called {against!r}: {', '.join(ENGINES)}")
    with load(module, device, entry=entry, target=target) as program:
        outputs = _outputs_of_states(program.states, _states(program.states, model, states or {}))
        against = against or usual_engine(model, has_states=bool(program.states))
        if against in OWN_ENGINES and program.states:
            raise CompileError(f"{against} keeps states itself: compare with the reference")
        engine = ENGINES[against]
        first = {t.name: _at_first(t) for t in program.states}
        calls = _Calls(Path(model), _arrays(input_values or {}), program.updates, outputs, first)
        found: list[tuple[OutputAgreement, ...]] = []
        sizes = {name: _each_step(shape) for name, shape in (shapes or {}).items()}
        planned = max([1, *map(len, sizes.values())])
        is_given = first or steps is not None or planned > 1
        is_random = not is_given and set(inputs or {}) < {t.name for t in program.inputs}
        usual = STATE_STEPS if first else TRIES if is_random else 1
        for step in range(steps or max(usual, planned)):
            kept = {name: array.shape for name, array in calls.kept.items()}
            now = {name: shape[min(step, len(shape) - 1)] for name, shape in sizes.items()}
            extents = with_followers(program.inputs, inputs or {}, now, program.states, kept)
            arrays = make_inputs(program.inputs, inputs or {}, extents, seed + step)
            written = {i: np.array(arrays[i]) for i in program.updates.values()}
            results = program({**arrays, **written})
            found.append(_compare_all(results, calls.next(engine, arrays)))
            if is_random and not any(o.is_constant for o in _worst(found)):
                break
        variant = program.target
    compared = _worst(found)
    if tolerance is None and any(TOLERANCE < o.error < float("inf") for o in compared):
        compared = _allowed(compared, calls)
    elif tolerance is not None:
        compared = tuple(replace(o, tolerance=tolerance) for o in compared)
    allowed = TOLERANCE if tolerance is None else tolerance
    return Verification(against, variant, allowed, arrays, compared)


Engine = Callable[[Path, Arrays], dict[str, NDArray[Any]]]


class _Calls:
    """Calls of an engine one after another; what the model keeps is passed on."""

    def __init__(
        self,
        model: Path,
        values: Arrays,
        updates: Mapping[str, str],
        outputs: Mapping[str, str],
        first: Arrays,
    ) -> None:
        """
        Args:
            values: more inputs, the same at each call.
            updates: output -> the input that it is written to.
            outputs: state -> the output that it is after a call.
            first: what states are before the first call.
        """
        self.model, self.values, self.updates, self.outputs = model, values, updates, outputs
        self.first = first
        self.kept = dict(first)
        self.inputs: list[Arrays] = []

    def next(self, engine: Engine, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """What the engine gives next."""
        self.inputs.append(arrays)
        feeds = {i: np.array(arrays[i]) for i in self.updates.values()}
        found = engine(self.model, {**arrays, **feeds, **self.values, **self.kept})
        found |= {o: feeds[i] for o, i in self.updates.items()}
        self.kept = {name: found.pop(output) for name, output in self.outputs.items()}
        return found

    def again(self, engine: Engine) -> list[dict[str, NDArray[Any]]]:
        """What another engine gives in the same calls."""
        calls = _Calls(self.model, self.values, self.updates, self.outputs, self.first)
        return [calls.next(engine, arrays) for arrays in self.inputs]


def _allowed(outputs: tuple[OutputAgreement, ...], calls: _Calls) -> tuple[OutputAgreement, ...]:
    """The outputs with the tolerances that the model's roundings explain."""
    module = _read(calls.model)
    if not rounds(module):
        return outputs
    expected = calls.again(_interpreter(module))
    others = [calls.again(_interpreter(module, OtherRoundings(seed))) for seed in range(RUNS)]
    spread = _worst(
        [_compare_all(a, b) for made in others for a, b in zip(made, expected, strict=True)]
    )
    return tuple(
        replace(o, tolerance=max(TOLERANCE, ALLOWANCE * s.error), rms_tolerance=ALLOWANCE * s.rms)
        if ALLOWANCE * s.error > TOLERANCE
        else o
        for o, s in zip(outputs, spread, strict=True)
    )


def _with_module(
    module: Any,
    model: Any,
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    steps: int | None,
    tolerance: float | None,
    device: str,
    target: str | None,
) -> Verification:
    """A module of PyTorch against what was compiled of it, or is compiled now."""
    from aot.tools.module_verification import run_both

    if registry.is_torch(module):
        source, args = module, model
        options = (args, kwargs, dynamic_shapes) if registry.is_torch_module(module) else ()
        names = ("args", "kwargs", "dynamic_shapes")
        compiled = compile_model(
            source, targets=[target or "host"], **dict(zip(names, options, strict=False))
        )
    else:
        source, args, compiled = model, inputs, module
    if not isinstance(compiled, CompiledModule) or not isinstance(args, (tuple, list)):
        raise CompileError(
            "a module of PyTorch is verified with a tuple of arguments, as "
            "aot.verify(module, (x,)), or aot.verify(compiled, module, inputs=(x,))"
        )
    variant, arrays, found = run_both(
        compiled,
        source,
        args,
        kwargs or {},
        steps=steps,
        usual_steps=STATE_STEPS,
        device=device,
        target=target,
    )
    allowed = TOLERANCE if tolerance is None else tolerance
    worst = _worst([_compare_all(ours, theirs) for ours, theirs in found])
    worst = tuple(replace(o, tolerance=allowed) for o in worst)
    return Verification("torch", variant, allowed, arrays, worst)


def _states(
    kept: Sequence[TensorInfo], model: Any, states: Mapping[str, str | tuple[str, int]]
) -> Mapping[str, str | tuple[str, int] | Tie]:
    """The states that were given, and those that the model has itself."""
    if all(t.name in states for t in kept):
        return states
    return {**_read(model).states, **states}


def _outputs_of_states(
    kept: Sequence[TensorInfo], states: Mapping[str, str | tuple[str, int] | Tie]
) -> dict[str, str]:
    """Which output each of a program's states is after a run."""
    names = [t.name for t in kept]
    for name in states:
        if name not in names:
            listed = ", ".join(names) or "none"
            raise CompileError(f"the module keeps no state {name!r}; its states are {listed}")
    for name in names:
        if name not in states:
            raise CompileError(
                f"the module keeps state {name!r}: say which output it was compiled with "
                f"(--state {name}=OUTPUT)"
            )
    ties = {name: states[name] for name in names}
    return {name: tie if isinstance(tie, str) else tie[0] for name, tie in ties.items()}


def _each_step(shape: Sequence[int] | Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The shapes of one input's steps: one of them, or a list."""
    shapes = [s for s in shape if not isinstance(s, (int, np.integer))]
    return list(shapes) or [[int(s) for s in shape if isinstance(s, (int, np.integer))]]


def _at_first(state: TensorInfo) -> NDArray[Any]:
    """What a state is before the first run: zeros, and nothing along a dim that grows."""
    dims = [d if isinstance(d, int) else 0 for d in state.dims]
    return np.zeros(dims, state.numpy_dtype)


def _worst(steps: Sequence[tuple[OutputAgreement, ...]]) -> tuple[OutputAgreement, ...]:
    """Each output where it agrees least; constant if it is so in all steps."""
    return tuple(
        replace(
            max(same, key=lambda o: (o.error, not o.is_constant)),
            rms=max(o.rms for o in same),
            is_constant=all(o.is_constant for o in same),
        )
        for same in zip(*steps, strict=True)
    )


def _arrays(values: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in values.items()}


def _compare_all(results: Arrays, expected: Arrays) -> tuple[OutputAgreement, ...]:
    if list(results) != list(expected):
        raise CompileError(
            f"the module's outputs are {', '.join(results)}; the model's are {', '.join(expected)}"
        )
    return tuple(compare(name, result, expected[name]) for name, result in results.items())


def compare(name: str, result: NDArray[Any], expected: NDArray[Any]) -> OutputAgreement:
    """How `result` agrees with `expected`."""
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
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        problem = "NaN or infinities in different places"
        return OutputAgreement(name, dtype, shape, magnitude, float("inf"), problem)
    differences = np.abs(a[finite] - b[finite])
    is_constant = b.size > 1 and bool(finite.all()) and bool((b == b.flat[0]).all())
    error = float(np.max(differences, initial=0)) / (magnitude or 1.0)
    rms = float(np.sqrt(np.mean(differences**2))) / (magnitude or 1.0) if differences.size else 0.0
    return OutputAgreement(name, dtype, shape, magnitude, error, is_constant=is_constant, rms=rms)


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    # Where long double is 80 bits it holds every 64-bit integer.
    return array.astype(np.longdouble if array.dtype.itemsize == 8 else np.float64)


def _read(model: Path) -> Module:
    from aot.driver.pipeline import read_model

    return read_model(model, CompileOptions())


def _run_reference(model: Path, inputs: Arrays) -> dict[str, NDArray[Any]]:
    return _interpreter(_read(model))(model, inputs)


def _interpreter(module: Module, disturbance: Disturbance | None = None) -> Engine:
    """Our numpy interpreter as an engine."""
    function = module.entry_points[0]

    def engine(model: Path, inputs: Arrays) -> dict[str, NDArray[Any]]:
        feeds = []
        strings = StringNumbers(function)
        arrays = strings.taken(inputs)
        for value in function.inputs:
            if value.name not in inputs:
                raise CompileError(f"{model} has an input {value.name!r} that the module has not")
            feeds.append(arrays[value.name].astype(value.type.dtype.numpy, copy=False))
        found = run(function, feeds, module=module, disturbance=disturbance)
        return strings.given(found)

    return engine


def _run_onnxruntime(model: Path, inputs: Arrays) -> dict[str, NDArray[Any]]:
    from aot.tools.engines import check_onnx

    check_onnx("onnxruntime", model)
    try:
        import onnxruntime
    except ImportError as error:
        raise CompileError("onnxruntime is not installed: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        types = {i.name: i.type for i in session.get_inputs()}
        # a compiled-in value may come as a plain number
        feeds = {n: a.astype(numpy_name(types[n])) for n, a in inputs.items() if n in types}
        return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))
    except Exception as error:  # its exceptions have no common base of their own
        raise CompileError(f"onnxruntime cannot run {model}: {first_line(error)}") from error


ENGINES: dict[str, Engine] = {
    "reference": _run_reference,
    "onnxruntime": _run_onnxruntime,
    "litert": run_litert,
    "torch": run_torch,
}
# Engines that run one format and keep states themselves: the format, and the package.
OWN_ENGINES = {
    "litert": (registry.TFLITE, "ai_edge_litert"),
    "torch": (registry.TORCH, "torch"),
}


def usual_engine(model: Any, *, has_states: bool) -> str:
    """What a model is compared with where nobody says: the engine of its format if it is here."""
    if isinstance(model, (str, Path)) and Path(model).is_file() and not has_states:
        found = registry.find(model)
        for name, (frontend, package) in OWN_ENGINES.items():
            if found is frontend and find_spec(package) is not None:
                return name
    return "reference"
