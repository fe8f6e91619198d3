"""Runs small modules on a software Vulkan driver, in a process of its own that stays open.

Most of the time that a program takes to start on Vulkan goes into loading the driver and the
validation layer. There they stay loaded, with settings of their own: a layer keeps those that it
was loaded with.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.link.reader import read_module
from tests.support import runtime_api, vulkan_runtime
from tests.support.runtime_modules import Assembler

VULKAN = 2  # of aot_device_t
COMMAND = "command"  # the driver of AOT_MATRIX_VULKAN, which runs a program of its arguments


def run(driver: str, module: bytes, inputs: Sequence[bytes], *, reads_texels: bool) -> list[bytes]:
    """The outputs of the module's program, whose inputs are bytes.

    Raises:
        AssertionError: the validation layer said something.
        runtime_api.Failed: the runtime did.
    """
    if driver == COMMAND:
        return _by_command(module, inputs)
    connection = _server(driver)
    connection.send((module, inputs, reads_texels))
    found, said = connection.recv()
    assert not said, f"{driver}: the validation layer says: {said}"
    if isinstance(found, tuple):
        raise runtime_api.Failed(*found)
    assert isinstance(found, list), found
    return found


def _by_command(module: bytes, inputs: Sequence[bytes]) -> list[bytes]:
    """The same by aot-run, in a process that sees another driver than this one."""
    image = read_module(module)
    (entry,) = image.variants[0].entry_points
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.aotm")
        path.write_bytes(module)
        command = [os.environ["AOT_MATRIX_VULKAN"], str(vulkan_runtime.tool_path()), str(path)]
        command += ["--device", "vulkan", "--output", f"{folder}/found", "--runs", "0"]
        for tensor, data in zip(entry.inputs, inputs, strict=True):
            array = Path(folder, f"{tensor.name}.npy")
            np.save(array, np.frombuffer(data, np.uint8))
            command += ["--input", f"{tensor.name}={array}"]
        Path(folder, "found").mkdir()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [np.load(f"{folder}/found/{t.name}.npy").tobytes() for t in entry.outputs]


@cache
def _server(driver: str) -> Connection:
    """The process's end of a connection to the one that has the driver; skips where it is not
    there."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    folder = Path(tempfile.mkdtemp(prefix=f"aotc-{driver}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    variables = {**vulkan_runtime.environment(driver, folder), "AOT_PIPELINE_CACHE": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        context.Process(target=_serve, args=(there, folder), daemon=True).start()
    there.close()
    return here


def _serve(connection: Connection, folder: Path) -> None:
    """Answers with the outputs of each program, or why it failed, and what the layer said of it."""
    runtime_api.library = vulkan_runtime.library
    heard = 0
    try:
        resident = _opened(_nothing())
    except Exception:
        _refuse(connection, traceback.format_exc())
        return
    try:
        while True:
            module, inputs, reads_texels = connection.recv()
            os.environ["AOT_VULKAN_TEXELS"] = "on" if reads_texels else "off"
            try:
                answer: Any = _outputs(module, inputs)
            except runtime_api.Failed as error:
                answer = (error.status, error.message)
            except Exception:
                answer = traceback.format_exc()
            log = folder / "validation.log"
            said = log.read_text() if log.exists() else ""
            connection.send((answer, said[heard:]))
            heard = len(said)
    except EOFError:
        resident.close()


def _refuse(connection: Connection, why: str) -> None:
    """Answers everything with why the driver does not start."""
    try:
        while True:
            connection.recv()
            connection.send((why, ""))
    except EOFError:
        return


def _opened(module: bytes) -> runtime_api.Program:
    return runtime_api.Program(runtime_api.Module(module), device=VULKAN)


def _outputs(module: bytes, inputs: Sequence[bytes]) -> list[bytes]:
    program = _opened(module)
    for number, data in enumerate(inputs):
        program.set_input(number, np.frombuffer(data, np.uint8))
    try:
        program.run()
        count = vulkan_runtime.library().aot_program_output_count(program.handle)
        return [program.output(number).tobytes() for number in range(count)]
    finally:
        program.close()
        program.module.close()


def _nothing() -> bytes:
    """A module whose program does nothing."""
    a = Assembler()
    a.block()
    a.emit("RETURN")
    a.execute()
    a.emit("RETURN")
    return vulkan_runtime.module_of(a, [], [])
