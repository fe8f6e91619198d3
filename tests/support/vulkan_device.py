"""The Vulkan drivers of the tests: where they are, and how tests name them.

They are software, and found by themselves. On a machine with a GPU, AOT_TEST_VULKAN_DRIVER may name
the manifest of its driver (/usr/share/vulkan/icd.d/...json): then what would run on lavapipe runs
on the GPU, and what asks for SwiftShader is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

DRIVERS = ("lavapipe", "swiftshader")
# Drivers, and whether shaders read texels there (AOT_VULKAN_TEXELS). SwiftShader's texel buffers
# are too short for models.
WAYS = (("lavapipe", "on"), ("lavapipe", "off"), ("swiftshader", "off"))
VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
INSTALL = "run .ci/software_vulkan.sh"


def swiftshader_directory() -> Path:
    """Where .ci/software_vulkan.sh puts SwiftShader."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("AOT_SWIFTSHADER_DIR") or f"{cache_home}/aotc/swiftshader")


def manifests() -> dict[str, Path]:
    """The manifest of every driver that is there."""
    if given := os.environ.get("AOT_TEST_VULKAN_DRIVER"):
        return {"lavapipe": Path(given)}
    found = {
        "lavapipe": sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")),
        "swiftshader": sorted(swiftshader_directory().glob("vk_swiftshader_icd.json")),
    }
    return {name: paths[0] for name, paths in found.items() if paths}
