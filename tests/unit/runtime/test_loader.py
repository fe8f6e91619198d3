"""The Python binding: names, dtypes and arrays in and out, and its errors."""

from __future__ import annotations

import gc
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.errors import AotError, RuntimeFailure
from aot.runtime import loader, tensors
from aot.runtime.loader import load
from aot.runtime.tensors import TensorInfo, are_decided
from tests.support.runtime_api import library_path
from tests.support.runtime_modules import (
    INPUTS,
    OUTPUTS,
    Assembler,
    arena_module,
    dim,
    entry,
    module,
    scale_module,
    tensor,
)


@pytest.fixture(autouse=True)
def use_built_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this checkout, not an installed one."""
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


def two_by_two() -> bytes:
    """s = a copied, t = b copied; a is a scalar i64, b is f16[N, 2]."""
    asm = Assembler()
    asm.block()
    a, b, s, t, n = (asm.register() for _ in range(5))
    asm.emit("INPUT_DIM", n, 1, 0)
    asm.emit("OUTPUT_DIM", 1, 0, n)
    size = asm.binary("MUL", n, asm.register(4))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("COPY", OUTPUTS, s, INPUTS, a, asm.register(8))
    asm.emit("COPY", OUTPUTS, t, INPUTS, b, size)
    asm.emit("RETURN")
    program = asm.program(inputOffsetRegisters=[a, b], outputOffsetRegisters=[s, t])
    rows = dim("2*M", 0, 64)
    inputs = [tensor("a", "i64"), tensor("b", "f16", rows, 2)]
    outputs = [tensor("s", "i64"), tensor("t", "f16", rows, 2)]
    return module(program, inputs, outputs).to_bytes()


def failure_of(function: object, *arguments: object) -> RuntimeFailure:
    """What it fails with."""
    with pytest.raises(RuntimeFailure) as caught:
        function(*arguments)  # type: ignore[operator]
    assert isinstance(caught.value, AotError)
    return caught.value


def test_runs_by_name_and_by_position(tmp_path: Path) -> None:
    path = tmp_path / "module.aotm"
    path.write_bytes(scale_module(3.0).to_bytes())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes())):
        with load(source) as program:
            assert program.inputs == (TensorInfo("x", "f32", ("N", 3), ((1, 64), (3, 3))),)
            assert str(program.outputs[0]) == "y: f32[N, 3]"
            assert program.outputs[0].numpy_dtype == np.float32
            assert (program.device, program.entry, program.target) == ("cpu", "main", "test")
            is_path = isinstance(source, Path | str)
            assert program.code_mapping == ("mapped" if is_path else "copied")
            outputs = program({"x": x})
            assert list(outputs) == ["y"]
            np.testing.assert_array_equal(outputs["y"], 3 * x)
            np.testing.assert_array_equal(program.run([x])[0], 3 * x)


def test_outputs_are_new_arrays() -> None:
    with load(scale_module().to_bytes()) as program:
        first = program({"x": np.ones((2, 3), np.float32)})["y"]
        second = program({"x": np.zeros((2, 3), np.float32)})["y"]
        assert first.sum() == 12
        assert second.sum() == 0
    assert first.sum() == 12  # and outlive the program


def test_scalars_views_and_lists() -> None:
    b = np.arange(16, dtype=np.float16).reshape(4, 4)
    with load(two_by_two()) as program:
        assert program.inputs[1].dims == ("2*M", 2)
        for a in (7, np.int64(7), np.array(7)):
            outputs = program({"a": a, "b": b[:, ::2]})
            assert outputs["s"].shape == ()
            assert outputs["s"] == 7
            np.testing.assert_array_equal(outputs["t"], b[:, ::2])
        swapped = b.T[:2].astype(">f2").T
        np.testing.assert_array_equal(program({"a": 1, "b": swapped})["t"], b[:, :2])
        assert program({"a": 1, "b": [[1, 2]]})["t"].tolist() == [[1, 2]]
        assert program({"a": 1, "b": np.empty((0, 2), np.float16)})["t"].shape == (0, 2)
        raw = np.zeros(33, np.uint8)[1:].view(np.float16).reshape(8, 2)
        assert not raw.flags.aligned
        np.testing.assert_array_equal(program({"a": 1, "b": raw})["t"], 0)


def test_arrays_of_any_memory_one_after_another() -> None:
    """What the binding keeps from run to run belongs to no array: read-only, reversed, swapped,
    unaligned and empty ones, of a wrong rank, and of other shapes."""
    x = np.arange(12, dtype=np.float16).reshape(6, 2)
    shut = x.copy()
    shut.flags.writeable = False
    bytes_at_odd = np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float16).reshape(6, 2)
    arrays = [x, shut, x[::-1], x.astype(">f2"), bytes_at_odd, x[:0], x[:4], x.T.copy().T, x]
    with load(two_by_two()) as program:
        for number, b in enumerate(arrays):
            s, t = program.run([number, b])
            assert int(s) == number
            np.testing.assert_array_equal(t, b)
            assert failure_of(program.run, [number, x[0]]).status == "shape"


def test_wrong_names() -> None:
    b = np.zeros((2, 2), np.float16)
    with load(two_by_two()) as program:
        found = failure_of(program, {"a": 1, "c": b, "d": b})
        assert found.status == "not_found"
        assert str(found) == 'inputs: missing "b", unknown "c", "d"; the program has "a", "b"'
        assert str(failure_of(program, {})) == (
            'inputs: missing "a", "b"; the program has "a", "b"'
        )
        assert str(failure_of(program.run, [1])) == "1 inputs, the program has 2"


@pytest.mark.parametrize(
    ("b", "status", "message"),
    [
        (np.zeros((2, 2)), "dtype", 'input "b": expected dtype f16, found f64'),
        (np.zeros((2, 2), np.complex64), "dtype", 'input "b": expected dtype f16, found complex64'),
        (np.array([["x"]]), "dtype", 'input "b": expected dtype f16, found <U1'),
        ("text", "dtype", 'input "b": expected f16: could not convert string to float'),
        ([[1, 2], [3]], "dtype", 'input "b": expected f16: setting an array element'),
        (
            np.zeros((2, 3), np.float16),
            "shape",
            'input "b": expected shape [2*M, 2], found [2, 3]',
        ),
        (
            np.zeros((66, 2), np.float16),
            "shape",
            'input "b": expected shape [2*M, 2], found [66, 2]: axis 0, 2*M, must be at most 64',
        ),
        (5, "shape", 'input "b": expected shape [2*M, 2], found a scalar'),
    ],
)
def test_wrong_arrays(b: object, status: str, message: str) -> None:
    with load(two_by_two()) as program:
        found = failure_of(program, {"a": 1, "b": b})
        assert found.status == status
        assert str(found).startswith(message)
        # A failed call leaves the program fit for the next.
        assert program({"a": 4, "b": [[1, 2]]})["s"] == 4


def test_wrong_sources(tmp_path: Path) -> None:
    path = tmp_path / "none.aotm"
    found = failure_of(load, path)
    assert found.status == "io"
    assert str(found) == f"cannot open {path}: no such file or directory (errno 2)"
    assert failure_of(load, b"").status == "truncated"
    assert failure_of(load, b"x" * 100).status == "not_a_module"
    file = scale_module().to_bytes()
    assert failure_of(load, file[:-1]).status == "truncated"
    assert failure_of(load, file[:70] + b"\xff" + file[71:]).status == "checksum"
    assert str(failure_of(load, file, "tpu")) == "no device 'tpu', there are auto, cpu, vulkan"
    found = failure_of(load, file, "vulkan")
    assert str(found) == "no variant for vulkan, the module has test (cpu)"


def test_entry_points_and_targets() -> None:
    module_file = scale_module()
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    module_file.variants[0].entries.append(entry(asm.program(), name="zwei"))
    file = module_file.to_bytes()
    with load(file, entry="zwei", target="test", device="auto") as program:
        assert (program.entry, program.inputs, program({})) == ("zwei", (), {})
    with pytest.raises(RuntimeFailure, match='no entry point "drei", variant "test" has "main",'):
        load(file, entry="drei")
    with pytest.raises(RuntimeFailure, match="no variant for the cpu and target none"):
        load(file, target="none")


def test_closing() -> None:
    program = load(scale_module().to_bytes())
    program.close()
    program.close()
    x = np.ones((1, 3), np.float32)
    assert str(failure_of(program, {"x": x})) == "the program is closed"
    assert str(failure_of(program.verify_rodata)) == "the program is closed"
    assert program.arena_bytes == 0
    program = load(scale_module().to_bytes())
    del program
    gc.collect()


def test_rodata_is_verified_on_request() -> None:
    file = bytearray(arena_module().to_bytes())
    with load(bytes(file)) as program:
        program.verify_rodata()
        program({"x": np.ones(1000, np.float32)})
        assert program.arena_bytes > 8000
    file[file.index(np.arange(1000, dtype=np.float32).tobytes()) + 9] ^= 1
    with load(bytes(file)) as program:
        assert failure_of(program.verify_rodata).status == "checksum"


def test_threads_take_turns() -> None:
    problems: list[str] = []
    with load(arena_module().to_bytes()) as program:

        def work(seed: int) -> None:
            for n in range(1, 200, 7):
                x = np.full(n, seed, np.float32)
                y = program({"x": x})["y"]
                if not np.array_equal(y, 2 * (x + np.arange(n, dtype=np.float32))):
                    problems.append(f"{seed}: {n}")

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems


def test_a_library_of_another_version_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "libaot_runtime.so"
    shutil.copy(loader.find_library(), other)
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(other))
    monkeypatch.setattr(loader, "INTERFACE", loader.INTERFACE + 1)
    found = failure_of(load, b"")
    assert found.status == "version"
    assert str(found) == (
        f"the runtime library {other} is of another version than this package: install the "
        "package again"
    )


def test_finding_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    found = failure_of(load, b"")
    assert found.status == "not_found"
    assert str(found) == (
        f"the runtime library is not there: {tmp_path}/none.so; "
        "install the package or set AOT_RUNTIME_LIBRARY"
    )
    wrong = tmp_path / "wrong.so"
    wrong.write_text("no library")
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(wrong))
    assert failure_of(load, b"").status == "io"
    monkeypatch.delenv(loader.LIBRARY_VARIABLE)
    package = tmp_path / "aot"
    (package / "_runtime").mkdir(parents=True)
    (package / "_runtime" / loader.LIBRARY_NAME).write_bytes(b"")
    monkeypatch.setattr(loader, "__file__", str(package / "runtime" / "loader.py"))
    assert loader.find_library() == package / "_runtime" / loader.LIBRARY_NAME
    # An editable install: the package is the checkout, the library is in site-packages.
    monkeypatch.setattr(
        loader, "__file__", str(tmp_path / "checkout" / "aot" / "runtime" / "loader.py")
    )
    monkeypatch.setattr(loader.sysconfig, "get_path", lambda name: str(tmp_path))
    assert loader.find_library() == package / "_runtime" / loader.LIBRARY_NAME
    monkeypatch.setattr(loader.sysconfig, "get_path", lambda name: str(tmp_path / "nowhere"))
    assert str(failure_of(loader.find_library)).count(loader.LIBRARY_NAME) == 2


def test_structures_have_the_header_files_layout() -> None:
    """Sizes and offsets as the C compiler sees them."""
    import subprocess
    import tempfile

    from tests.support.runtime_build import RUNTIME

    structures = {
        "aot_error_t": loader._Error,
        "aot_module_options_t": loader._ModuleOptions,
        "aot_program_options_t": loader._ProgramOptions,
        "aot_dim_info_t": tensors.CDimInfo,
        "aot_tensor_info_t": tensors.CTensorInfo,
        "aot_tensor_t": tensors.CTensor,
        "aot_program_info_t": loader._ProgramInfo,
    }
    lines = []
    for name, structure in structures.items():
        lines.append(f'_Static_assert(sizeof({name}) == {_size(structure)}, "{name}");')
        for field, *_ in structure._fields_:
            at = getattr(structure, field).offset
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {at}, "{name}.{field}");')
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "layout.c"
        source.write_text('#include "aot/aot.h"\n' + "\n".join(lines) + "\n")
        command = ["gcc", "-std=c11", f"-I{RUNTIME / 'include'}", "-fsyntax-only", str(source)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def _size(structure: object) -> int:
    import ctypes

    return ctypes.sizeof(structure)  # type: ignore[arg-type]


OPEN = """
func @main(%x: f32[N, 3], %y: f32[M, N]) -> ("z", "t") {
  %1 = matmul(%y, %x) : f32[M, 3]
  %2 = transpose(%1) {perm = [1, 0]} : f32[3, M]
  return(%1, %2)
}
"""


def test_shapes_that_change_between_runs() -> None:
    """Outputs have the shapes of the run, in memory of their own, whatever the run before had."""
    with aot.load(aot.compile(OPEN.encode())) as program:
        kept = []
        for n, m in ((2, 4), (2, 4), (5, 1), (2, 4), (0, 3), (2, 4), (1, 1)):
            random = np.random.default_rng(n)
            x = random.integers(-4, 5, (n, 3)).astype(np.float32)
            y = random.integers(-4, 5, (m, n)).astype(np.float32)
            found = program({"x": x, "y": y})
            kept.append((found, y @ x))
            with pytest.raises(RuntimeFailure):  # changes nothing
                program({"x": x, "y": np.ones((m, n + 1), np.float32)})
        for found, wanted in kept:
            np.testing.assert_array_equal(found["z"], wanted)
            np.testing.assert_array_equal(found["t"], wanted.T)


def info(name: str, *dims: int | str) -> TensorInfo:
    return TensorInfo(name, "f32", dims, ((0, None),) * len(dims))


@pytest.mark.parametrize(
    ("dims", "is_decided"),
    [
        ((3, 4), True),
        (("N", "2*N + M"), True),
        (("max(N, M//2)",), True),
        (("4*K",), True),
        (("K",), False),
        (("N", "?"), False),
        (("N*nonzero",), False),
    ],
)
def test_shapes_that_inputs_decide(dims: tuple[int | str, ...], is_decided: bool) -> None:
    inputs = [info("x", "N", 3), info("y", "M", "4*K")]
    assert are_decided(inputs, [info("z", 1), info("w", *dims)]) == is_decided
