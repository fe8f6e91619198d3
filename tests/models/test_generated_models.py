"""Generated models: the interpreter and the compiled file against ONNX Runtime."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import aot
from aot.frontends.onnx import import_onnx
from aot.tools.agreement import compare
from tests.support.cpu_running import native_targets
from tests.support.generated_models import GENERATED, HEAD, HEADS, VOCABULARY, Array, decoder_feeds
from tests.support.onnx_models import ort_run, our_run


@cache
def model(name: str) -> onnx.ModelProto:
    return GENERATED[name].model()


def check(name: str, found: dict[str, Array], feeds: dict[str, Array]) -> None:
    names = [o.name for o in model(name).graph.output]
    for output, wanted in zip(names, ort_run(model(name), feeds), strict=True):
        agreement = compare(output, found[output], wanted)
        assert agreement.error <= GENERATED[name].tolerance, agreement


@pytest.mark.parametrize("name", GENERATED)
def test_interpreter_agrees_with_onnxruntime(name: str) -> None:
    function = import_onnx(model(name)).main
    for feeds in GENERATED[name].runs:
        results = our_run(function, feeds)
        check(name, dict(zip(function.result_names, results, strict=True)), dict(feeds))


@pytest.mark.parametrize("name", GENERATED)
def test_one_file_agrees_with_onnxruntime_at_all_shapes(name: str) -> None:
    for target in native_targets(strongest=True):
        with aot.load(aot.compile(model(name), targets=[target])) as program:
            for feeds in GENERATED[name].runs:
                check(name, program(feeds), dict(feeds))


def test_decoding_step_by_step_is_decoding_at_once() -> None:
    """The caches that one run gives are the next one's."""
    tokens = np.random.RandomState(5).randint(0, VOCABULARY, (1, 6))
    with aot.load(aot.compile(model("decoder"))) as program:
        at_once = program({**decoder_feeds(1, 6, 0), "tokens": tokens})["logits"]
        caches = {k: v for k, v in decoder_feeds(1, 1, 0).items() if k != "tokens"}
        for step in range(6):
            outputs = program({**caches, "tokens": tokens[:, step : step + 1]})
            np.testing.assert_allclose(
                outputs["logits"][:, 0], at_once[:, step], rtol=1e-4, atol=1e-4
            )
            caches = {k: outputs[k.replace("past", "present")] for k in caches}
        assert caches["past_key_0"].shape == (1, HEADS, 6, HEAD)
