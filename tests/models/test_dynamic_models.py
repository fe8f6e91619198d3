"""Every dynamic model compiles once, with its dims open, and the one file serves all shapes.

ONNX Runtime is the judge of which shapes are legal: what it refuses our program must refuse, with a
message and before anything runs; what it takes must give its results.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

import aot
from aot.driver.pipeline import read_model
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Function, FunctionRef, Op, Value
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.tools.agreement import compare
from tests.support import models
from tests.support.generated_models import GENERATED, decoder_feeds, fp16_feeds, u_net_feeds
from tests.support.models import MODELS, feeds, model_path, model_zoo, runs

pytestmark = pytest.mark.models

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Extents = Mapping[str, int]

GATING_DRAWS, SWEEPING_DRAWS = 2, 10
TOLERANCE = 1e-4  # of each output's largest magnitude
SMALLEST_MAGNITUDE = 1e-3  # a sigmoid's 1e-9 is not worth comparing


@dataclass(frozen=True)
class Dynamic:
    """A model and the shapes to try.

    Attributes:
        source: what is compiled.
        draws: values of each symbol that are drawn from; about half of them may be illegal.
        make: inputs for extents and a seed.
        others: inputs of runs that are no draws.
    """

    source: Callable[[], Any]
    draws: Mapping[str, range]
    make: Callable[[Extents, int], Feeds]
    others: tuple[Callable[[], Feeds], ...] = ()
    tolerance: float = TOLERANCE


def zoo(
    name: str,
    shapes: Mapping[str, tuple[int | str, ...]],
    tolerance: float = TOLERANCE,
    **draws: range,
) -> Dynamic:
    """A model of the set, with the shapes of its inputs over the symbols that are drawn."""

    def make(extents: Extents, seed: int) -> Feeds:
        given = {
            key: tuple(extents[d] if isinstance(d, str) else d for d in shape)
            for key, shape in shapes.items()
        }
        return model_zoo.feeds(name, seed, given)

    return Dynamic(
        lambda: model_path(name),
        draws,
        make,
        tuple(functools.partial(feeds, name, run) for run in runs(name)),
        tolerance,
    )


BATCH = range(1, 4)
MODELS_AND_DRAWS = {
    # 16 divides an image's height and width in vain every other time: the model wants 32
    "yolov8n_320": zoo(
        "yolov8n_320",
        {"images": ("N", 3, "H", "W")},
        N=BATCH,
        H=range(32, 129, 16),
        W=range(32, 129, 16),
    ),
    "ppocr_det": zoo(
        "ppocr_det",
        {"x": ("N", 3, "H", "W")},
        N=BATCH,
        H=range(32, 129, 16),
        W=range(32, 129, 16),
    ),
    # where the last pooling has no row or column left, ONNX Runtime makes one up
    "ppocr_rec": zoo(
        "ppocr_rec", {"x": ("N", 3, "H", "W")}, N=BATCH, H=range(33, 63), W=range(8, 100)
    ),
    "ppocr_cls": zoo(
        "ppocr_cls", {"x": ("N", 3, "H", "W")}, N=BATCH, H=range(34, 65), W=range(34, 100)
    ),
    "pplcnet_orient": zoo("pplcnet_orient", {"x": ("N", 3, 224, 224)}, N=BATCH),
    "magika": zoo("magika", {"bytes": ("N", 2048)}, N=range(1, 9)),
    # an If lets the recurrent layers have one step only, which is what 192 to 703 samples make
    "silero_vad_16k_if": zoo(
        "silero_vad_16k_if",
        {"input": ("N", "S"), "state": (2, "N", 128)},
        N=range(1, 7),
        S=range(100, 1000),
    ),
    "oww_mel": zoo("oww_mel", {"input": ("N", "S")}, N=BATCH, S=range(200, 5000)),
    "oww_embed": zoo("oww_embed", {"input_1": ("N", 76, 32, 1)}, N=BATCH),
    "oww_mycroft_lstm": zoo("oww_mycroft_lstm", {"input_1": ("N", 16, 96)}, N=range(1, 9)),
    # the two are the same length in three draws of four, and positions end at 512
    "minilm_l3": zoo(
        "minilm_l3",
        {"input_ids": ("N", "T"), "attention_mask": ("N", "T")},
        N=BATCH,
        T=range(1, 60),
    ),
    "smart_turn_qdq": zoo("smart_turn_qdq", {"input_features": ("N", 80, 800)}, 2e-2, N=BATCH),
    "decoder": Dynamic(
        GENERATED["decoder"].model,
        {"B": BATCH, "T": range(1, 7), "P": range(9)},
        lambda e, seed: decoder_feeds(e["B"], e["T"], e["P"], seed),
    ),
    "u_net": Dynamic(
        GENERATED["u_net"].model, {"N": BATCH}, lambda e, seed: u_net_feeds(e["N"], seed)
    ),
    "fp16_classifier": Dynamic(
        GENERATED["fp16_classifier"].model,
        {"N": BATCH},
        lambda e, seed: fp16_feeds(e["N"], seed),
        tolerance=GENERATED["fp16_classifier"].tolerance,
    ),
}


def test_every_dynamic_model_is_here() -> None:
    dynamic = {name for name, model in MODELS.items() if model.other_shapes}
    dynamic |= {name for name, model in GENERATED.items() if model.has_open_dims}
    assert set(MODELS_AND_DRAWS) == dynamic


@functools.cache
def compiled(name: str) -> aot.CompiledModule:
    made = MODELS_AND_DRAWS[name].source
    return models.compiled(name) if name in MODELS else aot.compile(made())


@functools.cache
def session(name: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = MODELS_AND_DRAWS[name].source()
    data = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def answer(name: str, given: Feeds) -> Feeds | None:
    """ONNX Runtime's outputs; None where it refuses the shapes."""
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    refusals = (errors.Fail, errors.InvalidArgument, errors.RuntimeException)
    names = [output.name for output in session(name).get_outputs()]
    try:
        return dict(zip(names, session(name).run(None, given), strict=True))
    except refusals:
        return None


def drawn(name: str, count: int) -> Iterator[tuple[Extents, Feeds]]:
    """Shapes without end, of which the caller takes `count` legal ones; the same in every run."""
    random = np.random.Generator(np.random.PCG64([count, *name.encode()]))
    model = MODELS_AND_DRAWS[name]
    for seed in range(20 * count):
        extents = {key: int(random.choice(values)) for key, values in model.draws.items()}
        yield extents, model.make(extents, seed)


def check(name: str, program: aot.Program, given: Feeds, expected: Feeds, what: object) -> None:
    outputs = program(given)
    assert list(outputs) == list(expected)
    for output, wanted in expected.items():
        found = compare(output, outputs[output], wanted)
        scale = found.magnitude / max(found.magnitude, SMALLEST_MAGNITUDE)
        error = found.error if np.isinf(found.error) else found.error * scale
        assert error <= MODELS_AND_DRAWS[name].tolerance, (name, what, found)


def check_draws(name: str, count: int) -> None:
    legal = 0
    with aot.load(compiled(name)) as program:
        for other in MODELS_AND_DRAWS[name].others:
            given = other()
            expected = answer(name, given)
            assert expected is not None
            check(name, program, given, expected, "a run of the set")
        for extents, given in drawn(name, count):
            expected = answer(name, given)
            if expected is None:
                with pytest.raises(aot.RuntimeFailure) as caught:
                    check(name, program, given, {}, extents)
                assert caught.value.status in ("check", "shape"), (name, extents)
                continue
            check(name, program, given, expected, extents)
            legal += 1
            if legal == count:
                return
    raise AssertionError(f"{name}: {legal} legal shapes of {count}")


@pytest.mark.parametrize("name", MODELS_AND_DRAWS)
def test_one_file_serves_all_shapes(name: str) -> None:
    check_draws(name, GATING_DRAWS)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS_AND_DRAWS)
def test_one_file_serves_ten_random_shapes(name: str) -> None:
    check_draws(name, SWEEPING_DRAWS)


# shape arithmetic


def dispatched(name: str) -> Function:
    """The model's main function as it is emitted."""
    module = read_model(MODELS_AND_DRAWS[name].source(), CompileOptions())
    from aot.target import selection as target

    context = PassContext(CompileOptions(), target.load("x86-64-v3"))
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), context)
    return module.main


def shape_work(function: Function) -> list[Op]:
    """Dispatches that compute integers, or truths, that no input's elements have a part in."""
    varying: set[Value] = set(function.inputs)
    found = []
    for op in function.block:
        if op.record is CONSTANT:
            continue
        if any(v in varying for v in op.operands):
            varying.update(op.results)
        elif isinstance(op.attrs.get("executable"), FunctionRef):
            is_result = any(v in function.results for v in op.results)
            if not is_result and not all(v.type.dtype.is_float for v in op.results):
                found.append(op)
    return found


@pytest.mark.parametrize("name", MODELS_AND_DRAWS)
def test_shapes_are_no_work_for_the_device(name: str) -> None:
    assert shape_work(dispatched(name)) == []


# A phone's core interprets some 50 instructions in a microsecond, and meets as many pairs of
# buffers: within these a plan for new shapes is a matter of 100 microseconds.
MOST_INSTRUCTIONS, MOST_PAIRS = 1500, 10_000


@pytest.mark.parametrize("name", MODELS_AND_DRAWS)
def test_a_plan_for_new_shapes_is_little_work(name: str) -> None:
    (variant,) = aot.inspect(compiled(name).to_bytes())["variants"]
    (entry,) = variant["entry_points"]
    assert entry["blocks"] == 2  # prepare has no loops
    in_execute = sum(entry["instructions"].get(kind, 0) for kind in ("DISPATCH", "COPY", "FILL"))
    assert sum(entry["instructions"].values()) - in_execute <= MOST_INSTRUCTIONS
    assert entry["symbolic_buffers"] ** 2 / 2 <= MOST_PAIRS


@pytest.mark.parametrize("name", ["ppocr_cls", "minilm_l3"])
def test_shapes_seen_before_have_a_plan(name: str) -> None:
    with aot.load(compiled(name)) as program:
        shapes = list(itertools.islice(drawn(name, 3), 4))
        for _, given in 2 * shapes:
            program(given)
        distinct = {tuple(x.shape for x in given.values()) for _, given in shapes}
        assert program.prepare_count == len(distinct)
        arena_bytes = program.arena_bytes
        program(shapes[0][1])
        assert program.arena_bytes == arena_bytes
