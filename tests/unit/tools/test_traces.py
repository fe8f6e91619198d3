"""`--trace`: events that follow the Trace Event format, with the times that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aot.builder import Builder
from aot.cli.main import main
from aot.driver.provenance import provenance
from aot.ir.text.printer import print_module
from aot.tools.traces import bench_trace


def checked(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The complete events of a trace, once all are what the format asks for; on one thread, they
    are apart or within each other."""
    complete = []
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
            continue
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
        complete.append(event)
    for thread in {e["tid"] for e in complete}:
        open_until: list[float] = []
        for event in (e for e in complete if e["tid"] == thread):
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= begin + 2e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 2e-3, event
            open_until.append(end)
    return complete


def test_a_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder()
    b.output("y", b.op("tanh", b.input("x", "f32[4]"), origin="layer"))
    model, trace, stats = (tmp_path / n for n in ("m.ir", "t.json", "s.json"))
    model.write_text(print_module(b.module()))
    command = ["compile", str(model), "-o", str(tmp_path / "m.aotm"), "--trace", str(trace)]
    command += ["--target", "x86-64-v3", "--target", "vulkan-1.1", "--stats", str(stats)]
    assert main(command) == 0
    found = json.loads(trace.read_text())
    assert found["otherData"]["command"].startswith("aotc compile ")
    events = checked(found)
    names = [e["name"] for e in events if e["cat"] == "stage"]
    assert names.count("import") == 1 and names.count("kernels") == 2
    passes = [e for e in events if e["cat"] == "pass"]
    assert [e["args"]["target"] for e in passes if e["name"] == "fuse"] == [
        "x86-64-v3",
        "vulkan-1.1",
    ]
    known = json.loads(stats.read_text())["variants"]
    for section in known:
        (kernels,) = (
            e["dur"]
            for e in events
            if e["name"] == "kernels" and e["args"]["target"] == section["target"]
        )
        assert kernels == pytest.approx(1e6 * section["seconds"]["kernels"], abs=2)


def test_a_benchmark() -> None:
    rows = [
        {"node": "conv", "kind": "dispatch", "median_ms": 1.5, "min_ms": 1.0, "flops": None},
        {"node": "", "kind": "copy", "median_ms": 0.25, "min_ms": 0.2, "flops": 3},
    ]
    facts = {"phases_ms": {"open": 0.5, "first_run": 2.0}, "dispatches": rows}
    events = checked(bench_trace(facts, provenance("bench")))
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events] == [
        ("open", 0, 500, 1),
        ("first_run", 500, 2000, 1),
        ("conv", 0, 1500, 2),
        ("copy", 1500, 250, 2),
    ]
    assert events[2]["args"] == {"min_ms": 1.0} and events[3]["args"]["flops"] == 3
    of = {"phases_ms": {"exec": 1.0, "open": 0.5}}
    cold = checked(bench_trace({"cold": {"warm": of, "dropped": of}}, provenance("bench")))
    assert [e["tid"] for e in cold] == [1, 1, 2, 2]


def test_a_trace_takes_no_other_file_s_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = Builder()
    b.output("y", b.op("tanh", b.input("x", "f32[4]")))
    model = tmp_path / "m.ir"
    model.write_text(print_module(b.module()))
    command = ["compile", str(model), "-o", str(tmp_path / "m.aotm"), "--trace"]
    assert main([*command, str(model)]) == 2
    assert main([*command, str(tmp_path / "absent" / "t.json")]) == 1
    assert "its folder is not there" in capsys.readouterr().err
    assert main(["bench", str(model), "--trace", str(model)]) in (1, 2)
