"""The facts about a run: the date may be set, models are known by their bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from aot.driver import provenance as made
from aot.errors import CompileError


def test_the_date_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert made.date() == "2001-09-09T01:46:40Z"
    assert made.provenance("bench", ["a b"]) == made.provenance("bench", ["a b"])
    assert made.provenance("bench", ["a b"])["command"] == "aotc 'a b'"


@pytest.mark.parametrize("value", ["now", "1.5", "9" * 30, "-" + "9" * 17])
def test_a_date_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    with pytest.raises(CompileError, match="^SOURCE_DATE_EPOCH is '.*': it is a number of seconds"):
        made.date()


def test_models_are_known_by_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"model")
    digest = xxhash.xxh3_128(b"model").hexdigest()
    found = made.model_facts([str(path), f"{path}:det", "-"])
    assert found[0] == found[1] == {"name": "m.onnx", "bytes": 5, "digest": digest}
    assert found[2] == {"name": "-"}


def test_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    """Which would wait for a writer without end."""
    os.mkfifo(tmp_path / "pipe")
    assert made.model_facts([tmp_path / "pipe"]) == [{"name": "pipe"}]
