"""libFuzzer on vocabularies and text (runtime/tests/fuzz/text), under ASan and UBSan: a damaged
vocabulary gives wrong tokens or an error, and never a crash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aot.link.vocabulary import encode_vocabulary
from aot.text.gguf import read_vocabulary
from tests.support.runtime_build import RUNTIME, SANITIZE, build, library_sources
from tests.support.vocabularies import CORPUS, TRAINED, byte_vocabulary, trained_metadata

FLAGS = [*SANITIZE, "-fsanitize=fuzzer"]
TEXTS = ((0, CORPUS[:150]), (7, "a <|im_end|> <think>x  \n\nthe 123 été"), (31, "the " * 30))


def _fuzzer() -> Path:
    sources = [*library_sources(), *sorted(RUNTIME.glob("tests/fuzz/text/*.c"))]
    try:
        binary = build("aot-fuzz-text", sources, FLAGS, "clang", ["-lpthread"])
    except RuntimeError as error:
        if "libclang_rt" not in str(error):
            raise
        binary = None
    if binary is None:
        pytest.skip("clang with libFuzzer is not installed")
    return binary


def _write_seeds(folder: Path) -> None:
    segments = [encode_vocabulary(byte_vocabulary())]
    for name in TRAINED:
        vocabulary = read_vocabulary(trained_metadata(name))
        assert vocabulary is not None
        segments.append(encode_vocabulary(vocabulary))
    for number, segment in enumerate(segments):
        for options, text in TEXTS:
            data = text.encode()
            head = bytes([options, *len(data).to_bytes(2, "little")])
            (folder / f"{number}-{options}").write_bytes(head + data + segment)


@pytest.mark.parametrize("runs", [20_000, pytest.param(5_000_000, marks=pytest.mark.sweep)])
def test_damage_never_crashes(runs: int, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    _write_seeds(seeds)
    words = [_fuzzer(), f"-artifact_prefix={tmp_path}/", "-max_len=40000", "-seed=1"]
    command = [*map(str, words), f"-runs={runs}", str(seeds)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"Done {runs} runs" in result.stderr
