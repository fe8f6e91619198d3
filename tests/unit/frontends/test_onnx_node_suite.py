"""ONNX's node tests: what is pinned as passing passes, on every engine.

`--bless` runs everything and rewrites the pins and docs/use/onnx-node-suite.md.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import onnx_node_report as report
from tests.support import onnx_node_suite as suite
from tests.support.onnx_models import graph_model, tensor_info

PROMISED = 800  # of the cases with float32, bool, int32 and int64 alone; ONNX Runtime has 832

# Compilers have a quarter of the cases, the interpreter has all: what is imported is the same
PARTS = [0, *(pytest.param(part, marks=pytest.mark.sweep) for part in range(1, 4))]


@pytest.fixture(scope="module", autouse=True)
def blessed(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--bless"):
        report.write(suite.survey())


def pinned(engine: str) -> list[suite.Case]:
    """The cases that must pass. Another onnx may have changed or dropped some."""
    version, pins = report.read_pins()
    chosen, _ = suite.cases()
    missing = [n for n in pins[engine] if n not in chosen]
    assert not missing or version != onnx.__version__
    return [chosen[n] for n in pins[engine] if n in chosen]


def check(engine: str, cases: list[suite.Case]) -> None:
    outcomes = suite.RUN[engine](cases)
    failed = {name: outcome for name, outcome in outcomes.items() if outcome}
    assert not failed, "\n".join(f"{name}: {outcome}" for name, outcome in failed.items())


def test_pinned_cases_pass_on_the_interpreter() -> None:
    check("interpreter", pinned("interpreter"))


@pytest.mark.parametrize("part", PARTS)
def test_pinned_cases_pass_on_the_cpu(part: int) -> None:
    check("cpu", pinned("cpu")[part::4])


@pytest.mark.slow
@pytest.mark.vulkan
@pytest.mark.parametrize("part", PARTS)
def test_pinned_cases_pass_as_spirv(part: int) -> None:
    """Of the cases that the CPU has in other parts."""
    check("vulkan", pinned("vulkan")[(part + 2) % 4 :: 4])


# the harness itself


def _case(
    op: str,
    opset: int,
    infos: list[onnx.ValueInfoProto],
    feeds: list[np.ndarray],
    expected: np.ndarray,
) -> suite.Case:
    names = [i.name for i in infos]
    model = graph_model([helper.make_node(op, names, ["y"])], infos, ["y"], opset=opset)
    return suite.Case(
        "test_x", model, True, [dict(zip(names, feeds, strict=True))], [[expected]], 1e-3, 1e-7
    )


def _reshape() -> suite.Case:
    x = np.arange(6, dtype=np.float32)
    return _case(
        "Reshape",
        17,
        [tensor_info("x", [6]), tensor_info("s", [2], TensorProto.INT64)],
        [x, np.array([2, 3])],
        x.reshape(2, 3),
    )


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_operands_that_must_be_known_are_baked_in(engine: str) -> None:
    case = _reshape()
    assert suite.RUN[engine]([case]) == {"test_x": ""}
    assert case.baked == ("s",)


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_wrong_results_are_outcomes(engine: str) -> None:
    x = np.array([1, -2, 3], np.float32)

    def outcome(expected: np.ndarray) -> str:
        case = _case("Neg", 17, [tensor_info("x", [3])], [x], expected)
        return suite.RUN[engine]([case])["test_x"]

    assert outcome(np.array([-1, 2, 3], np.float32)) == "wrong values: 1 of 3"
    assert outcome(-x.reshape(1, 3)) == "wrong shape: [3], expected [1, 3]"
    assert outcome(-x.astype(np.float64)) == "wrong dtype: float32, expected float64"


def test_one_case_that_does_not_compile_does_not_take_others_along() -> None:
    good = _reshape()
    bad = _case("NonZero", 17, [tensor_info("x", [2])], [np.ones(2, np.float32)], np.zeros(0))
    bad.name = "test_bad"
    outcomes = suite.on_cpu([bad, good])
    assert outcomes["test_x"] == ""
    assert outcomes["test_bad"]


def test_causes_lose_what_names_a_case() -> None:
    assert report.cause("operand 3 ('a') of [1, 2] is not known; b") == (
        "operand N ('...') of [...] is not known"
    )
    assert report.cause("wrong values: 3 of 4") == "wrong values"


def test_pins_and_page_agree() -> None:
    """The page is written with the pins: the counts must be those of the pinned cases."""
    _, pins = report.read_pins()
    chosen, _ = suite.cases()
    if report.read_pins()[0] != onnx.__version__:
        pytest.skip("pins are of another version of onnx")
    text = report.PAGE.read_text()
    for engine, names in pins.items():
        core = sum(chosen[n].is_core for n in names)
        assert core >= PROMISED
        assert f"| {engine} | {core} of " in text
        assert f" | {len(names)} of {len(chosen)} |" in text
