"""Many modules at once: the file, what is up to date, and failures that stop no other cell."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.cli import main as cli
from aot.errors import CompileError
from aot.target import files, selection
from aot.tools.batch import batch
from aot.tools.batch.batch import BUILT, CURRENT, FAILED, Made, Row, Task, build, run_task
from aot.tools.batch.file import Batch, parse_batch, read_batch
from tests.support.batches import MODEL, SMALL, Here


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.ir").write_text(MODEL.replace("OP", "relu"))
    (tmp_path / "b.ir").write_text(MODEL.replace("OP", "tanh"))
    (tmp_path / "m.toml").write_text(SMALL)
    return tmp_path


def parsed(text: str) -> Batch:
    return parse_batch(text, Path("m.toml"))


def statuses(rows: list[Row]) -> dict[str, str]:
    return {row.cell.label: row.status for row in rows}


# ---- the file ----


def test_cells_are_the_product_in_order() -> None:
    cells = parsed(SMALL).cells
    assert [c.label for c in cells] == [
        f"{m} {t} {o}"
        for m in ("a", "bee")
        for t in ("x86-64-v3", "arm")
        for o in ("plain", "half")
    ]
    assert cells[0].output == Path("build/a-x86-64-v3-plain.aotm")
    assert cells[0].options == {}
    assert cells[-1].options == {"input_shapes": {"x": (4, 3)}, "storage": "fp16"}
    assert cells[-1].target.value == ("aarch64-generic",)


def test_a_product_beyond_what_a_machine_builds() -> None:
    names = ", ".join(f'{{ name = "m{n}", path = "a.ir" }}' for n in range(3000))
    targets = ", ".join(f'{{ name = "t{n}", targets = ["host"] }}' for n in range(3000))
    with pytest.raises(CompileError) as raised:
        parsed(f"\nmodels = [{names}]\ntargets = [{targets}]\n")
    assert str(raised.value) == (
        "m.toml:2: 9000000 combinations of models, targets and options, expected at most 10000: "
        "split the batch"
    )


def test_options_override_in_order_and_names_are_made() -> None:
    text = """
    output = "out"
    models = [{ path = "x/det.onnx", optimize = "size", states = { a = "b", c = ["d", 9] } }]
    targets = [["x86-64-v2", "boards/mine.toml"]]
    [defaults]
    optimize = "speed"
    winograd = false
    disable = ["fusion"]
    """
    (cell,) = parse_batch(text, Path("there/m.toml")).cells
    assert cell.output == Path("there/out/det-x86-64-v2+mine.aotm")
    assert cell.model.value == ("there/x/det.onnx",)
    assert cell.target.value == ("x86-64-v2", "there/boards/mine.toml")
    states = {"a": "b", "c": ("d", 9)}
    assert cell.options == {
        "optimize": "size",
        "winograd": False,
        "disable": ["fusion"],
        "states": states,
    }


def test_what_is_skipped() -> None:
    rules = 'skip = [{ model = "a", option = "half" }, { target = "arm" }]'
    labels = [c.label for c in parsed(SMALL + rules).cells]
    assert labels == ["a x86-64-v3 plain", "bee x86-64-v3 plain", "bee x86-64-v3 half"]
    with pytest.raises(CompileError, match=r"m.toml:5: skip leaves nothing to build"):
        parsed(SMALL + 'skip = [{ model = "a" }, { model = "bee" }]')


def test_arrays_are_read_beside_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.arange(3))
    text = 'targets = ["host"]\nmodels = [{ path = "a.ir", input_values = { x = "FILE", y = 2 } }]'
    (cell,) = parse_batch(text.replace("FILE", "v.npy"), tmp_path / "m.toml").cells
    assert cell.options["input_values"]["x"].tolist() == [0, 1, 2]
    assert cell.options["input_values"]["y"] == 2
    with pytest.raises(CompileError, match=r":2: input_values: cannot read .*no\.npy: no such"):
        parse_batch(text.replace("FILE", "no.npy"), tmp_path / "m.toml")


LISTS = 'models = ["a"]\ntargets = ["host"]\n'


def test_shapes_may_be_lists() -> None:
    (cell,) = parsed(LISTS + '[defaults]\ninput_shapes = { x = [1, "N", "?"] }').cells
    assert cell.options["input_shapes"] == {"x": [1, "N", "?"]}
    with pytest.raises(CompileError) as caught:
        parsed(LISTS + '[defaults]\ninput_shapes = { x = [1, "N N"] }')
    assert str(caught.value).startswith(
        "m.toml:4: input_shapes: [1, 'N N'] is not a shape such as 1x3xHx224: "
    )


def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(b"models = ['\xe4']")
    with pytest.raises(CompileError) as caught:
        read_batch(path)
    assert str(caught.value) == f"{path}: a batch file must be utf-8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.toml: models is missing: a batch needs a list of models"),
        ("models = 3", "m.toml:1: models is missing: a batch needs a list of models"),
        ('models = ["a.ir"]', "m.toml: targets is missing: a batch needs a list of targets"),
        ("modles = []", "m.toml:1: unknown key 'modles': a batch has output, models, targets, op"),
        ("a = ?", "m.toml: not valid toml: invalid value (at line 1, column 5)"),
        (
            'models = ["a"]\ntargets = ["host"]\noutput = 3',
            "m.toml:3: output is 3, expected a folder's path",
        ),
        (
            'targets = ["host"]\n[[models]]\npath = "a"\n[[models]]\nname = "b"',
            "m.toml:4: a model needs its path",
        ),
        (
            'targets = ["host"]\n[[models]]\npath = "a"\n[[models]]\npath = "b"\nwidth = 3',
            "m.toml:6: unknown key 'width': models has name, path, input_shapes, input_values",
        ),
        (
            'targets = ["host"]\nmodels = ["a"]\n[[options]]\nname = "x"\nstorage = "fp8"',
            "m.toml:5: storage is 'fp8', expected one of fp32, fp16",
        ),
        (
            'targets = ["host"]\nmodels = ["a"]\n[[options]]\nname = "x"\nwinograd = "no"',
            "m.toml:5: winograd is 'no', expected true or false",
        ),
        (
            'targets = ["host"]\nmodels = ["a"]\n[defaults]\ninput_shapes = "1x3"',
            "m.toml:4: input_shapes is '1x3', expected a table by name",
        ),
        (
            'targets = ["host"]\nmodels = ["a"]\n[defaults]\ninput_shapes = { x = 3 }',
            "m.toml:4: input_shapes: 3 is not a shape such as 1x3xHx224",
        ),
        (
            'targets = ["host"]\nmodels = ["a"]\n[[options]]\nstorage = "fp16"',
            "m.toml:3: a set of options needs a name",
        ),
        (
            'targets = ["host"]\nmodels = ["a", "b/a.onnx"]',
            "m.toml:2: models has 'a' twice: give one of them another name",
        ),
        (
            'models = ["a"]\ntargets = [{ nmae = "x" }]',
            "m.toml:2: unknown key 'nmae': a target has name, targets",
        ),
        (
            'models = ["a"]\ntargets = [3]',
            "m.toml:2: a target is 3, expected a name, a path, or a list of them",
        ),
        (
            'models = [{ path = "a", name = "a/b" }]\ntargets = ["host"]',
            "m.toml:1: name is 'a/b', expected letters, digits and . _ + - as in a file's name",
        ),
        (
            'models = ["a"]\ntargets = ["host"]\n[[skip]]\nmodel = "b"',
            "m.toml:4: model is 'b', expected one of a",
        ),
        ('models = [3]\ntargets = ["host"]', "m.toml:1: a model is 3, expected a path or a table"),
        (LISTS + "defaults = 3", "m.toml:3: defaults is 3, expected a table"),
        (LISTS + "options = 3", "m.toml:3: options is 3, expected a list of tables"),
        (LISTS + "options = [3]", "m.toml:3: options has 3, expected tables"),
        (LISTS + "skip = [3]", "m.toml:3: skip has 3, expected tables"),
        (
            'models = ["a"]\ntargets = ["host"]\n[[skip]]\ndevice = "b"',
            "m.toml:4: unknown key 'device': skip has model, target, option",
        ),
    ],
)
def test_a_wrong_file(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parsed(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"winograd": "no"}, "winograd is 'no', expected true or false"),
        ({"jobs": True}, "jobs is True, expected a whole number"),
        ({"jobs": 1.5}, "jobs is 1.5, expected a whole number"),
        ({"tune": "3"}, "tune is '3', expected a number"),
        ({"entry_name": 3}, "entry_name is 3, expected a text"),
        ({"targets": 3}, "targets is 3, expected names or paths"),
        ({"input_shapes": "1x3"}, "input_shapes is '1x3', expected a mapping by name"),
        ({"input_shapes": {"x": 3}}, "input_shapes: x is 3, expected a sequence of dims"),
        ({"input_values": [1]}, "input_values is [1], expected a mapping by name"),
        (
            {"states": {"x": ("y", True)}},
            "states: x is ('y', True), expected an output's name, or that and a capacity",
        ),
    ],
)
def test_an_argument_of_another_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        aot.compile("a.ir", **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "states",
            "3",
            "states: x is 3, expected an output's name, or that and a capacity",
        ),
        (
            "states",
            '["a", "b"]',
            "states: x is ('a', 'b'), expected an output's name, or that and a capacity",
        ),
        (
            "states",
            '["a"]',
            "states: x is ('a',), expected an output's name, or that and a capacity",
        ),
        (
            "input_values",
            "{ a = 1 }",
            "input_values: {'a': 1} is not a number, a list of them, or a .npy file",
        ),
        (
            "input_values",
            "[[1], [1, 2]]",
            "input_values: [[1], [1, 2]] is not a number, a list of them, or a .npy file",
        ),
        (
            "input_values",
            '["a"]',
            "input_values: ['a'] is not a number, a list of them, or a .npy file",
        ),
        (
            "input_shapes",
            "[1, 2.5]",
            "input_shapes: [1, 2.5] is not a shape such as 1x3xHx224: 2.5 is no dim, expe",
        ),
        (
            "input_shapes",
            '"1x3xH<9"',
            "input_shapes: '1x3xH<9' is not a shape such as 1x3xHx224: expected the end, fou",
        ),
        (
            "input_shapes",
            "true",
            "input_shapes: True is not a shape such as 1x3xHx224",
        ),
    ],
)
def test_an_option_whose_table_is_wrong(key: str, value: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parsed(f'targets = ["host"]\nmodels = ["a"]\n[defaults]\n{key} = {{ x = {value} }}')
    assert str(caught.value).startswith(f"m.toml:4: {message}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no.toml: no such file or directory"):
        read_batch(tmp_path / "no.toml")


# ---- building ----


def test_what_is_up_to_date_by_content_is_not_built(folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    first = build("m.toml", executor=Here(), progress=lambda *p: seen.append(p))
    assert set(statuses(first).values()) == {BUILT} and len(first) == 8
    assert seen == [("build", n, 8) for n in range(9)]
    row = first[0]
    assert row.cell.output.stat().st_size == row.bytes and row.seconds > 0
    direct = aot.compile("a.ir", targets=["x86-64-v3"])
    assert row.cell.output.read_bytes() == direct.to_bytes()

    executor = Here()
    again = build("m.toml", executor=executor)
    assert set(statuses(again).values()) == {CURRENT} and executor.tasks == []
    assert [r.bytes for r in again] == [r.bytes for r in first]


def changed(folder: Path, change: Callable[[], object]) -> list[str]:
    """Labels of what is built anew after a change."""
    build("m.toml", executor=Here())
    change()
    rows = build("m.toml", executor=Here())
    assert not [r.error for r in rows if r.status == FAILED]
    return [r.cell.label for r in rows if r.status == BUILT]


def test_a_changed_model_is_built_anew(folder: Path) -> None:
    def touch() -> None:
        text = (folder / "a.ir").read_text()
        (folder / "a.ir").write_text(text)
        os.utime(folder / "a.ir", (1, 1))

    assert changed(folder, touch) == []
    other = MODEL.replace("OP", "sigmoid")
    labels = changed(folder, lambda: (folder / "a.ir").write_text(other))
    assert labels == [f"a {t} {o}" for t in ("x86-64-v3", "arm") for o in ("plain", "half")]


def test_a_damaged_or_lost_module_is_built_anew(folder: Path) -> None:
    out = folder / "build"

    def damage() -> None:
        (out / "a-arm-half.aotm").write_bytes(b"?")
        (out / "bee-arm-half.aotm").unlink()

    assert changed(folder, damage) == ["a arm half", "bee arm half"]
    everything = len(parsed(SMALL).cells)
    assert len(changed(folder, (out / batch.RECORD).unlink)) == everything
    record = out / batch.RECORD
    assert len(changed(folder, lambda: record.write_text("[1"))) == everything


def test_changed_options_targets_and_compilers_are_built_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "m.toml"
    text = SMALL.replace('"half", ', '"half", winograd = false, ')
    labels = changed(folder, lambda: file.write_text(text))
    assert labels == [f"{m} {t} half" for m in ("a", "bee") for t in ("x86-64-v3", "arm")]

    board = (files.directory() / "x86-64-v3.toml").read_text()
    (folder / "mine.toml").write_text(board)
    file.write_text(text.replace('"x86-64-v3"', '"mine.toml"'))
    wider = board.replace("l1_bytes = 32768", "l1_bytes = 65536")
    assert wider != board
    labels = changed(folder, lambda: (folder / "mine.toml").write_text(wider))
    assert labels == [f"{m} mine {o}" for m in ("a", "bee") for o in ("plain", "half")]

    another = lambda: monkeypatch.setattr(batch, "_compiler_id", lambda: b"x")  # noqa: E731
    assert len(changed(folder, another)) == 8


def external_model(folder: Path, value: float) -> None:
    """y = x + w, the weights in a file of their own."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [300], np.full(300, value, np.float32))
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [300])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    tensor = model.graph.initializer[0]
    tensor.raw_data = np.full(300, value, np.float32).tobytes()
    tensor.ClearField("float_data")
    onnx.save(
        model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )


def test_weights_in_a_file_of_their_own_count_and_travel(folder: Path) -> None:
    external_model(folder, 1.5)
    assert (folder / "w.bin").stat().st_size == 1200
    (folder / "m.toml").write_text('models = ["m.onnx"]\ntargets = ["x86-64-v3"]')
    executor = Here()
    (row,) = build("m.toml", executor=executor)
    assert row.status == BUILT
    assert isinstance(executor.tasks[0].model, bytes), "another machine has no such files"
    direct = aot.compile("m.onnx", targets=["x86-64-v3"])
    assert row.cell.output.read_bytes() == direct.to_bytes()
    assert changed(folder, lambda: None) == []
    weights = np.full(300, 2.5, np.float32).tobytes()
    assert changed(folder, lambda: (folder / "w.bin").write_bytes(weights)) == ["m x86-64-v3"]


def test_a_task_says_all_that_another_machine_must_know(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.toml").write_text((files.directory() / "x86-64-v2.toml").read_text())
    (folder / "m.toml").write_text('models = ["a.ir"]\ntargets = ["host", "mine.toml"]')
    executor = Here()
    rows = build("m.toml", executor=executor)
    assert set(statuses(rows).values()) == {BUILT}
    host, mine = executor.tasks
    assert host.targets == (selection.host().name,)
    assert mine.targets[0][0] == "mine" and 'arch = "x86_64"' in mine.targets[0][1]
    assert host.output is None and mine.model == (folder / "a.ir").read_bytes()


def test_a_failure_stops_no_other(folder: Path) -> None:
    (folder / "a.ir").write_text("func @main(")
    (folder / "m.toml").write_text(
        'models = ["gone.onnx", "a.ir", "b.ir"]\ntargets = ["x86-64-v3", "z80"]'
    )
    with ThreadPoolExecutor(2) as executor:
        rows = build("m.toml", executor=executor)
    errors = {row.cell.label: row.error for row in rows}
    assert [row.status for row in rows] == [FAILED, FAILED, FAILED, FAILED, BUILT, FAILED]
    assert errors["gone x86-64-v3"] == "cannot read gone.onnx: no such file or directory"
    assert errors["b z80"].startswith("unknown target 'z80': 'aotc targets' lists all ")
    assert errors["a x86-64-v3"] and "\n" not in errors["a x86-64-v3"]
    assert errors["b x86-64-v3"] == ""


def test_a_bug_of_ours_is_a_row_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost\nhere")

    monkeypatch.setattr("aot.api.compile", broken)
    rows = build("m.toml", executor=Here())
    assert {row.error for row in rows} == {"internal error: KeyError: 'lost\\nhere'"}


def test_an_executor_that_loses_a_task_is_a_row(folder: Path) -> None:
    class Lossy(Here):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(ConnectionError("worker is gone"))
            return future

    rows = build("m.toml", executor=Lossy())
    assert {r.error for r in rows} == {"internal error: ConnectionError: worker is gone"}


# ---- processes of this machine ----


def test_processes_make_the_same_modules(folder: Path) -> None:
    build("m.toml", executor=Here())
    wanted = {p.name: p.read_bytes() for p in (folder / "build").glob("*.aotm")}
    (folder / "m.toml").write_text(SMALL + 'output = "other"')
    (folder / "a.ir").write_text("func @main(")
    rows = build("m.toml", jobs=2)
    assert [r.status for r in rows] == [FAILED] * 4 + [BUILT] * 4
    for row in rows[4:]:
        assert row.cell.output.read_bytes() == wanted[row.cell.output.name]


def dying(task: Task) -> Made:
    """Ends its process for one of the models, as the system does where memory runs out."""
    if "a.ir" in str(task.model):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_task(task)


def test_a_process_that_is_killed_costs_its_own_cell_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "m.toml").write_text('models = ["a.ir", "b.ir"]\ntargets = ["x86-64-v3"]')
    monkeypatch.setattr(batch, "run_task", dying)
    rows = build("m.toml", jobs=2)
    assert statuses(rows) == {"a x86-64-v3": FAILED, "b x86-64-v3": BUILT}
    assert rows[0].error == "its process was ended from outside, by lack of memory?"


def test_an_interrupt_ends_the_processes(folder: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    others = set(multiprocessing.active_children())  # what runs kernels for other tests
    with pytest.raises(KeyboardInterrupt):
        build("m.toml", jobs=2, progress=interrupt)
    assert set(multiprocessing.active_children()) <= others
    assert len(list((folder / "build").glob("*.aotm"))) >= 1
    assert not list((folder / "build").glob(".*.tmp"))


# ---- the command ----


def test_the_command_shows_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "m.toml").write_text('models = ["a.ir", "gone.onnx"]\ntargets = ["x86-64-v3"]')
    assert cli.main(["build", "m.toml", "--jobs", "1"]) == 1
    out, err = capsys.readouterr()
    header, first, second = out.splitlines()
    assert header.split() == ["model", "target", "options", "status", "bytes", "seconds", "module"]
    assert first.split()[:3] == ["a", "x86-64-v3", "built"]
    assert second.split()[:3] == ["gone", "x86-64-v3", "failed"]
    assert second.endswith("cannot read gone.onnx: no such file or directory")
    assert err == "aotc: error: 1 of 2 modules could not be built\n"

    (folder / "m.toml").write_text('models = ["a.ir"]\ntargets = ["x86-64-v3"]')
    assert cli.main(["build", "m.toml", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["error"], row["seconds"]) == (CURRENT, "", 0.0)
    assert row["bytes"] == Path(row["output"]).stat().st_size


def test_the_command_uses_a_dask_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what the package offers: a client that gives an executor."""
    asked: list[Any] = []
    executor = Here()
    workers: dict[str, Any] = {"tcp://here:2": None}  # what each has instead of our sources

    class Client:
        def __init__(self, address: str, timeout: float) -> None:
            asked.append(address)
            if "nowhere" in address:
                raise OSError("Timed out trying\nto connect")

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            asked.append("closed")

        def get_executor(self) -> Executor:
            return executor

        def nthreads(self) -> dict[str, int]:
            return dict.fromkeys(workers, 1)

        def run(self, function: Callable[[], Any], on_error: str) -> dict[str, Any]:
            assert on_error == "return"
            return {name: what or function() for name, what in workers.items()}

    module = types.ModuleType("distributed")
    module.Client = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distributed", module)
    assert cli.main(["build", "m.toml", "--scheduler", "tcp://here:1"]) == 0
    assert asked == ["tcp://here:1", "closed"] and len(executor.tasks) == 8
    capsys.readouterr()
    assert cli.main(["build", "m.toml", "--scheduler", "tcp://nowhere:1"]) == 1
    assert capsys.readouterr().err == (
        "aotc: error: cannot reach a scheduler at tcp://nowhere:1: Timed out trying to connect\n"
    )
    for has, message in (
        ({}, "the scheduler at tcp://here:1 has no workers: start some with dask worker "
             "tcp://here:1"),
        ({"a": None, "b": ModuleNotFoundError("No module named 'aot'")},
             "the worker b cannot load aotc: No module named 'aot'"),
        ({"a": b"?"}, "the worker a has another aotc than this one, version "
             f"{aot.__version__}: install the same there, and start it again"),
    ):  # fmt: skip
        workers.clear()
        workers.update(has)
        assert cli.main(["build", "m.toml", "--scheduler", "tcp://here:1"]) == 1
        assert capsys.readouterr().err == f"aotc: error: {message}\n"
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.main(["build", "m.toml", "--scheduler", "tcp://here:1"]) == 1
    message = "--scheduler needs the package distributed: pip install 'aotc[dask]'"
    assert capsys.readouterr().err == f"aotc: error: {message}\n"


@pytest.mark.slow
def test_a_real_dask_cluster_builds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduler and a worker, processes of their own, that share no file with this one."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        address = cluster.scheduler_address
        assert cli.main(["build", "m.toml", "--scheduler", address, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["status"] for row in rows] == [BUILT] * 8
        here = build(read_batch(folder / "m.toml"), jobs=1)  # all of it is there
        assert {row.status for row in here} == {CURRENT}
        remote = {path.name: path.read_bytes() for path in (folder / "build").glob("*.aotm")}
        (folder / "m.toml").write_text('output = "again"\n' + SMALL)
        assert cli.main(["build", "m.toml", "--jobs", "1"]) == 0
        local = {path.name: path.read_bytes() for path in (folder / "again").glob("*.aotm")}
        assert remote == local
        capsys.readouterr()
        cluster.scale(0)
        cluster.sync(cluster._correct_state)
        assert cli.main(["build", "m.toml", "--scheduler", address]) == 1
        assert "has no workers: start some with" in capsys.readouterr().err
