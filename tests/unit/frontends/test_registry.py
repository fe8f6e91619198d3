"""Formats are told by what files hold, and each that is not read says what to do."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.builder import Builder
from aot.cli import main as cli
from aot.driver.pipeline import prepared, read_model
from aot.errors import CompileError
from aot.frontends import registry
from aot.frontends.registry import BUILT, FRONTENDS, ONNX, TEXT, TORCH, UNREAD, find
from aot.ir.graph import Module
from aot.ir.text.printer import print_module
from aot.options import CompileOptions


def module() -> Module:
    b = Builder()
    b.output("y", b.op("relu", b.input("x", "f32[N, 3]")))
    return b.module()


def model(**fields: Any) -> onnx.ModelProto:
    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3])

    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **fields)


def fields_of(data: bytes) -> list[bytes]:
    """The fields of a protobuf message of lengths below 128 and small numbers, one by one."""
    found, place = [], 0
    while place < len(data):
        end = place + 2 if data[place] & 7 == 0 else place + 2 + data[place + 1]
        found.append(data[place:end])
        place = end
    return found


TEXTS = {
    "plain": "",
    "comment": "# a comment\n",
    "blank": "\n\t  \n",
    "repro": "# aotc repro: pass cse failed\n",
}


@pytest.mark.parametrize("name", ["m.ir", "m.onnx", "m", "m.bin"])
@pytest.mark.parametrize("before", TEXTS.values(), ids=TEXTS)
def test_text_whatever_its_name(tmp_path: Path, name: str, before: str) -> None:
    text = before + print_module(module())
    (tmp_path / name).write_text(text)
    assert find(tmp_path / name) is find(str(tmp_path / name)) is find(text.encode()) is TEXT


@pytest.mark.parametrize("name", ["m.ir", "m.onnx", "m", "m.bin"])
def test_onnx_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(model().SerializeToString())
    assert find(tmp_path / name) is ONNX
    assert list(aot.load(aot.compile(tmp_path / name))({"x": np.ones((2, 3), np.float32)})) == ["y"]


def test_onnx_whatever_its_first_field_is() -> None:
    proto = model(producer_name="p", producer_version="1", doc_string="d", domain="o")
    proto.model_version = 3
    proto.metadata_props.add(key="k", value="v")
    parts = fields_of(proto.SerializeToString())
    assert len({part[0] for part in parts}) == 9
    for n in range(len(parts)):
        turned = b"".join(parts[n:] + parts[:n])
        assert onnx.load_model_from_string(turned) == proto
        assert find(turned) is ONNX, turned[:4]


@pytest.mark.parametrize("name", ["TFL3", "ORTModule", "ORTM", "GGUF", "PK\x03\x04", "{}"])
def test_onnx_of_a_producer_called_like_a_format(name: str) -> None:
    data = model(producer_name=name).SerializeToString()
    assert find(data) is ONNX
    assert find(b"".join(reversed(fields_of(data)))) is ONNX


def test_objects() -> None:
    assert find(module()) is BUILT
    assert find(model()) is ONNX
    with pytest.raises(CompileError) as caught:
        aot.compile(3)
    assert str(caught.value) == (
        "a model cannot be of type int: expected a path, bytes, an onnx.ModelProto, a "
        "torch.nn.Module with example inputs, a torch.export.ExportedProgram or a module of "
        "aot.builder"
    )


@pytest.mark.parametrize(
    "source", [module(), print_module(module()).encode(), model()], ids=["built", "text", "onnx"]
)
def test_who_binds_inputs(source: Any) -> None:
    """Either the frontend or the pass `bind`, and only one of them."""
    options = CompileOptions(input_shapes={"x": (4, 3)})
    made, left = prepared(source, options)
    dims = made.main.inputs[0].type.dims
    assert (dims == (4, 3)) == (left.input_shapes == {}) == find(source).binds_inputs
    assert read_model(source, CompileOptions()).main.inputs[0].type.dims[1] == 3


# ---- formats that are not read ----


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name in names:
            file.writestr(name, "{}")
    return stream.getvalue()


FLATBUFFER = b"\x1c\0\0\0"
FILES: dict[str, list[bytes]] = {
    "a module that aotc has compiled": [b"AOTM" + bytes(60)],
    "an ONNX Runtime file": [FLATBUFFER + b"ORTM" + bytes(24)],
    "an HDF5 file": [b"\x89HDF\r\n\x1a\n" + bytes(16)],
    "a TorchScript file": [zipped("m/data.pkl", "m/code/__torch__.py", "m/constants.pkl")],
    "a PyTorch file": [zipped("m/data.pkl", "m/data/0", "m/version")],
    "a Keras file": [zipped("config.json", "model.weights.h5")],
    "a zip archive that is broken or cut off": [
        b"PK\x03\x04 broken",
        zipped("m.onnx")[:60],
        # made by a version of zip that is not known here
        re.sub(rb"(?s)(PK\x01\x02..)\x14", b"\\g<1>\x40", zipped("m.onnx")),
    ],
    "a zip archive": [zipped("m.onnx")],
    "a Git LFS pointer": [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"],
    "a web page": [b"<!DOCTYPE html><html>", b"\n<html lang=en>"],
    "a gzip file": [gzip.compress(b"model")],
    "a pickle, as of an older PyTorch file": [pickle.dumps({"a": 1}, protocol=2)],
    "a safetensors file, which has weights and no graph": [
        b'\x0a\0\0\0\0\0\0\0{"a":[1]} ',
        b"\x02\0\0\0\0\0\0\0{}",
    ],
}


def test_every_format_has_files_here() -> None:
    assert list(FILES) == [what for what, _, _ in UNREAD]


@pytest.mark.parametrize("name", ["m.onnx", "m.ir", "m"])
@pytest.mark.parametrize("what", FILES)
def test_a_format_that_is_not_read(tmp_path: Path, what: str, name: str) -> None:
    for data in FILES[what]:
        check_not_read(tmp_path / name, what, data)


def check_not_read(path: Path, what: str, data: bytes) -> None:
    path.write_bytes(data)
    advice = next(advice for known, _, advice in UNREAD if known == what)
    for source, where in ((path, str(path)), (data, "model")):
        with pytest.raises(CompileError) as caught:
            aot.compile(source)
        message = f"{where}: is {what}, which cannot be compiled: {advice}"
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "what", "advice"),
    [
        ("saved_model.pb", "a TensorFlow SavedModel", "convert it to TFLite or ONNX"),
        ("Manifest.json", "a Core ML package", "give the model that it was made from"),
        (
            "config.json",
            "a folder of Hugging Face",
            "export the model to ONNX, or convert it to GGUF",
        ),
    ],
)
def test_a_folder_that_is_not_read(tmp_path: Path, name: str, what: str, advice: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(CompileError) as caught:
        aot.compile(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is {what}, which cannot be compiled: {advice}"


def test_our_own_module_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    aot.compile(module()).save(path)
    assert registry.is_compiled(path)
    with pytest.raises(CompileError, match="is a module that aotc has compiled, which cannot be"):
        aot.compile(path)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 99, b"hello", b"\0" * 9], ids=repr)
def test_contents_that_say_nothing(tmp_path: Path, data: bytes) -> None:
    """The name decides, and where that says nothing either it is an error of its own."""
    for extension, frontend in ((".ir", TEXT), (".repro", TEXT), (".onnx", ONNX), (".ONNX", ONNX)):
        path = tmp_path / f"m{extension}"
        path.write_bytes(data)
        assert find(path) is frontend
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    for source, where in ((path, str(path)), (data, "model")):
        with pytest.raises(CompileError) as caught:
            find(source)
        expected = (
            "expected text IR, an ONNX model, a GGUF file, a PyTorch program or a TFLite model"
        )
        assert str(caught.value) == f"{where}: is no model of a known format, {expected}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "no.onnx", "no such file or directory"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(CompileError) as caught:
            aot.compile(path)
        assert str(caught.value) == f"cannot read {path}: {reason}"


def test_a_frontend_is_found_by_one_record_only() -> None:
    extensions = [e for f in FRONTENDS for e in f.extensions]
    assert len(set(extensions)) == len(extensions)
    heads = [b"func @main", b"# text", model().SerializeToString()]
    assert [[f.name for f in FRONTENDS if f.holds(h, h)] for h in heads] == [
        [TEXT.name],
        [TEXT.name],
        [ONNX.name],
    ]


@pytest.mark.parametrize(
    "data",
    [
        zipped("m/archive_format", "m/models/model.json"),
        zipped("serialized_exported_program.json", "version"),
    ],
)
def test_programs_of_torch_under_their_own_name_only(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.pt2").write_bytes(data)
    assert find(tmp_path / "m.pt2") is find(data) is TORCH
    for name in ("m.onnx", "m"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CompileError) as failure:
            find(tmp_path / name)
        assert str(failure.value) == (
            f"{tmp_path / name}: is a PyTorch program, which is read only from a file whose name "
            "ends in .pt2: rename it if you expect one"
        )


def test_without_torch(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(zipped("m/archive_format", "m/models/model.json"))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from aot.cli.main import entry\n"
        f"sys.argv[1:] = ['compile', {str(tmp_path / 'm.pt2')!r}, '-o', 'm.aotm']\n"
        "entry()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "PyTorch is not installed: pip install 'aotc[torch]'" in done.stderr


def test_text_of_outlined_ir_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "outlined.ir"
    path.write_text(
        'func @main(%x: f32[4]) -> ("y") {\n'
        "  %y = dispatch(%x) {executable = @e0, dims = [], ties = [0]} : f32[4]\n"
        "  return(%y)\n}\n\n"
        'executable @e0(%0: f32[4]) -> ("r0") {\n  %1 = relu(%0) : f32[4]\n  return(%1)\n}\n'
    )
    with pytest.raises(CompileError, match=r"outlined\.ir: it has executables, as @e0"):
        aot.compile(path)


def test_a_compile_reads_the_head_of_each_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recognising a zip archive or a file on another machine takes time."""
    read: list[str] = []
    head_of = registry.head_of

    def counted(path: Any) -> bytes:
        read.append(Path(path).name)
        return head_of(path)

    monkeypatch.setattr(registry, "head_of", counted)
    monkeypatch.chdir(tmp_path)
    Path("a.onnx").write_bytes(model().SerializeToString())
    Path("b.ir").write_text(print_module(module()))
    for models in (["a.onnx"], ["b.ir"], ["a.onnx", "b.ir:second"]):
        read.clear()
        assert cli.main(["compile", *models, "-o", "m.aotm", "--target", "wasm32"]) == 0
        assert read == [name.partition(":")[0] for name in models]
