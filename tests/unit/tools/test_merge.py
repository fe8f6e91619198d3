"""Merged modules: each entry point computes what it did alone, and what is equal is there once."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.cli import main as cli
from aot.errors import CompileError, RuntimeFailure
from aot.ir.graph import Module
from aot.link.image import Arch, ModuleImage
from aot.link.merge import MergeInput, merge_modules
from aot.link.module import module_bytes
from aot.link.notes import decode_notes, encode_notes
from aot.link.reader import read_module
from tests.support.runtime_build import build_tool

Array = np.ndarray[Any, Any]

DRAW = np.random.default_rng(5)
SHARED, OWN, OTHER = (DRAW.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
X = DRAW.standard_normal((5, 64)).astype(np.float32)
TARGETS = ("x86-64-v2", "aarch64-generic", "vulkan-1.1")


def model(activation: str, *weights: Array, output: str = "y") -> Module:
    """x: f32[N, 64] through matmul and `activation` for each of the weights, then a sum of rows."""
    b = aot.builder.Builder()
    value = b.input("x", "f32[N, 64]")
    for each in weights:
        value = b.op(activation, b.op("matmul", value, b.constant(each)))
    b.output(output, b.op("reduce_sum", value, axes=[1]))
    return b.module()


MODELS: dict[str, Callable[[], Module]] = {
    "first": lambda: model("relu", SHARED, OWN),
    "second": lambda: model("relu", OTHER, SHARED, output="z"),
    "third": lambda: model("tanh", SHARED),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, aot.CompiledModule]:
    return {name: aot.compile(make()) for name, make in MODELS.items()}


@pytest.fixture
def files(
    compiled: dict[str, aot.CompiledModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The modules as files in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, module in compiled.items():
        module.save(f"{name}.aotm")
    return [f"{name}.aotm" for name in compiled]


def outputs(module: Any, entry: str | None = None) -> list[bytes]:
    with aot.load(module, entry=entry) as program:
        return [result.tobytes() for result in program({"x": X}).values()]


# What a merged module is -----------------------------------------------------------------------


def test_each_entry_point_computes_what_it_did(
    files: list[str], compiled: dict[str, aot.CompiledModule]
) -> None:
    merged = aot.merge(files)
    merged.save("app.aotm")
    for name, module in compiled.items():
        assert outputs("app.aotm", name) == outputs(module)
        with aot.load("app.aotm", entry=name) as program:
            assert program.entry == name
            program.verify_rodata()
    assert outputs("app.aotm") == outputs(compiled["first"])  # the first one, where none is named
    with pytest.raises(RuntimeFailure, match="fourth.*first.*second.*third"):
        aot.load("app.aotm", entry="fourth")
    found = aot.inspect("app.aotm", verify=True)
    entries = found["variants"][0]["entry_points"]
    assert [e["name"] for e in entries] == ["first", "second", "third"]
    assert [e["outputs"][0]["name"] for e in entries] == ["y", "z", "y"]


def test_equal_functions_and_constants_are_there_once(
    compiled: dict[str, aot.CompiledModule],
) -> None:
    """As if all had been compiled together, and by exactly as much as the ledger says."""
    images = {name: module.image for name, module in compiled.items()}
    merged = aot.merge(compiled)
    (variant,) = merged.image.variants
    (counts,) = merged.stats["merge"]["variants"]
    rodata = merged.stats["merge"]["rodata"]

    lengths = {n: function_bytes(image) for n, image in images.items()}
    distinct = {code for found in lengths.values() for code in found}
    assert counts["functions"] == {
        "met": sum(len(c) for found in lengths.values() for c in found),
        "kept": sum(map(len, distinct)),
        "count_met": sum(map(len, lengths.values())),
        "count_kept": len(distinct),
    }
    assert len(distinct) < counts["functions"]["count_met"]
    code = [len(image.variants[0].code) for image in images.values()]
    assert counts["code"] == {"met": sum(code), "kept": len(variant.code)}
    parts = ("functions", "constants", "padding")
    for key in ("met", "kept"):
        assert counts["code"][key] == sum(counts[part][key] for part in parts)
    assert counts["executables"]["kept"] == len(variant.executables) < 6
    # SHARED is in all three
    assert rodata["bytes_equal"] == 2 * SHARED.nbytes
    assert len(merged.image.rodata) == sum(len(i.rodata) for i in images.values()) - 2 * (64 * 256)


def function_bytes(image: ModuleImage) -> set[bytes]:
    """The functions of an image; those of these models refer to nothing that differs."""
    variant, parts = image.variants[0], decode_notes(image.notes).variants[0].parts
    assert parts is not None
    found = set()
    for part in parts.functions:
        code = bytearray(variant.code[part.offset : part.offset + part.length])
        for reference in part.references:
            code[reference.place : reference.place + 4] = bytes(4)
        found.add(bytes(code))
    return found


def test_the_file_is_smaller_by_what_is_shared(files: list[str]) -> None:
    merged = aot.merge(files)
    size, alone = len(merged.to_bytes()), sum(Path(f).stat().st_size for f in files)
    (counts,) = merged.stats["merge"]["variants"]
    shared = counts["code"]["met"] - counts["code"]["kept"]
    shared += merged.stats["merge"]["rodata"]["bytes_equal"]
    assert shared > 0
    assert size <= alone - shared


def test_every_variant_has_all_entry_points() -> None:
    made = {name: aot.compile(make(), targets=TARGETS) for name, make in MODELS.items()}
    merged = aot.merge(made)
    assert [v.target for v in merged.image.variants] == list(TARGETS)
    for number, variant in enumerate(merged.image.variants):
        assert [e.name for e in variant.entry_points] == list(MODELS)
        counts = merged.stats["merge"]["variants"][number]
        assert counts["target"] == variant.target
        assert counts["functions"]["count_kept"] < counts["functions"]["count_met"]
    gpu = replace(merged.image.variants[2], page_bytes=4096)  # which means nothing without code
    read = read_module(merged.to_bytes())
    assert read == replace(merged.image, variants=(*merged.image.variants[:2], gpu))
    spirv = [e.spirv for e in merged.image.variants[2].executables]
    assert len(set(spirv)) == len(spirv)
    # the targets of the second may be in another order
    turned = aot.compile(MODELS["second"](), targets=TARGETS[::-1])
    again = aot.merge({**made, "second": turned}).image
    assert replace(again, notes=b"") == replace(merged.image, notes=b"")


@pytest.mark.parametrize("target", [t.name for t in aot.targets() if t.is_cpu])
def test_every_cpu_s_modules_merge(target: str) -> None:
    """Code starts where its instruction set lets it, before and after."""
    made = {name: aot.compile(make(), targets=[target]) for name, make in MODELS.items()}
    merged = aot.merge(made)
    for module in (*made.values(), merged):
        (variant,) = module.image.variants
        step = 1 if variant.arch is Arch.WASM32 else 2
        assert all(e.code_offset % step == 0 for e in variant.executables)
        aot.inspect(module.to_bytes(), verify=True)
    (counts,) = merged.stats["merge"]["variants"]
    assert counts["functions"]["count_kept"] < counts["functions"]["count_met"]


def test_the_same_modules_give_the_same_bytes(files: list[str]) -> None:
    merged = aot.merge(files).to_bytes()
    assert aot.merge(files).to_bytes() == merged
    assert aot.merge({Path(f).stem: Path(f).read_bytes() for f in files}).to_bytes() == merged


def test_merging_again_is_merging_at_once(files: list[str]) -> None:
    at_once = aot.merge(files).image
    aot.merge(files[:2]).save("two.aotm")
    again = aot.merge(["two.aotm", files[2]]).image
    assert replace(again, notes=b"") == replace(at_once, notes=b"")
    ledger = decode_notes(again.notes).ledger
    assert [m["entry_points"] for m in ledger["models"]] == [["first"], ["second"], ["third"]]
    assert [m["modules"] for m in ledger["merges"]] == [2, 2]


def test_a_module_alone_keeps_what_it_is(files: list[str]) -> None:
    alone, merged = read_module(files[0]), aot.merge(files[:1]).image
    assert (merged.rodata, merged.variants[0].code) == (alone.rodata, alone.variants[0].code)


def test_constants_are_not_shared_where_the_policy_says_so(files: list[str]) -> None:
    merged = aot.merge(files, share_constants=False)
    assert len(merged.image.rodata) == sum(len(read_module(f).rodata) for f in files)
    assert outputs(merged, "second") == outputs(files[1])


def test_weights_of_variants_are_there_once() -> None:
    """Their panels are the same, so what is packed for one is packed for all."""
    alone = aot.compile(MODELS["first"](), targets=TARGETS[:1])
    both = aot.compile(MODELS["first"](), targets=TARGETS[:2])
    assert both.image.rodata == alone.image.rodata
    assert both.stats["rodata"]["bytes_equal"] == alone.stats["rodata"]["bytes_met"]
    apart = aot.compile(MODELS["first"](), targets=TARGETS[:2], disable=["share-constants"])
    assert apart.stats["rodata"]["bytes_kept"] == both.stats["rodata"]["bytes_met"]


# Names -----------------------------------------------------------------------------------------


def names(module: aot.CompiledModule) -> list[str]:
    return [e.name for e in module.image.variants[0].entry_points]


def test_entry_points_are_called_as_was_asked(files: list[str]) -> None:
    aot.compile(MODELS["third"](), entry_name="asked").save("unasked.aotm")
    assert names(aot.merge([files[0], "unasked.aotm"])) == ["first", "asked"]
    assert names(aot.merge([f"{files[0]}:other", "unasked.aotm:text: 1"])) == ["other", "text: 1"]
    shutil.copy(files[1], "a:b.aotm")
    assert names(aot.merge(["a:b.aotm", Path(files[0]), f"{files[2]}:c"])) == ["a:b", "first", "c"]
    assert names(aot.merge({"one": files[0], "two": files[0]})) == ["one", "two"]


def test_a_compiled_module_is_called_as_was_asked() -> None:
    module = aot.compile(MODELS["third"](), entry_name="tanh net")
    assert names(module) == ["tanh net"]
    assert outputs(module, "tanh net") == outputs(aot.compile(MODELS["third"]()), "main")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            ["first.aotm", "sub/first.aotm"],
            "first.aotm and sub/first.aotm both have an entry point 'first'; give one another "
            "name, as in sub/first.aotm:NAME",
        ),
        (
            ["two.aotm:x"],
            "two.aotm has the entry points first, second: only the one of a module with one can "
            "be named 'x'",
        ),
        (["first.aotm:"], "an entry point cannot be called '': expected printable text"),
        (["first.aotm: a"], "an entry point cannot be called ' a': expected printable text"),
        ([], "there is no module to merge"),
        (["absent.aotm"], "cannot read absent.aotm: no such file or directory"),
        (
            ["first.aotm", "stripped.aotm"],
            "stripped.aotm: it has no notes on its parts, which merging needs; compile it "
            "without --strip",
        ),
        (
            ["first.aotm", "other-target.aotm"],
            "first.aotm is for HOST, other-target.aotm for armv7-neon: the modules of one file "
            "need the same targets; compile them with the same --target options",
        ),
    ],
)
def test_what_cannot_be_merged_is_named(
    modules: list[str], message: str, files: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    shutil.copy(files[0], "sub/first.aotm")
    aot.merge(files[:2]).save("two.aotm")
    aot.compile(MODELS["third"](), strip=True).save("stripped.aotm")
    aot.compile(MODELS["third"](), targets=["armv7-neon"]).save("other-target.aotm")
    message = message.replace("HOST", read_module(files[0]).variants[0].target)
    with pytest.raises(CompileError) as caught:
        aot.merge(modules)
    assert str(caught.value).startswith(message)


def test_unlike_machines_of_one_name_are_not_merged(
    compiled: dict[str, aot.CompiledModule],
) -> None:
    image = compiled["first"].image
    variant = image.variants[0]
    unlike = replace(image, variants=(replace(variant, features=("sse2",), page_bytes=16384),))
    with pytest.raises(CompileError) as caught:
        merge_modules([MergeInput("a", image, {"main": "x"}), MergeInput("b", unlike)])
    assert str(caught.value) == (
        f"a and b mean different machines by the target {variant.target}: "
        f"{variant.arch.name.lower()} {' '.join(variant.features)} words of 8 bytes pages of "
        f"{variant.page_bytes} bytes, and {variant.arch.name.lower()} sse2 words of 8 bytes pages "
        "of 16384 bytes; compile them with the same target file"
    )


def test_an_entry_name_needs_one_entry_point() -> None:
    module = MODELS["first"]()
    b = aot.builder.Builder("other", into=module)
    b.output("y", b.op("relu", b.input("x", "f32[3]")))
    b.module()
    with pytest.raises(CompileError, match="entry points main, other: none can be named 'x'"):
        aot.compile(module, entry_name="x")


# Notes -----------------------------------------------------------------------------------------


def test_notes_are_a_small_part_of_the_file_and_can_be_left_out(
    compiled: dict[str, aot.CompiledModule],
) -> None:
    module, stripped = compiled["first"], aot.compile(MODELS["first"](), strip=True)
    assert stripped.image == replace(module.image, notes=b"")
    assert 0 < len(module.image.notes) < 3000
    assert outputs(stripped) == outputs(module)


def test_notes_of_another_module_are_refused(compiled: dict[str, aot.CompiledModule]) -> None:
    """Whatever stands in them; what they say is checked against the module."""
    image = compiled["first"].image
    good = json.loads(image.notes)
    (variant,) = good["variants"]

    def noted(**changes: Any) -> bytes:
        return json.dumps({**good, "variants": [{**variant, **changes}]}).encode()

    functions = variant["functions"]
    wrong = {
        b"{": "Expecting property name",
        b"[]": "its notes are not of format 1",
        b'{"format":2}': "its notes are not of format 1",
        b'{"format":1}': "its notes are malformed",
        noted(functions=[["a", 1, 2, []]]): "its notes are malformed",
        noted(functions=[[1, 2]]): "its notes are malformed",
        noted(addresses=[]): "its notes are of another module",
        noted(addresses=[[1 << 40]]): "its notes are of another module: word",
        noted(addresses=[[-4]]): "its notes are of another module: word",
        noted(addresses=[[0]]): "its notes are of another module: word 0 is not a CONST",
        noted(functions=[]): "no function is at 0",
        noted(functions=[[1 << 30, *functions[0][1:]], *functions[1:]]): "is outside its image",
        json.dumps({**good, "variants": []}).encode(): "its notes are of another module",
    }
    for notes, message in wrong.items():
        with pytest.raises(CompileError, match=message):
            aot.merge([module_bytes(replace(image, notes=notes))])


def test_notes_are_read_as_they_were_written(compiled: dict[str, aot.CompiledModule]) -> None:
    for module in compiled.values():
        assert encode_notes(decode_notes(module.image.notes)) == module.image.notes


# The command -----------------------------------------------------------------------------------


def test_the_command_merges(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["merge", *files, "-o", "app.aotm", "--stats", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == aot.merge(files).stats
    assert Path("app.aotm").read_bytes() == aot.merge(files).to_bytes()
    assert cli.main(["run", "app.aotm", "--entry", "second", "--shape", "x=2x64"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("z ")
    Path("third.ir").write_text(aot.ir.text.printer.print_module(MODELS["third"]()))  # type: ignore[attr-defined]
    verify = ["verify", "app.aotm", "--model", "third.ir", "--entry", "third", "--shape", "x=2x64"]
    assert cli.main(verify) == 0
    assert "agrees with reference" in capsys.readouterr().out


def test_the_command_says_what_is_wrong(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["merge", *files, "-o", files[1]]) == 2
    assert "the output is one of the modules" in capsys.readouterr().err
    assert cli.main(["merge", "-o", "x.aotm"]) == 2
    assert "missing argument 'FILE[:NAME]...'" in capsys.readouterr().err
    assert cli.main(["merge", files[0], files[0], "-o", "x.aotm"]) == 1
    assert "both have an entry point 'first'" in capsys.readouterr().err
    assert not Path("x.aotm").exists()


def test_the_native_tool_opens_an_entry_point_by_name(files: list[str]) -> None:
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    aot.merge(files).save("app.aotm")
    np.save("x.npy", X)
    for name, file in zip(MODELS, files, strict=True):
        folders = []
        for module, entry in (("app.aotm", ["--entry", name]), (file, [])):
            folders.append(Path(f"{name}-{module}"))
            folders[-1].mkdir()
            command = [tool, module, *entry, "--input", "x=x.npy", "--output", folders[-1]]
            subprocess.run(command, check=True, capture_output=True)
        merged, alone = ({p.name: p.read_bytes() for p in f.iterdir()} for f in folders)
        assert merged == alone != {}
    wrong = [tool, "app.aotm", "--entry", "fourth", "--random", "--shape", "x=1x64"]
    result = subprocess.run(wrong, capture_output=True, text=True, check=False)
    target = read_module("app.aotm").variants[0].target
    assert (result.returncode, result.stderr) == (
        1,
        f'aot-run: app.aotm: no entry point "fourth", variant "{target}" has "first", "second", '
        '"third"\n',
    )


# What a model keeps between calls --------------------------------------------------------------


def test_each_model_keeps_its_own_state() -> None:
    """Two counters in one file: each remembers its own sum, and forgets it alone."""

    def counter(scale: float) -> aot.CompiledModule:
        b = aot.builder.Builder()
        past, x = b.input("past", "f32[8]"), b.input("x", "f32[8]")
        total = b.op("add", past, b.op("mul", x, np.float32(scale)))
        b.output("y", b.op("relu", total))
        b.output("present", total)
        return aot.compile(b.module(), states={"past": "present"})

    merged = aot.merge({"once": counter(1), "twice": counter(2)})
    x = {"x": np.ones(8, np.float32)}
    with aot.load(merged, entry="once") as once, aot.load(merged, entry="twice") as twice:
        seen = [program(x)["y"][0] for program in (once, twice, once, twice, once)]
        assert seen == [1, 2, 2, 4, 3]
        once.reset()
        assert (once(x)["y"][0], twice(x)["y"][0]) == (1, 6)
