"""The ledger of deduplication: its numbers against what was compiled, its text, its commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.analysis.cost.code_size import CodeEstimate
from aot.backends.code import Emitted
from aot.cli import main as cli
from aot.driver.ledger import level_stats
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.tools.ledger_text import format_dedup, format_missed_merges
from tests.support.golden import check

DRAW = np.random.default_rng(3)
LEVELS = ("structural", "despecialised", "emitted")


def layers(*widths: int, activation: str = "relu") -> Module:
    """Dense layers: rows of widths[0] through one after another, each a dispatch of its own."""
    b = aot.builder.Builder()
    x = b.input("x", f"f32[512, {widths[0]}]")
    for inputs, outputs in pairwise(widths):
        weights = DRAW.standard_normal((inputs, outputs)).astype(np.float32)
        x = b.op(activation, b.op("matmul", x, b.constant(weights)), origin=f"layer{inputs}")
    b.output("y", x)
    return b.module()


def section(module: aot.CompiledModule) -> dict[str, Any]:
    found: dict[str, Any] = module.stats["variants"][0]
    return found


# The arithmetic of the levels --------------------------------------------------------------------


def told(own: Sequence[float], *, is_sure: bool = True) -> dict[str, Any]:
    """Five dispatches; a, b, c outlined; a and b become one, of 100 bytes, c is of 300."""
    emitted = Emitted(sizes=(100, 300), kept=2, bytes_met=450, bytes_kept=420)
    estimate = CodeEstimate(dict(zip("abc", own, strict=True)), {"ab": 100, "c": 150}, is_sure)
    final = ["ab", "ab", "ab", "c", "ab"]
    return level_stats("aabcb", final, ["ab", "c"], emitted, 4.0, estimate)


def test_what_is_saved_is_what_would_have_been_compiled() -> None:
    assert told((120, 80, 150)) == {
        # both were compiled to 400 bytes, for 250 expected, the shared one to as many as expected:
        # a would take (1.6 + 1.0) / 2 of 120 bytes, b 1.3 x 80; each has a dispatch more
        "structural": {"met": 5, "kept": 3, "bytes_saved": 260, "seconds_saved": 2.6},
        "despecialised": {"met": 3, "kept": 2, "bytes_saved": 160, "seconds_saved": 1.6},
        # 30 bytes of constants that the two share
        "emitted": {"met": 2, "kept": 2, "bytes_saved": 30, "seconds_saved": 0.0},
    }


def test_an_estimate_that_may_be_wrong_is_not_told() -> None:
    unknown = {"bytes_saved": None, "seconds_saved": None}
    little = told((60, 80, 150))  # 82 bytes of 482
    assert little["structural"] == {"met": 5, "kept": 3, "bytes_saved": 182, "seconds_saved": 1.82}
    assert little["despecialised"] == {"met": 3, "kept": 2, **unknown}
    for level in ("structural", "despecialised"):
        of_others = told((120, 80, 150), is_sure=False)[level]
        assert {**of_others, **unknown} == of_others


def test_what_is_as_large_as_expected_takes_what_it_takes() -> None:
    """Nothing became one: all sizes are known."""
    emitted = Emitted(sizes=(100, 300), kept=2, bytes_met=400, bytes_kept=400)
    stats = level_stats("aab", "aab", "ab", emitted, 4.0)
    assert stats["structural"] == {"met": 3, "kept": 2, "bytes_saved": 100, "seconds_saved": 1.0}
    assert stats["despecialised"] == {"met": 2, "kept": 2, "bytes_saved": 0, "seconds_saved": 0.0}


def test_nothing_compiled_saves_nothing() -> None:
    stats = level_stats([], [], [], Emitted((), 0, 0, 0), 0.0)
    for level in LEVELS:
        assert set(stats[level].values()) == {0}


def test_each_level_begins_with_what_the_one_before_has_kept() -> None:
    module = aot.compile(layers(48, 48, 48, 48, 96, 32), targets=["x86-64-v3"])
    levels = section(module)["executables"]
    assert list(levels) == list(LEVELS)
    assert levels["structural"]["met"] == section(module)["dispatches"] == 5
    # the first reads an input, the last writes an output; two of those between are equal
    assert levels["structural"]["kept"] == levels["despecialised"]["met"] == 4
    assert levels["despecialised"]["kept"] == levels["emitted"]["met"]
    assert all(level["kept"] <= level["met"] for level in levels.values())


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic", "riscv64-v", "wasm32"])
def test_despecialising_saves_as_much_as_it_says_it_does(target: str) -> None:
    """The estimate against a compile without, for each fit of bytes. It says too little, rather
    than too much, of layers whose widths are all different: 0.73 where one tile of six rows is
    kept for all."""
    widths = (64, 96, 128, 160, 192, 224, 256)
    shared = aot.compile(layers(*widths), targets=[target], optimize="size")
    apart = aot.compile(layers(*widths), targets=[target], disable=["despecialise"])
    level = section(shared)["executables"]["despecialised"]
    assert (level["met"], level["kept"]) == (6, 1)
    saved = section(apart)["code_bytes"] - section(shared)["code_bytes"]
    assert 0.7 * saved < level["bytes_saved"] < 1.25 * saved


@pytest.mark.parametrize("target", ["x86-64-v4", "armv7-neon", "riscv64", "thumbv7em"])
def test_savings_are_not_told_where_the_estimate_is_worse(target: str) -> None:
    module = aot.compile(layers(64, 96, 128, 160), targets=[target], optimize="size")
    level = section(module)["executables"]["despecialised"]
    assert level["kept"] < level["met"]
    assert level["bytes_saved"] is None


def test_equal_code_of_unlike_executables_is_one_executable() -> None:
    """A u32 and an i32 negation differ for us and not for the machine."""
    b = aot.builder.Builder()
    for dtype in ("i32", "u32"):
        x = b.input(f"x{dtype}", f"{dtype}[600000]")
        b.output(f"y{dtype}", b.op("add", x, x))
    for target in ("x86-64-v3", "vulkan-1.1"):
        module = aot.compile(b.module(), targets=[target], disable=["despecialise"])
        (variant,) = module.image.variants
        emitted = section(module)["executables"]["emitted"]
        assert (emitted["met"], emitted["kept"]) == (2, 1)
        assert emitted["bytes_saved"] > 0
        assert [e.name for e in variant.executables] == ["e0"]
    given = {f"x{t}": np.arange(600000, dtype=f"{t[0]}4") for t in ("i32", "u32")}
    with aot.load(aot.compile(b.module(), disable=["despecialise"])) as program:
        results = program(given)
    for t in ("i32", "u32"):
        np.testing.assert_array_equal(results[f"y{t}"], 2 * given[f"x{t}"])


def test_missed_merges_are_looked_for_where_notes_or_a_report_want_them() -> None:
    found = {
        (strip, details): "missed_merges"
        in section(aot.compile(layers(48, 96), strip=strip, details=details))
        for strip in (False, True)
        for details in (False, True)
    }
    assert found == {
        (False, False): True, (False, True): True, (True, False): False, (True, True): True
    }  # fmt: skip


# What the file keeps ---------------------------------------------------------------------------


def test_the_file_keeps_the_ledger_less_the_seconds(tmp_path: Path) -> None:
    module = aot.compile(layers(48, 48, 96))
    ledger = aot.inspect(module.to_bytes(), dedup=True)["dedup"]
    (model,) = ledger["models"]
    (variant,) = model["variants"]
    assert model["entry_points"] == ["main"]
    assert model["rodata"] == module.stats["rodata"]
    assert variant["missed_merges"] == section(module)["missed_merges"]
    for level in LEVELS:
        own = section(module)["executables"][level]
        assert variant["executables"][level] == {
            key: own[key] for key in ("met", "kept", "bytes_saved")
        }
    assert "dedup" not in aot.inspect(module.to_bytes())


def test_a_stripped_file_has_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    aot.compile(layers(8, 8), strip=True).save(path)
    with pytest.raises(CompileError) as caught:
        aot.inspect(path, dedup=True)
    assert str(caught.value) == (
        f"{path} has no notes on deduplication; compile its model without --strip"
    )


# Text ------------------------------------------------------------------------------------------


def test_all_variants_of_a_file_are_summed() -> None:
    """What is not known of one variant is not known of all."""
    module = aot.compile(layers(48, 96), targets=["x86-64-v3", "aarch64-generic"])
    text = format_dedup(aot.inspect(module.to_bytes(), dedup=True)["dedup"])
    sections = module.stats["variants"]
    dispatches, code = (sum(s[key] for s in sections) for key in ("dispatches", "code_bytes"))
    head = "executables of main for all variants: "
    assert f"{head}{dispatches} dispatches, {code:,} bytes of code" in text
    rows = text.split(head)[1].splitlines()
    for level, row in zip(LEVELS, rows[2:5], strict=True):
        found = [s["executables"][level] for s in sections]
        saved = [level["bytes_saved"] for level in found]
        total = "-" if None in saved else f"{sum(saved):,}"
        counts = [str(sum(level[key] for level in found)) for key in ("met", "kept")]
        assert row.split() == [level, *counts, total]


LEDGER: dict[str, Any] = {
    "models": [
        {
            "entry_points": ["det"],
            "rodata": {
                "bytes_met": 4_865_324,
                "bytes_kept": 4_800_000,
                "bytes_equal": 65_000,
                "bytes_contained": 300,
                "bytes_filled": 24,
            },
            "variants": [
                {
                    "target": "x86-64-v4",
                    "dispatches": 82,
                    "code_bytes": 47_836,
                    "executables": {
                        "emitted": {"met": 27, "kept": 26, "bytes_saved": 712},
                        "structural": {"met": 82, "kept": 51, "bytes_saved": 60_850},
                        "despecialised": {"met": 51, "kept": 27, "bytes_saved": 59_299},
                    },
                    "missed_merges": [
                        {
                            "executables": ["e1", "e7"],
                            "nodes": ["Conv_3", ""],
                            "rule": "attribute strides is compiled in",
                            "first": "%2 = conv(%0, %1) {strides = [1, 1]} : f32[1, 8, 4, 4]",
                            "second": "%2 = conv(%0, %1) {strides = [2, 2]} : f32[1, 8, 2, 2]",
                            "bytes": 4_499,
                        }
                    ],
                }
            ],
        },
        {
            "entry_points": ["cls", "rec"],
            "rodata": dict.fromkeys(
                ("bytes_met", "bytes_kept", "bytes_equal", "bytes_contained", "bytes_filled"), 0
            ),
            "variants": [
                {
                    "target": "vulkan-1.1",
                    "dispatches": 1,
                    "code_bytes": 1_024,
                    "executables": {
                        level: {"met": 1, "kept": 1, "bytes_saved": bytes, "seconds_saved": time}
                        for level, bytes, time in zip(LEVELS, (0, None, 0), (0.125, None, 0.125))
                    },
                    "missed_merges": [],
                }
            ],
        },
    ],
    "merges": [
        {
            "modules": 2,
            "rodata": {
                "bytes_met": 300,
                "bytes_kept": 200,
                "bytes_equal": 100,
                "bytes_contained": 0,
                "bytes_filled": 0,
            },
            "variants": [
                {
                    "target": "x86-64-v4",
                    "executables": {"met": 40, "kept": 38},
                    "functions": {"met": 9000, "kept": 8000, "count_met": 40, "count_kept": 37},
                    "constants": {"met": 600, "kept": 300},
                    "padding": {"met": 400, "kept": 420},
                    "code": {"met": 10_000, "kept": 8_720},
                },
                {
                    "target": "vulkan-1.1",
                    "executables": {"met": 2, "kept": 1},
                    "functions": {"met": 800, "kept": 400, "count_met": 2, "count_kept": 1},
                    "code": {"met": 800, "kept": 400},
                },
            ],
        }
    ],
}


def test_the_ledger_as_text(bless: bool) -> None:
    check("ledger/dedup.txt", format_dedup(LEDGER) + "\n", bless=bless)
    check("ledger/missed-merges.txt", format_missed_merges(LEDGER) + "\n", bless=bless)


# Commands --------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    aot.compile(layers(48, 48, 96, 32), targets=["x86-64-v3"]).save("model.aotm")
    Path("model.ir").write_text(
        'func @main(%x: f32[40000, 30], %y: f32[40000, 20]) -> ("a", "b") {\n'
        "  %0 = softmax(%x) {axis = 1} : f32[40000, 30]\n"
        "  %1 = softmax(%y) {axis = 1} : f32[40000, 20]\n"
        "  return(%0, %1)\n}\n"
    )
    return "model.ir"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_inspect_shows_the_ledger_of_a_file(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "inspect", "model.aotm", "--dedup")
    ledger = aot.inspect("model.aotm", dedup=True)["dedup"]
    assert text == f"{said(capsys, 'inspect', 'model.aotm')}\n{format_dedup(ledger)}\n"
    assert "seconds saved" not in text
    facts = json.loads(said(capsys, "inspect", "model.aotm", "--dedup", "--json"))
    assert facts["dedup"] == ledger


def test_inspect_compiles_a_model_for_its_ledger(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "inspect", model, "--dedup", "--target", "x86-64-v3")
    assert text.startswith("executables of main for x86-64-v3: 2 dispatches, ")
    assert "level          found  kept  bytes saved  seconds saved\n  structural         2 " in text
    assert not Path("model.aotm.tmp").exists() and text.count("constants of main") == 1
    options = ("--dedup", "--target", "x86-64-v3", "--disable", "despecialise", "--json")
    facts = json.loads(said(capsys, "inspect", model, *options))
    (variant,) = facts["dedup"]["models"][0]["variants"]
    assert variant["executables"]["despecialised"]["kept"] == 2


def test_explain_dedup_of_a_model_and_of_its_file(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--target", "x86-64-v3", "--disable", "despecialise")
    text = said(capsys, "explain-dedup", model, *options)
    assert text.startswith("1 missed merge of main for x86-64-v3\n\n  e0 and e1: ")
    assert (
        "    only extents differ, and despecialising is off\n"
        "    - f32[40000, 30]\n    + f32[40000, 20]\n"
    ) in text
    assert cli.main(["compile", model, "-o", "out.aotm", *options]) == 0
    assert said(capsys, "explain-dedup", "out.aotm") == text
    ledger = json.loads(said(capsys, "explain-dedup", "out.aotm", "--json"))
    assert ledger["models"][0]["variants"][0]["missed_merges"][0]["executables"] == ["e0", "e1"]


def test_options_of_a_compile_go_with_a_model(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["explain-dedup", "model.aotm", "--optimize", "size"],
        ["inspect", "model.aotm", "--dedup", "--optimize", "size"],
    ):
        assert cli.main(arguments) == 2
        message = "--optimize goes with a model; a module file is compiled"
        assert message in capsys.readouterr().err


def test_a_missing_file_is_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["explain-dedup", "absent"], ["inspect", "absent", "--dedup"]):
        assert cli.main(command) == 1
        assert capsys.readouterr().err == (
            "aotc: error: cannot read absent: no such file or directory\n"
        )


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("merge", "explain-dedup"):
        assert f"aotc {command} " in said(capsys, command, "--help").split("Examples:")[1]
