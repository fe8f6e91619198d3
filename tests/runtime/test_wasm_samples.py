"""Every sample of every op, compiled for WebAssembly, packaged and run under Node.

All samples are entry points of one module, as in `test_op_samples.py`, whose oracle this takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node import (
    Call,
    make_package,
    relaxed_flags,
    require_node,
    require_toolchain,
    run_calls,
)
from tests.support.samples_module import compare, compiled, entries, expected, inputs_of

TARGETS = ("wasm32",) if relaxed_flags() is None else ("wasm32", "wasm32-relaxed")


@pytest.mark.parametrize("target", TARGETS)
def test_under_node(target: str, tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    module = tmp_path / "samples.aotm"
    module.write_bytes(compiled(target))
    loader = make_package(module, tmp_path / "package")
    flags = relaxed_flags() or () if target == "wasm32-relaxed" else ()
    calls = [Call(inputs_of(cases), entry) for entry, cases in entries(1).items()]
    outcomes = run_calls(loader, calls, flags=flags)
    for (entry, cases), outcome in zip(entries(1).items(), outcomes, strict=True):
        assert not outcome.message, f"{entry}: {outcome.message}"
        (case,) = cases
        wanted = expected(case)
        compare(cases, {n: a.view(wanted[n].dtype) for n, a in outcome.outputs.items()})
