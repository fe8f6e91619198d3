"""The benchmark of torch's own op samples: a few ops of each kind, its verdicts and its page."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import aot
from tests.support import torch_op_report as report
from tests.support import torch_op_samples as suite
from tests.support.torch_op_samples import Outcome, Record


@pytest.fixture(scope="module")
def db(t: Any) -> dict[str, Any]:
    pytest.importorskip("expecttest", reason="torch's op database needs expecttest")
    return suite.ops()


@pytest.mark.parametrize("name", ["arange", "fft.fft", "gather", "masked_select", "unfold"])
def test_samples_are_right(db: dict[str, Any], name: str) -> None:
    for record in suite.survey([name], suite.DTYPES, samples=2):
        assert [o for o in record.outcomes if o.verdict != "right"] == []
        assert record.outcomes


def test_done_records_are_not_run_again(db: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    done = Record("sub", "float32", 1, (Outcome("refused", "not\nso"),))
    path.write_text(done.to_json() + "\n" + done.to_json()[:20])
    assert suite.read_records(path) == [done]
    assert [r.dtype for r in suite.survey(["sub"], ["float32", "int64"], 1, [done])] == ["int64"]


def test_shards_are_all_ops_once(db: dict[str, Any]) -> None:
    parts = [suite.chosen([], (part, 3)) for part in range(3)]
    names = [name for part in parts for name in part]
    assert sorted(names) == sorted(suite.chosen([]))
    assert not {"rand_like", "empty"} & set(names)
    with pytest.raises(ValueError, match="torch has no samples of nothing, no"):
        suite.chosen(["nothing", "sub", "no"])


@pytest.mark.parametrize(
    ("end", "verdict", "note"),
    [
        (
            lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL),
            "internal error",
            "ended by SIGKILL",
        ),
        (lambda *_, **__: 1 / 0, "internal error", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_child_that_ends_is_one_failure(
    db: dict[str, Any], monkeypatch: pytest.MonkeyPatch, end: Any, verdict: str, note: str
) -> None:
    monkeypatch.setattr(aot, "compile", end)
    assert suite.outcomes("sub", "float32", 2) == [Outcome(verdict, note)] * 2


def test_a_child_that_does_not_end_is_one_failure(
    db: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forever(*_: Any, **__: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(aot, "compile", forever)
    monkeypatch.setattr(suite, "LIMIT_S", 1)
    assert suite.outcomes("sub", "float32", 1) == [Outcome("internal error", "ended by SIGXCPU")]


def test_differences(t: Any) -> None:
    nan, inf = float("nan"), float("inf")
    one = t.tensor([1.0, nan, inf])
    assert suite.differs((one, 2), [one.clone(), 2]) == ""
    assert suite.differs(one, one.double()) == "torch.float64, expected torch.float32"
    assert suite.differs(one, one[:2]) == "shape [2], expected [3]"
    assert suite.differs(one, t.tensor([1.0, 1.0, inf])) == "0 NaN, expected 1"
    assert suite.differs(one, t.tensor([1.0, nan, -inf])) == "differs by up to 1.8e+308"
    assert suite.differs((one, one), [one]) == "1 results, expected 2"
    assert suite.differs(t.tensor([1, 2]), t.tensor([1, 3])) == "1 of 2 elements differ"


def test_page(t: Any) -> None:
    refused = Outcome(
        "refused", "model: not supported (1):\n  aten.x (node 'a', file.py:3): axis 2 is not so"
    )
    wrong = Outcome("wrong", "1 of 2 elements differ")
    text = report.page([Record("x", "int64", 2, (refused, wrong))])
    assert "| 1 | axis N is not so | x |" in text
    assert "| x | int64 | wrong | 1 of 2 elements differ |" in text
    assert "| verdict | int64 |\n|---|---|\n| right | 0 |\n| refused | 1 |" in text
