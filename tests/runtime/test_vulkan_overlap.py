"""Dispatches that run beside each other: which barriers the Vulkan driver records, and results.

The loader of vulkan_faults.c says what is put into command buffers: a letter for each dispatch (D)
and transfer (T), and of a barrier who waits for whom, shaders (C), transfers or the host (H).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.backends.vulkan.assembler import Assembler as ShaderAssembler
from aot.backends.vulkan.assembler import FunctionBody
from aot.backends.vulkan.spirv import BuiltIn, Op, StorageClass
from aot.errors import InternalError
from aot.ir.types import DType
from aot.link.image import ExecutableImage
from aot.link.program import decode
from aot.link.reader import read_module
from tests.support import vulkan_runtime
from tests.support.overlap_graphs import fire
from tests.support.runtime_modules import CONSTANTS, OUTPUTS, Assembler
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_faults import shim_path
from tests.support.vulkan_runtime import Tensor, module_of, running_on

pytestmark = pytest.mark.vulkan


@contextmanager
def recorded(driver: str, folder: Path) -> Iterator[ctypes.CDLL]:
    """The driver with a loader that says what is recorded."""
    shim = ctypes.CDLL(str(shim_path()))
    shim.faults_recorded.restype = ctypes.c_char_p
    shim.faults_set(b"", 0, 0)
    with (
        running_on(driver, folder, is_overlapping=True),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
        yield shim


def commands(shim: ctypes.CDLL) -> str:
    """What was recorded since this was asked last."""
    found: str = shim.faults_recorded().decode()
    shim.faults_set(b"", 0, 0)
    return found.strip()


def counting_shader() -> bytes:
    """outputs[g] = g, a word for each workgroup g."""
    asm = ShaderAssembler()
    block = asm.block(asm.runtime_array(asm.u32, stride=4), is_written=True)
    outputs = asm.resource(StorageClass.STORAGE_BUFFER, block, OUTPUTS)
    ids = asm.builtin(BuiltIn.WORKGROUP_ID)
    body = FunctionBody(asm)
    loaded = body.result(Op.LOAD, asm.vector(asm.u32, 3), ids)
    group = body.result(Op.COMPOSITE_EXTRACT, asm.u32, loaded, 0)
    pointer = asm.pointer(StorageClass.STORAGE_BUFFER, asm.u32)
    to = body.result(Op.ACCESS_CHAIN, pointer, outputs, asm.constant(asm.u32, 0), group)
    body.emit(Op.STORE, to, group)
    return asm.finish(body, (1, 1, 1))


def module_of_steps(steps: str) -> bytes:
    """D: a dispatch; E: one of no workgroups; B: one beside those before it; T: a copy, of the
    eighth word; L: an integer is read from there."""
    asm = Assembler()
    asm.block()
    none, one, eight, four = (asm.register(n) for n in (0, 1, 8, 4))
    place = asm.register(28)
    asm.emit("RETURN")
    asm.execute()
    for step in steps:
        if step == "B":
            asm.emit("BESIDE")
        if step == "T":
            asm.emit("COPY", OUTPUTS, place, CONSTANTS, none, four)
        elif step == "L":
            asm.emit("LOAD", asm.register(), OUTPUTS, place, 5)
        else:
            asm.emit("DISPATCH", 0, none if step == "E" else eight, one, one)
    asm.emit("RETURN")
    shader = ExecutableImage("count", 0, spirv=counting_shader(), workgroup_size=(1, 1, 1))
    return module_of(asm, [], [Tensor("y", DType.U32, (8,))], shaders=[shader], rodata=b"\7\0\0\0")


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ("D", "CT>CT D CT>H"),
        ("DD", "CT>CT D C>C D CT>H"),
        ("DBBDB", "CT>CT DDD C>C DD CT>H"),
        ("DTDB", "CT>CT D C>T T T>C DD CT>H"),
        ("DBTB", "CT>CT DD C>T T T>C D CT>H"),
        ("B", "CT>CT D CT>H"),
        ("BD", "CT>CT D C>C D CT>H"),
        # one that runs nothing is to be waited for as much as another one
        ("DEB", "CT>CT D C>C D CT>H"),
        ("DEBB", "CT>CT D C>C DD CT>H"),
        ("EB", "CT>CT D CT>H"),
        ("DBEDB", "CT>CT DD C>C DD CT>H"),
        ("DLB", "CT>CT D CT>H  CT>CT D CT>H"),
        ("TT", "CT>CT T T>T T CT>H"),
    ],
)
def test_barriers_stand_where_the_program_wants_them(
    tmp_path: Path, steps: str, wanted: str
) -> None:
    module = module_of_steps(steps)
    with recorded("lavapipe", tmp_path) as shim, aot.load(module, "vulkan") as program:
        commands(shim)
        found = program({})["y"]
        assert commands(shim) == wanted
        if set(steps) & set("DB"):
            assert found.tolist() == [*range(8)]


def test_what_is_timed_runs_alone(tmp_path: Path) -> None:
    module = module_of_steps("DBB")
    with recorded("lavapipe", tmp_path) as shim:
        launches = vulkan_runtime.launches_of(module, [])
        assert len(launches) == 3
        assert commands(shim).count("C>C") == 2


def test_overlap_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of_steps("DBB")
    with recorded("lavapipe", tmp_path) as shim:
        monkeypatch.setenv("AOT_VULKAN_OVERLAP", "0")
        with aot.load(module, "vulkan") as program:
            commands(shim)
            program({})
        assert commands(shim) == "CT>CT D C>C D C>C D CT>H"


@pytest.mark.parametrize("memory", ["unified", "staged"])
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("batch", [1, "N"])
def test_branches_give_what_they_give_one_by_one(
    driver: str, memory: str, batch: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = aot.compile(fire(batch), targets=["vulkan-1.1", "host"]).to_bytes()
    (entry,) = read_module(module).variants[0].entry_points
    names = [i.name for i in decode(entry.program.code)]
    dispatches, beside = names.count("DISPATCH"), names.count("BESIDE")
    assert beside == 2
    shape = (1 if batch == 1 else 3, 16, 56, 56)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
    found = []
    with recorded(driver, tmp_path) as shim:
        for setting, barriers in (("1", dispatches - beside), ("0", dispatches)):
            monkeypatch.setenv("AOT_VULKAN_OVERLAP", setting)
            with aot.load(module, "vulkan") as program:
                commands(shim)
                found.append(program({"x": x})["y"])
                assert len(re.findall("C>C", commands(shim))) == barriers - 1
                found.append(program({"x": x})["y"])
    assert all(np.array_equal(found[0], other) for other in found)
    with aot.load(module, "cpu") as program:
        wanted = program({"x": x})["y"]
    np.testing.assert_allclose(found[0], wanted, atol=1e-4 * float(np.abs(wanted).max()))


def test_only_a_dispatch_may_stand_behind() -> None:
    """The runtime refuses it too: tests/runtime/test_malformed.py."""
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("BESIDE")
    asm.emit("RETURN")
    with pytest.raises(InternalError, match="word 1: no dispatch stands behind the instruction"):
        module_of(asm, [], [])
