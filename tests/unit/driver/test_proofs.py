"""Proofs in a compile: always there, kept with the objects, counted, and what their lack says."""

from __future__ import annotations

from pathlib import Path

import pytest

import aot
from aot.driver import proofs
from aot.errors import CompileError, InternalError, ProofWarning
from aot.ir import expr
from aot.ir.dims import Dim, symbol
from aot.ir.types import DType
from aot.kernels.proof.walk import Unproved, Verdict
from aot.target import selection as targets
from aot.tools.explain_fusion import format_fusion
from tests.support.small_kernels import Kernels, store

TEXT = """func @main(%x: f32[N, 8]) -> ("y", "z") {
  %y = relu(%x) : f32[N, 8]
  %z = reduce_sum(%y) {axes = [1], keepdims = false} : f32[N]
  return(%y, %z)
}
"""


KNOWN = TEXT.replace("N", "3")


def section(text: str, target: str = "x86-64-v3", **options: object) -> dict[str, object]:
    program = aot.compile(text.encode(), targets=[target], **options)  # type: ignore[arg-type]
    found = program.stats["variants"][0]["proofs"]
    assert isinstance(found, dict)
    return found


def _without_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Verdict(unproved=[Unproved("out", "store", 0, 8, "past its end", "- 1")])
    monkeypatch.setattr(proofs, "proof_of", lambda *_: lacking)


@pytest.mark.parametrize("target", ["x86-64-v3", "vulkan-1.1"])
def test_every_kernel_of_a_compile_is_proved(target: str) -> None:
    found = section(TEXT, target, cache=False)
    by, accesses = found["by"], found["accesses"]
    assert isinstance(by, dict) and isinstance(accesses, dict)
    assert found["kernels"] == sum(by.values()) > 0
    assert sum(accesses.values()) >= 4 and found["cached"] == 0


def test_only_extents_are_taken_not_to_be_negative() -> None:
    n, step = symbol("n"), Kernels()
    out = step.buffer(DType.F32, symbol("d0"), written=True)
    kernel = step.kernel(store(out, expr.index(symbol("d1"))))
    none: set[Dim] = set()
    for extents, is_proved in ((none, False), ({n - 2}, True)):
        site = proofs._site({"d0": n + 1, "d1": n - 2}, extents, ())
        assert site.extents == ({"d0", "d1"} if is_proved else {"d0"})
        verdict = proofs.proof_of(kernel, [site], targets.load("x86-64-v3"))
        assert bool(verdict.unproved) != is_proved


def test_a_verdict_is_kept_with_the_object(tmp_path: Path) -> None:
    first = section(TEXT, cache_dir=tmp_path)
    second = section(TEXT, cache_dir=tmp_path)
    assert second["cached"] == second["kernels"] == first["kernels"]
    assert {**second, "cached": 0} == first


def test_what_is_not_proved_is_our_fault_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_proofs(monkeypatch)
    with pytest.raises(InternalError) as caught:
        section(KNOWN, cache=False)
    message = str(caught.value)
    assert (
        "for x86-64-v3: no proof that its kernel stays inside its memory: store of out" in message
    )
    assert "--disable proofs" in message and "kernel e" in message


def test_what_is_not_proved_of_open_extents_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_proofs(monkeypatch)
    said = "no proof that its kernel stays inside its memory: store of out.*please report"
    with pytest.warns(ProofWarning, match=said):
        found = section(TEXT, cache=False)
    assert found["unproved"] and not found["kernels"]


def test_a_compile_may_do_without_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_proofs(monkeypatch)
    assert section(TEXT, cache=False, disable=["proofs"])["kernels"] == 0


def test_a_target_that_the_user_described_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _without_proofs(monkeypatch)
    own = tmp_path / "own.toml"
    own.write_text((targets.directory() / "x86-64-v3.toml").read_text())
    with pytest.raises(CompileError, match=r"no proof .*the target is .*own\.toml"):
        section(KNOWN, str(own), cache=False)


def test_inspect_says_how_kernels_are_proved() -> None:
    facts = aot.explain_fusion(TEXT.encode(), targets=["x86-64-v3"])
    line, *_ = format_fusion(facts).splitlines()
    assert line.startswith("x86-64-v3: ")
    assert "kernels proved to stay inside their memory: " in line
