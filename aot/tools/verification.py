"""Verifies a compiled module: compares its outputs with those of another engine.

Engines get the model as the user has it, so that the importer is under test as well as everything
behind it. Owns which inputs both get, step by step, and what an output's error may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.api import CompiledModule, load
from aot.api import compile as compile_model
from aot.base.records import dataclass
from aot.driver.ledger import noted_precision
from aot.errors import CompileError
from aot.frontends import registry
from aot.link.notes import decode_notes
from aot.link.reader import read_module
from aot.options import CompileOptions, DeviceName, Tie
from aot.runtime.inputs import make_inputs
from aot.runtime.loader import Program
from aot.runtime.tensors import TensorInfo
from aot.tools.agreement import (
    TOLERANCE,
    Arrays,
    OutputAgreement,
    compare_all,
    least_agreement,
)
from aot.tools.open_extents import with_followers
from aot.tools.oracles import ORACLES, REFERENCE, Choice, Run, usual
from aot.tools.reference_engine import open_reference, read
from aot.tools.rounding import ALLOWANCE, RUNS, OtherRoundings

STATE_STEPS = 3
TRIES = 4  # random inputs that are tried until every output has elements that differ


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify`.

    Attributes:
        engine: what the module was compared with.
        version: that engine's; "" for our own interpreter.
        target: the variant that ran.
        tolerance: what was asked for; an output's own is more where roundings explain more.
        inputs: the arrays that both got in the last step.
        outputs: how each agrees, in the step where it does so least.
        random: the inputs that were random.
        remark: why the engine is not the one that the model's format has; "" where it is.
    """

    engine: str
    target: str
    tolerance: float
    inputs: Arrays
    outputs: tuple[OutputAgreement, ...]
    version: str = ""
    random: tuple[str, ...] = ()
    remark: str = ""

    def __repr__(self) -> str:
        worst = max((o.error for o in self.outputs), default=0.0)
        outcome = "agrees" if self.agrees else "does not agree"
        return (
            f"<Verification: {self.target} {outcome} with {self.engine}, {len(self.outputs)} "
            f"outputs, largest error {worst:.2g}, tolerance {self.tolerance:g}>"
        )

    @property
    def uninformative(self) -> tuple[str, ...]:
        """Outputs whose agreement says little: all their elements equal one number, for all inputs
        tried."""
        return tuple(o.name for o in self.outputs if o.is_constant)

    @property
    def agrees(self) -> bool:
        """Whether every output is within the tolerance."""
        return all(o.agrees for o in self.outputs)

    @property
    def rounded(self) -> tuple[OutputAgreement, ...]:
        """Outputs whose tolerance exceeds `tolerance`, because of the roundings in the model."""
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
    device: DeviceName = "cpu",
    target: str | None = None,
    entry: str | None = None,
    storage: str | None = None,
    arithmetic: str | None = None,
    activations: str | None = None,
    noise: bool = False,
) -> Verification:
    """Runs a compiled module and its model on the same inputs, and compares the outputs.

    A module of PyTorch is its own engine: `verify(module, (x,))` compiles it and compares what both
    make of x, `verify(compiled, module, inputs=(x,))` compares what was compiled.

    Args:
        module: what was compiled; or a `torch.nn.Module` or `torch.export.ExportedProgram`.
        model: the model file it was compiled from; or the module of PyTorch; or, where `module` is
            one, the tuple of its arguments.
        against: one of `ORACLES`. By default the engine of the model's format where it is
            installed: ONNX Runtime, LiteRT, PyTorch, llama.cpp. Else, and of text IR, our numpy
            interpreter, which can't see faults of our importers.
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
            or what `aot.tools.rounding` finds that roundings explain, if that is more.
        seed: of the random inputs.
        device: as `load` takes it.
        target: the target whose variant is compared, as `load` takes it.
        entry: the entry point, as `load` takes it.
        storage: what the module was compiled with, whose roundings are allowed; by default what its
            notes say.
        arithmetic: likewise.
        activations: likewise.
        noise: measure what roundings explain although all outputs agree.

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
    if against is not None and against not in ORACLES:
        raise CompileError(f"no engine is called {against!r}: {', '.join(ORACLES)}")
    asked = {"storage": storage, "arithmetic": arithmetic, "activations": activations}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    options = CompileOptions(**given)
    with load(module, device, entry=entry, target=target) as program:
        outputs = _outputs_of_states(program.states, _states(program.states, model, states or {}))
        first = {t.name: _at_first(t) for t in program.states}
        engine = _Engine(against, Path(model), program)
        calls = _Calls(_arrays(input_values or {}), program.updates, outputs, first)
        found: list[tuple[OutputAgreement, ...]] = []
        sizes = {name: _each_step(shape) for name, shape in (shapes or {}).items()}
        planned = max([1, *map(len, sizes.values())])
        is_given = first or steps is not None or planned > 1
        random = tuple(t.name for t in program.inputs if t.name not in (inputs or {}))
        is_random = not is_given and bool(random)
        usual_steps = STATE_STEPS if first else TRIES if is_random else 1
        for step in range(steps or max(usual_steps, planned)):
            kept = {name: array.shape for name, array in calls.kept.items()}
            now = {name: shape[min(step, len(shape) - 1)] for name, shape in sizes.items()}
            extents = with_followers(program.inputs, inputs or {}, now, program.states, kept)
            arrays = make_inputs(program.inputs, inputs or {}, extents, seed + step)
            written = {i: np.array(arrays[i]) for i in program.updates.values()}
            results = program({**arrays, **written})
            found.append(compare_all(results, calls.next(engine, arrays)))
            if is_random and not any(o.is_constant for o in least_agreement(found)):
                break
        variant = program.target
    compared = least_agreement(found)
    is_far = any(TOLERANCE < o.error < float("inf") for o in compared)
    if noise or (tolerance is None and is_far):
        if len(given) < len(asked):
            options = CompileOptions(**{**_noted(module, program.entry), **given})
        compared = _allowed(compared, Path(model), calls, options)
    if tolerance is not None:
        compared = tuple(
            replace(o, tolerance=tolerance, rms_tolerance=float("inf")) for o in compared
        )
    allowed = TOLERANCE if tolerance is None else tolerance
    oracle = engine.choice.oracle
    return Verification(
        *(oracle.name, variant, allowed, arrays, compared),
        version=oracle.version,
        random=random,
        remark=engine.choice.why,
    )


def _noted(module: Any, entry: str) -> dict[str, Any]:
    """The options by which a module's entry point rounds, as far as its notes have them."""
    source = module.to_bytes() if isinstance(module, CompiledModule) else module
    image = read_module(source, verify_rodata=False)
    try:
        ledger = decode_notes(image.notes).ledger if image.notes else {}
    except ValueError:
        return {}  # of another version
    return noted_precision(ledger, entry)


class _Engine:
    """The engine that a module is compared with: the requested one; else that of the model's
    format, or the reference interpreter if that engine can't run the model.
    """

    def __init__(self, against: str | None, model: Path, program: Program) -> None:
        self.choice = usual(model) if against is None else Choice(ORACLES[against])
        self._is_asked = against is not None
        self._model, self._program = model, program
        self._run: Run | None = None

    def __call__(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        is_first = self._run is None
        try:
            if self._run is None:
                self._run = self.choice.oracle.opened(self._model, self._program)
            return self._run(inputs)
        except CompileError as error:
            if self._is_asked or not is_first or self.choice.oracle is REFERENCE:
                raise
            self.choice = Choice(REFERENCE, str(error))
            self._run = REFERENCE.opened(self._model, self._program)
        return self._run(inputs)


class _Calls:
    """A sequence of calls of an engine, which carries the model's states from call to call. An
    engine that keeps states itself has no inputs and outputs for them.
    """

    def __init__(
        self, values: Arrays, updates: Mapping[str, str], outputs: Mapping[str, str], first: Arrays
    ) -> None:
        """Starts a sequence of calls.

        Args:
            values: additional inputs, equal at each call.
            updates: output -> the input that it is written to.
            outputs: state -> the output that it is after a call.
            first: the states' values before the first call.
        """
        self.values, self.updates, self.outputs, self.first = values, updates, outputs, first
        self.kept = dict(first)
        self.inputs: list[Arrays] = []

    def next(self, engine: Run, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """The results of the next call of the engine."""
        self.inputs.append(arrays)
        feeds = {i: np.array(arrays[i]) for i in self.updates.values()}
        found = engine({**arrays, **feeds, **self.values, **self.kept})
        found |= {o: feeds[i] for o, i in self.updates.items()}
        for name, output in self.outputs.items():
            if output in found:
                self.kept[name] = found.pop(output)
        return found

    def again(self, engine: Run) -> list[dict[str, NDArray[Any]]]:
        """The results of the same sequence of calls of another engine."""
        calls = _Calls(self.values, self.updates, self.outputs, self.first)
        return [calls.next(engine, arrays) for arrays in self.inputs]


def _allowed(
    outputs: tuple[OutputAgreement, ...], model: Path, calls: _Calls, options: CompileOptions
) -> tuple[OutputAgreement, ...]:
    """The agreements of the outputs, with tolerances raised by the differences that rounding
    explains."""
    module = read(model)
    expected = calls.again(open_reference(model, module))
    others = [
        calls.again(open_reference(model, module, OtherRoundings(seed, options)))
        for seed in range(RUNS)
    ]
    spread = least_agreement(
        [compare_all(a, b) for made in others for a, b in zip(made, expected, strict=True)]
    )
    return tuple(_with_noise(o, s) for o, s in zip(outputs, spread, strict=True))


def _with_noise(output: OutputAgreement, spread: OutputAgreement) -> OutputAgreement:
    noise = ALLOWANCE * spread.error
    if noise <= TOLERANCE:
        return replace(output, noise=noise)
    return replace(output, noise=noise, tolerance=noise, rms_tolerance=ALLOWANCE * spread.rms)


def _with_module(
    module: Any,
    model: Any,
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    steps: int | None,
    tolerance: float | None,
    device: DeviceName,
    target: str | None,
) -> Verification:
    """Compares a PyTorch module with its compiled module, which is compiled here if none is
    given."""
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
    worst = least_agreement([compare_all(ours, theirs) for ours, theirs in found])
    worst = tuple(replace(o, tolerance=allowed) for o in worst)
    return Verification(
        *("torch", variant, allowed, arrays, worst), version=ORACLES["torch"].version
    )


def _states(
    kept: Sequence[TensorInfo], model: Any, states: Mapping[str, str | tuple[str, int]]
) -> Mapping[str, str | tuple[str, int] | Tie]:
    """The given states, plus those that the model declares."""
    if all(t.name in states for t in kept):
        return states
    return {**read(model).states, **states}


def _outputs_of_states(
    kept: Sequence[TensorInfo], states: Mapping[str, str | tuple[str, int] | Tie]
) -> dict[str, str]:
    """For each of a program's states the name of the output that it takes its next value from."""
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
    """The shapes of one input for successive steps: the list given, or a list of the one shape."""
    shapes = [s for s in shape if not isinstance(s, (int, np.integer))]
    return list(shapes) or [[int(s) for s in shape if isinstance(s, (int, np.integer))]]


def _at_first(state: TensorInfo) -> NDArray[Any]:
    """The value of a state before the first run: zeros, of extent 0 along a growing dim."""
    dims = [d if isinstance(d, int) else 0 for d in state.dims]
    return np.zeros(dims, state.numpy_dtype)


def _arrays(values: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in values.items()}
