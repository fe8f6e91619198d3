"""Facts about a model: from its file and from options to the module, and out of it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flatbuffers
import gguf
import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.errors import CompileError
from aot.frontends.lib.metadata import MOST_KEYS, MOST_VALUE_BYTES, MetadataWarning
from aot.frontends.tflite import import_tflite
from aot.runtime import loader
from tests.support import gguf_files
from tests.support.runtime_api import library_path
from tests.support.tflite_models import Builder, File, table

GRAPH = '<ir_version: 8, opset_import: ["" : 17]> agraph (float[2] x) => (float[2] y) {y = Tanh(x)}'


@pytest.fixture(autouse=True)
def use_built_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this checkout, not an installed one."""
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


def model(**facts: str) -> onnx.ModelProto:
    """A small ONNX model whose file says this of it."""
    made = onnx.parser.parse_model(GRAPH)
    onnx.helper.set_model_props(made, facts)
    return made


def metadata(*models: Any, **options: Any) -> dict[str, str]:
    """What the module has, as a loaded program tells it."""
    compiled = aot.compile(models[0], **options)
    with aot.load(compiled) as program:
        assert program.metadata == compiled.image.metadata
        return program.metadata


def test_an_onnx_file_and_the_options() -> None:
    facts = {"author": "né à Ö", "names": "{0: 'cat', 1: 'dog'}", "stride": "32"}
    assert metadata(model(**facts)) == facts
    given = {"author": "me", "stride": "", "license": "MIT", "labels": "a\nb"}
    expected = {"author": "me", "names": facts["names"], "license": "MIT", "labels": "a\nb"}
    assert metadata(model(**facts), metadata=given) == expected
    assert metadata(model()) == {}


def test_the_same_module_whatever_the_order_of_facts() -> None:
    one = aot.compile(model(a="1", b="2", c="3")).to_bytes()
    assert one == aot.compile(model(c="3"), metadata={"b": "2", "a": "1"}).to_bytes()


def test_several_models() -> None:
    models = {"det": model(author="me", stride="8"), "rec": model(author="you")}
    given = {"rec:license": "MIT", "det:stride": ""}
    expected = {"det:author": "me", "rec:author": "you", "rec:license": "MIT"}
    assert metadata(models, metadata=given) == expected
    with pytest.raises(CompileError, match="expected det:license or rec:license"):
        aot.compile(models, metadata={"license": "MIT"})


def test_merged_modules_keep_all() -> None:
    first = aot.compile(model(author="me", license="MIT"), entry_name="one")
    second = aot.compile(model(author="you", license="MIT", year="2026"), entry_name="two")
    assert aot.merge([first, second]).image.metadata == {
        "author": "me",
        "license": "MIT",
        "two:author": "you",
        "year": "2026",
    }
    renamed = aot.merge({"a": first, "b": second})
    assert renamed.image.metadata["b:author"] == "you"


def test_what_is_too_large_is_left_out_with_a_warning() -> None:
    large = "x" * (MOST_VALUE_BYTES + 1)
    with pytest.warns(MetadataWarning, match=r"'table' is left out of the module: 65,537 bytes"):
        assert metadata(model(table=large, author="me")) == {"author": "me"}
    many = {f"key{n}": "v" for n in range(MOST_KEYS + 1)}
    with pytest.warns(MetadataWarning, match=r"'key1024' is left out of the module: the model has"):
        assert len(metadata(model(**many))) == MOST_KEYS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 1}, "metadata: a is 1, expected a text"),
        ({"": "x"}, "metadata: '' is empty, or a zero byte is in it"),
        ({"a": "x\0y"}, "metadata: 'a' is empty, or a zero byte is in it"),
        ("a=b", "metadata is 'a=b', expected a mapping by name"),
    ],
)
def test_wrong_options(given: Any, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        aot.compile(model(), metadata=given)
    assert str(caught.value) == message


# ---- other formats ----


def test_gguf(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.Shape("llama", 1))
    reader = gguf.GGUFReader(path)
    expected = {
        name: field.contents()
        for name, field in reader.fields.items()
        if name.startswith("general.") and isinstance(field.contents(), str)
    }
    assert "general.architecture" in expected
    assert metadata(path) == expected


def model_metadata(texts: dict[int, str]) -> np.ndarray:
    """A ModelMetadata of tflite-support's metadata_schema.fbs, by the numbers of its fields."""
    builder = flatbuffers.Builder(256)
    places = {number: builder.CreateString(text) for number, text in texts.items()}
    builder.StartObject(8)
    for number, place in places.items():
        builder.PrependUOffsetTRelativeSlot(number, place, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"M001")
    return np.frombuffer(bytes(builder.Output()), np.uint8)


def tflite(*buffers: tuple[str, np.ndarray]) -> bytes:
    """A small model with buffers of metadata."""
    file = File()
    b = Builder(file=file)
    x, y = b.tensor((2,)), b.tensor((2,))
    b.op("TANH", [x], [y])
    file.more["metadata"] = [
        table("Metadata", name=name, buffer=file.buffer(data)) for name, data in buffers
    ]
    return b.model([x], [y])


TEXTS = {0: "MobileNet", 1: "sees things", 2: "v1", 4: "somebody", 5: "Apache-2.0"}


def test_tflite() -> None:
    data = tflite(
        ("min_runtime_version", np.frombuffer(b"1.5.0\0\0\0", np.uint8)),
        ("TFLITE_METADATA", model_metadata(TEXTS)),
    )
    assert import_tflite(data).metadata == {
        "description": "sees things",
        "min_runtime_version": "1.5.0",
        "name": "MobileNet",
        "version": "v1",
        "author": "somebody",
        "license": "Apache-2.0",
    }
    assert import_tflite(tflite()).metadata == {"description": "test"}


def test_damaged_tflite_metadata_is_not_read() -> None:
    whole = model_metadata(TEXTS).tobytes()
    for length in range(len(whole)):
        cut = np.frombuffer(whole[:length], np.uint8)
        assert import_tflite(tflite(("TFLITE_METADATA", cut))).metadata["description"]
    for place in range(len(whole)):
        for value in (0, 0x7F, 0xFF):
            changed = bytearray(whole)
            changed[place] = value
            data = tflite(("TFLITE_METADATA", np.frombuffer(changed, np.uint8)))
            assert import_tflite(data).metadata["description"] is not None


# ---- the command ----


def test_the_command_keeps_and_shows_it(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "m.aotm"
    onnx.save(model(author="me\n\x1b[31m", table="y" * 300), source)
    words = ["compile", str(source), "-o", str(target), "--metadata", "license=MIT=X"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(cli, ["inspect", str(target)]).output
    assert "metadata license: MIT=X\n" in shown
    assert "metadata author: me\\u000a\\u001b[31m\n" in shown
    assert f"metadata table: {'y' * 200}... (300 characters)\n" in shown
    facts = json.loads(CliRunner().invoke(cli, ["inspect", "--json", str(target)]).output)
    assert facts["metadata"]["table"] == "y" * 300
    result = CliRunner().invoke(cli, [*words[:-1], "license"])
    assert result.exit_code == 2
    assert "'license' is not KEY=TEXT" in result.output
