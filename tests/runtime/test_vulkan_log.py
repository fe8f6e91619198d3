"""What the Vulkan driver tells an application that asks: each thing that it decides on its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import aot
from tests.support import runtime_api
from tests.support.growing_graph import growing_graph, growing_reference, rows
from tests.support.vulkan_buffers import VulkanOptions
from tests.support.vulkan_faults import shim_path
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

DEVICE_LOST = -4
INFO, WARNING = 0, 1
NO_PROCESS = 2**22 + 1  # above Linux's most
Log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    shim = ctypes.CDLL(str(shim_path()))
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
    shim.faults_set(b"", 0, 0)
    with running_on("lavapipe", tmp_path):
        yield shim
    shim.faults_set(b"", 0, 0)


@cache
def module_bytes() -> bytes:
    return aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).to_bytes()


class Listener:
    """A program on whichever device, and what is told of it."""

    def __init__(self, device: str = "llvmpipe", kind: int = 0) -> None:
        self.told: list[tuple[int, str]] = []
        self.then: Callable[[], object] = lambda: None
        self._function = Log(self._tell)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        self._options = VulkanOptions(device=device.encode(), log=address, log_user=7)
        module = runtime_api.Module(module_bytes())
        pointer = ctypes.cast(ctypes.pointer(self._options), ctypes.c_void_p).value
        self.program = runtime_api.Program(module, device=kind, vulkan=pointer)
        module.close()

    def _tell(self, user: int, severity: int, message: bytes) -> None:
        assert user == 7
        self.told.append((severity, message.decode()))
        self.then()

    def run(self) -> None:
        x = rows(9)
        np.testing.assert_allclose(self.program(x)[0], growing_reference(x), atol=1e-6)

    def take(self) -> list[tuple[int, str]]:
        """What was told since."""
        found, self.told = self.told, []
        return found


def test_the_device_and_its_cache(faults: ctypes.CDLL, tmp_path: Path) -> None:
    first = Listener()
    written, chosen = first.take()
    assert written[0] == chosen[0] == INFO
    assert written[1].startswith(f"vulkan: pipelines are written to {tmp_path}/cache/")
    assert chosen[1].startswith("vulkan: llvmpipe") and chosen[1].endswith(" runs vulkan-1.1")
    first.run()
    assert first.take() == []  # a run as any other
    first.program.close()
    second = Listener()
    assert (INFO, written[1].replace("are written to", "come from")) in second.take()
    second.program.close()
    path = Path(written[1].removeprefix("vulkan: pipelines are written to "))
    path.write_bytes(b"\0" * 100)
    third = Listener()
    assert third.take()[0] == (
        WARNING,
        f"vulkan: {path} is ignored: it is damaged, too large, another device's, or others may "
        "write it",
    )
    third.program.close()
    path.with_name(path.name + ".starting").write_text(f"1 {NO_PROCESS} llvmpipe\n")
    fourth = Listener()
    assert fourth.take()[0] == (
        WARNING,
        f"vulkan: {path} is removed: the driver has not come to the end of its last start",
    )
    fourth.program.close()


def test_a_device_that_is_passed_over(faults: ctypes.CDLL) -> None:
    listener = Listener("no such device")
    assert listener.program.info().device == b"cpu"
    ((severity, message),) = listener.take()
    assert severity == WARNING
    assert message.startswith("vulkan-1.1 is passed over: vulkan: llvmpipe")
    assert message.endswith('not the device "no such device" that is wanted')
    listener.run()
    listener.program.close()


def test_a_device_that_is_lost(faults: ctypes.CDLL) -> None:
    """It is made anew, then the CPU goes on; the program is busy while it tells."""
    listener = Listener()
    listener.take()
    statuses = []
    listener.then = lambda: statuses.append(
        runtime_api.failure(listener.program.run).status
        if faults.faults_calls(b"vkWaitForFences")
        else "not in a run"
    )
    faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
    listener.run()
    lost = "vulkan-1.1: vulkan: vkWaitForFences: the device is lost; the program goes on "
    assert (WARNING, lost + "on the device, made anew") in listener.take()
    faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
    listener.run()
    ((severity, message),) = listener.take()
    assert severity == WARNING and message.startswith(lost)
    assert listener.program.info().device == b"cpu"
    assert message.removeprefix(lost) == listener.program.info().target.decode()
    assert set(statuses) == {"busy"}
    listener.program.close()


def test_nobody_has_to_listen(faults: ctypes.CDLL) -> None:
    module = runtime_api.Module(module_bytes())
    program = runtime_api.Program(module, device=2)
    program(rows(9))
    program.close()
    module.close()
