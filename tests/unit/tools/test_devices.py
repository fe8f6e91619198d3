"""`aotc devices`: what is there, with limits, and which targets fit and why others do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli.main import cli
from aot.target import selection as targets
from aot.tools.devices import devices, find_devices
from tests.support.vulkan_runtime import environment

pytestmark = pytest.mark.vulkan


def use(driver: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vulkan")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, environment(driver, folder)[name])


def test_targets_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use("swiftshader", tmp_path, monkeypatch)
    *_, device = devices()
    assert "SwiftShader" in device.name
    assert (device.device, device.kind) == ("vulkan", "software")
    assert device.limits["max_workgroup_invocations"] == 256
    assert device.fits == ("vulkan-1.3", "vulkan-android-2022", "vulkan-1.1")
    assert device.misses["adreno"] == "maxComputeWorkGroupInvocations is 256, adreno needs 512"
    assert device.misses["vulkan-android-15"] == (
        "there is no shaderFloat16, which vulkan-android-15 needs"
    )
    known = {name for name in targets.names() if targets.load(name).gpu is not None}
    assert {*device.fits, *device.misses} == known
    assert device.features == ("shaderIntegerDotProduct", "vulkanMemoryModel")


def test_the_best_target_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use("lavapipe", tmp_path, monkeypatch)
    *_, device = devices()
    assert device.fits[0] == "lavapipe"
    assert {"shaderFloat16", "storageBuffer16BitAccess"} <= set(device.features)
    assert device.fits.index("vulkan-android-15") < device.fits.index("vulkan-android-2022")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use("swiftshader", tmp_path, monkeypatch)
    shown = CliRunner().invoke(cli, ["devices"])
    assert shown.exit_code == 0
    assert "SwiftShader Device (Subzero) (vulkan)\n  software, vulkan 1.3" in shown.output
    assert "max_storage_buffer_bytes     1,073,741,824" in shown.output
    found = json.loads(CliRunner().invoke(cli, ["devices", "--json"]).output)
    assert found[-1]["fits"] == ["vulkan-1.3", "vulkan-android-2022", "vulkan-1.1"]


def test_without_drivers_there_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vulkan")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent.json")
    monkeypatch.setenv("VK_ICD_FILENAMES", "/nonexistent.json")
    assert {d.device for d in devices()} <= {"cpu"}
    shown = CliRunner().invoke(cli, ["devices"])
    assert shown.output.endswith(
        "no Vulkan driver here has a GPU (VK_LOADER_DEBUG=error says why)\n"
    )


@pytest.mark.parametrize("is_error", [False, True])
def test_a_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch, *, is_error: bool) -> None:
    """Mesa's drivers for hardware that isn't there answer with an error or with no device."""
    vk = pytest.importorskip("vulkan")

    def none(instance: object) -> list[object]:
        if is_error:
            raise vk.VkErrorInitializationFailed
        return []

    monkeypatch.setattr(vk, "vkEnumeratePhysicalDevices", none)
    shown = CliRunner().invoke(cli, ["devices"])
    assert shown.exit_code == 0
    assert shown.output.endswith(
        "no Vulkan driver here has a GPU (VK_LOADER_DEBUG=error says why)\n"
    )


def test_a_driver_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    vk = pytest.importorskip("vulkan")

    def lost(instance: object) -> list[object]:
        raise vk.VkErrorDeviceLost

    monkeypatch.setattr(vk, "vkEnumeratePhysicalDevices", lost)
    check_the_cpu_alone("vulkan fails: VkErrorDeviceLost")


def check_the_cpu_alone(why: str) -> None:
    """The CPU is listed, and the reason for its being alone is said."""
    found, why_not = find_devices()
    assert {d.device for d in found} <= {"cpu"}
    assert why in why_not
    shown = CliRunner().invoke(cli, ["devices"])
    assert shown.exit_code == 0
    assert f"aotc: no GPUs are listed: {why_not}\n" in shown.stderr


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vulkan", None)
    check_the_cpu_alone("pip install 'aotc[vulkan]'")
