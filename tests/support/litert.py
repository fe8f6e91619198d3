"""LiteRT, the runtime of TFLite files, as the oracle of their importer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aot.frontends.tflite import import_tflite
from aot.ir.interpreter.interpreter import run
from aot.tools.litert_engine import run_graph

Arrays = Mapping[str, np.ndarray[Any, Any]]


def oracle(model: bytes, *, has_delegates: bool = False) -> Any:
    """An interpreter of LiteRT; without delegates it runs the kernels of TFLite itself."""
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs ai-edge-litert")
    kinds = litert.OpResolverType
    kind = kinds.AUTO if has_delegates else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return litert.Interpreter(
        model_content=model, experimental_op_resolver_type=kind, num_threads=1
    )


def expected(model: bytes, inputs: Arrays, calls: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """What LiteRT computes, by the names of tensors, in the last of some calls."""
    return run_graph(oracle(model), inputs, calls)


def interpreted(model: bytes, inputs: Arrays, calls: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """What our importer and interpreter make of it, states kept from call to call."""
    module = import_tflite(model)
    function = module.main
    kept = {
        v.name: np.zeros(v.type.shape, v.type.dtype.numpy)
        for v in function.inputs
        if v.name in module.states
    }
    for _ in range(calls):
        feeds = [np.asarray({**inputs, **kept}[v.name]) for v in function.inputs]
        found = run(function, feeds, module=module)
        results = dict(zip(function.result_names, found, strict=True))
        kept = {name: results.pop(output) for name, (output, _) in module.states.items()}
    return results


def check(
    model: bytes, inputs: Arrays, *, tolerance: float = 2e-6, steps: int = 1, calls: int = 1
) -> None:
    """That ours and LiteRT's results agree in the last of some calls: floats within `tolerance` of
    the largest, quantised integers within `steps`."""
    theirs, ours = expected(model, inputs, calls), interpreted(model, inputs, calls)
    assert list(ours) == list(theirs)
    for name, wanted in theirs.items():
        found = ours[name]
        assert found.shape == wanted.shape, (name, found.shape, wanted.shape)
        assert found.dtype == wanted.dtype, (name, found.dtype, wanted.dtype)
        if wanted.dtype.kind == "f":
            scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            bound = steps if wanted.dtype.itemsize < 4 and wanted.dtype.kind != "b" else 0
            difference = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
            assert difference.max(initial=0) <= bound, (name, found, wanted)
