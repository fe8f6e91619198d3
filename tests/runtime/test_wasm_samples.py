"""Every sample of every op, compiled for WebAssembly, packaged and run under Node.

All samples are entry points of one module, as in `test_op_samples_run`, whose oracle this takes.
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
from tests.support.samples_module import CASES, compare, compiled, expected, inputs_of

TARGETS = ("wasm32",) if relaxed_flags() is None else ("wasm32", "wasm32-relaxed")


@pytest.mark.parametrize("target", TARGETS)
def test_under_node(target: str, tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    module = tmp_path / "samples.aotm"
    module.write_bytes(compiled(target))
    loader = make_package(module, tmp_path / "package")
    entries = [f"{name}_{number}" for name, number in CASES]
    flags = relaxed_flags() or () if target == "wasm32-relaxed" else ()
    calls = [Call(inputs_of(entry), entry) for entry in entries]
    outcomes = run_calls(loader, calls, flags=flags)
    for entry, outcome in zip(entries, outcomes, strict=True):
        assert not outcome.message, f"{entry}: {outcome.message}"
        wanted = expected(entry)
        found = [outcome.outputs[f"y{n}"] for n in range(len(wanted))]
        compare(entry, [f.view(w.dtype) for f, w in zip(found, wanted, strict=True)])
