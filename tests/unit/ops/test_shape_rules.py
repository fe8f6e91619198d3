"""How often shape rules are called: at most three times per op of the model, by whoever.

`ops` and the calls are those of `aotc compile --stats`; `pytest -m sweep --bless` writes the table
of all models into docs/internals/shape-rules.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.driver.pipeline import read_model
from aot.errors import InternalError
from aot.ir.graph import Module
from aot.ir.record import count_shape_rules
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout
from aot.options import CompileOptions
from aot.passes.base import PassContext, ops_after, run_passes
from aot.passes.bind import BIND
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.passes.simplify.rewriting import relaid
from aot.target import selection as targets
from tests.support.models import MODELS, feeds, model_path
from tests.support.paths import ROOT

MOST = 3
TABLE = ROOT / "docs" / "internals" / "shape-rules.md"
TARGET = "x86-64-v3"
CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def options_of(name: str, is_bound: bool) -> CompileOptions:
    shapes = {k: v.shape for k, v in feeds(name).items()} if is_bound else {}
    return CompileOptions(input_shapes=shapes)


def rules_of(name: str, is_bound: bool) -> tuple[int, dict[str, int]]:
    """Ops, and calls by pass, of all that knows shapes: kernels ask no rule (below)."""
    with count_shape_rules() as imported:
        module = read_model(model_path(name), options_of(name, is_bound))
    context = PassContext(target=targets.load(TARGET))
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), context)
    calls = {"import": imported.calls}
    for run in context.runs:
        calls[run.name] = calls.get(run.name, 0) + run.shape_rule_calls
    return ops_after(context, BIND), calls


@pytest.mark.models
@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("name", ["silero_vad_16k", "ppocr_cls"])
def test_three_calls_per_op_at_most(name: str, is_bound: bool) -> None:
    ops, calls = rules_of(name, is_bound)
    assert sum(calls.values()) <= MOST * ops, calls


@pytest.mark.models
def test_statistics_say_who_called() -> None:
    shapes = {k: v.shape for k, v in feeds("silero_vad_16k").items()}
    module = aot.compile(model_path("silero_vad_16k"), targets=[TARGET], input_shapes=shapes)
    (variant,) = module.stats["variants"]
    ops, calls = rules_of("silero_vad_16k", is_bound=True)
    assert variant["ops"] == ops
    assert variant["shape_rules"] == {**calls, "build": 0}
    assert variant["shape_rule_calls"] == sum(calls.values())


@pytest.mark.models
@pytest.mark.sweep
def test_all_models(bless: bool) -> None:
    rows = ["| model | dims | ops | calls an op | calls by |", "|---|---|---|---|---|"]
    excess: dict[tuple[str, bool], float] = {}
    for name in MODELS:
        for is_bound in (False, True):
            ops, calls = rules_of(name, is_bound)
            per_op = sum(calls.values()) / ops
            shown = ", ".join(f"{by} {n}" for by, n in calls.items() if n)
            dims = "bound" if is_bound else "open"
            rows.append(f"| {name} | {dims} | {ops} | {per_op:.2f} | {shown} |")
            if per_op > MOST:
                excess[name, is_bound] = per_op
    assert not excess
    text = TABLE.read_text(encoding="utf-8")
    head, rest = text.split("<!-- table -->\n")
    tail = rest.partition("<!-- end -->")[2]
    made = "\n".join([f"{head}<!-- table -->", *rows, f"<!-- end -->{tail}"])
    if bless:
        TABLE.write_text(made, encoding="utf-8")
    assert made == text or bless, f"{TABLE} is not what the models give now: run with --bless"


def stats_of(module: Module) -> Mapping[str, int]:
    (variant,) = aot.compile(module, targets=[TARGET]).stats["variants"]
    found: Mapping[str, int] = variant["shape_rules"]
    return found


def test_constants_and_packing_ask_no_rule_for_what_is_known() -> None:
    b = Builder()
    x = b.input("x", "f32[1, 8, 6, 6]")
    scale = b.op("exp", np.ones((8, 1, 1), np.float32))
    weight = np.ones((4, 8, 3, 3), np.float32)
    b.output("y", b.op("conv", b.op("mul", x, scale), weight, **CONV))
    calls = stats_of(b.module())
    # the folded scale is a constant, whose type is known; the convolution with packed weights is
    # the convolution that it was, and only `pack` is new
    assert calls["fold-constants"] == 0
    assert calls["pack"] == 1


def test_import_asks_once_per_op_that_is_no_constant() -> None:
    text = (
        'func @main(%x: f32[4]) -> ("y") {\n'
        "  %0 = constant {value = f32[] <splat 2.0>} : f32[]\n"
        "  %1 = mul(%x, %0) : f32[4]\n"
        "  return(%1)\n"
        "}\n"
    )
    (variant,) = aot.compile(text.encode(), targets=[TARGET]).stats["variants"]
    assert variant["ops"] == 3
    assert variant["shape_rules"]["import"] == 3  # the checks of what was read


def test_an_op_laid_otherwise_keeps_its_type_and_no_other_dims() -> None:
    b = Builder()
    x, wide = b.input("x", "f32[2, 3]"), b.input("wide", "f32[2, 4]")
    turned = b.op("pack", x, layout=Layout(order=(1, 0)))
    y = b.op("relu", x)
    b.output("y", y)
    function = b.function()
    with count_shape_rules() as rules:
        (made,) = relaid(y.op, Rewriter(function).at(y.op), [turned])
    assert (made.type, made.op.operands, rules.calls) == (y.type, [turned], 0)
    with pytest.raises(InternalError, match="operand 0 of <op relu> would be <value wide"):
        relaid(y.op, Rewriter(function).at(y.op), [wide])
