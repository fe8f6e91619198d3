"""Reading a model without its weights: what is cut is found again, doubtful files stay whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.errors import CompileError
from aot.frontends.onnx import import_onnx
from aot.frontends.onnx.weights import BrokenError, Source, without_weights
from aot.ir.text.printer import print_module

LARGE = np.arange(2048, dtype=np.float32).reshape(2, 1024)
SMALL = np.arange(1024, dtype=np.float32)


def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["p"]),
        helper.make_node("Add", ["p", "small"], ["q"]),
        helper.make_node("Add", ["q", "other"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1024])],
        [
            numpy_helper.from_array(SMALL[:1], "small"),
            numpy_helper.from_array(LARGE, "large"),
            numpy_helper.from_array(LARGE[:1] * 2, "other"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.doc_string = "behind the graph"
    return made


@pytest.fixture(params=["file", "bytes"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    data = model().SerializeToString()
    if request.param == "bytes":
        return Source(data)
    (tmp_path / "m.onnx").write_bytes(data)
    return Source(tmp_path / "m.onnx")


def test_large_contents_are_cut_and_the_rest_is_the_model(source: Source) -> None:
    with source:
        data, places = without_weights(source)
        found = {n: np.frombuffer(source.read(*place), np.float32) for n, place in places.items()}
    assert set(found) == {1, 2}, "initializer 0 is small"
    assert np.array_equal(found[1], LARGE.ravel()) and np.array_equal(found[2], 2 * LARGE[0])
    rest, expected = onnx.ModelProto.FromString(data), model()
    for number in places:
        assert rest.graph.initializer[number].HasField("raw_data")
        expected.graph.initializer[number].raw_data = b""
    assert rest == expected
    assert len(data) < 1000


def test_a_model_in_parts_is_what_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    whole = print_module(import_onnx(model()))
    assert print_module(import_onnx(path)) == whole
    assert print_module(import_onnx(path.read_bytes())) == whole


def test_only_what_the_model_reads_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    del made.graph.node[2]
    made.graph.node[1].output[0] = "y"
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    sizes: list[int] = []
    real = Source.read

    def counted(self: Source, start: int, end: int) -> bytes:
        sizes.append(end - start)
        return real(self, start, end)

    monkeypatch.setattr(Source, "read", counted)
    import_onnx(path)
    assert [s for s in sizes if s in (LARGE.nbytes, LARGE.nbytes // 2)] == [LARGE.nbytes]


def _field(number: int, content: bytes) -> bytes:
    size, text = len(content), b""
    while size > 127:
        text, size = text + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + text + bytes([size]) + content


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08\x07",  # no graph
        _field(7, b"") * 2,  # two of them, which protobuf merges
        _field(7, b"\x28\x01"),  # an initializer that is a number
        _field(7, b"\x2a\x7f\x00"),  # one that ends behind its graph
        b"\x08\xff",  # a number without an end
        b"\x0b\x0c",  # a group
        _field(7, b"") + b"\xca\x01\x00",  # functions
    ],
)
def test_a_doubtful_model_is_left_whole(data: bytes) -> None:
    with pytest.raises(BrokenError), Source(data) as source:
        without_weights(source)


def test_contents_that_are_there_twice_stay(tmp_path: Path) -> None:
    raw = LARGE.tobytes()
    tensor = b"\x08\x02\x08\x80\x08\x10\x01" + _field(8, b"w") + _field(9, raw) * 2
    data = b"\x08\x08" + _field(7, _field(5, tensor))
    with Source(data) as source:
        assert without_weights(source) == (data, {})


def test_a_file_that_shrinks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    real = without_weights

    def shrinking(source: Source) -> tuple[bytes, dict[int, tuple[int, int]]]:
        result = real(source)
        os.truncate(path, 200)
        return result

    monkeypatch.setattr("aot.frontends.onnx.importer.without_weights", shrinking)
    with pytest.raises(CompileError, match=r"m\.onnx: has become shorter while it was read"):
        import_onnx(path)
