"""Lists the devices of this machine, CPU and Vulkan, with the targets that fit them.

Asks Vulkan through the package `vulkan` (extra `aotc[vulkan]`), a path of its own beside the
runtime's driver; compiles and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aot.backends.cpu.object_cache import default_folder
from aot.backends.vulkan.requirements import (
    LIMITS,
    features_of_target,
    limits_of,
    matrix_features,
)
from aot.base.records import dataclass
from aot.errors import AotError, RuntimeFailure
from aot.ir.types import DType
from aot.runtime.cores import find as find_cores
from aot.target import files
from aot.target import selection as targets
from aot.target.model import GpuGeometry, MatrixShape, Target
from aot.target.toml import SUBGROUP_OPERATIONS

_KINDS = {0: "other", 1: "integrated gpu", 2: "discrete gpu", 3: "virtual gpu", 4: "software"}
_LEAST_VERSION = (1, 1)
# the types of matrices' elements, by Vulkan's names
_COMPONENTS = {
    "FLOAT16": DType.F16,
    "FLOAT32": DType.F32,
    "SINT8": DType.I8,
    "UINT8": DType.U8,
    "SINT32": DType.I32,
    "UINT32": DType.U32,
}


@dataclass(frozen=True)
class DeviceInfo:
    """A device and its capabilities.

    Attributes:
        name: as its driver calls it; a CPU's is its best target.
        device: "cpu" or "vulkan".
        kind: such as "integrated gpu" or "software"; "" for a CPU.
        api_version: of Vulkan, "" for a CPU.
        driver_version: the vendor's number.
        memory_bytes: of the largest heap that is the device's own.
        limits: what the targets' limits are compared with, by the keys of target files.
        features: the optional Vulkan features that modules can ask for and that are there.
        fits: targets that run here, best first.
        misses: other targets of the kind, with the first thing that each lacks here.
        threads: that `threads="auto"` takes; 0 for what is no CPU.
        threads_reason: why so many.
        note: why programs do not use it although it is there; "" where they do.
    """

    name: str
    device: str
    kind: str
    api_version: str
    driver_version: int
    memory_bytes: int
    limits: Mapping[str, int | tuple[int, int, int]]
    features: tuple[str, ...]
    fits: tuple[str, ...]
    misses: Mapping[str, str]
    threads: int = 0
    threads_reason: str = ""
    note: str = ""


def find_devices() -> tuple[tuple[DeviceInfo, ...], str]:
    """(the CPU, if a target fits it, followed by the Vulkan devices in Vulkan's order; why there
    are no Vulkan devices: a package, a library or a driver that is missing or fails, else "").
    """
    try:
        return (*_cpu(), *_vulkan()), ""
    except RuntimeFailure as error:
        return tuple(_cpu()), str(error)


def devices() -> tuple[DeviceInfo, ...]:
    """The CPU, if a target fits it, followed by the Vulkan devices in Vulkan's order.

    `find_devices` says why there are no Vulkan devices where they can't be listed.
    """
    return find_devices()[0]


def _cpu() -> Iterator[DeviceInfo]:
    try:
        host = targets.host()
    except AotError:
        return
    cores = find_cores()
    yield DeviceInfo(
        *(host.name, "cpu", "", "", 0, 0, {}, host.features, (host.name,), {}),
        threads=cores.threads,
        threads_reason=cores.reason,
    )


def _vulkan() -> Iterator[DeviceInfo]:
    try:
        import vulkan as vk
    except ImportError:
        raise RuntimeFailure(
            "listing devices needs the package vulkan: pip install 'aotc[vulkan]'", "unsupported"
        ) from None
    except OSError as error:
        raise RuntimeFailure(f"cannot load the Vulkan loader: {error}", "unsupported") from None
    try:
        application = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(*_LEAST_VERSION, 0))
        instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=application), None)
    except vk.VkErrorIncompatibleDriver:
        return  # a loader and no driver: there are no devices
    except vk.VkError as error:
        raise RuntimeFailure(f"vulkan fails: {type(error).__name__}", "device") from None
    try:
        for device in _gpus_of(vk, instance):
            yield _device(vk, instance, device)
    except vk.VkError as error:
        raise RuntimeFailure(f"vulkan fails: {type(error).__name__}", "device") from None
    finally:
        vk.vkDestroyInstance(instance, None)


def _gpus_of(vk: Any, instance: Any) -> Sequence[Any]:
    """The physical devices of all drivers; empty if no driver finds a GPU, which some report as an
    error."""
    try:
        return list(vk.vkEnumeratePhysicalDevices(instance))
    except vk.VkErrorInitializationFailed:
        return ()


def _device(vk: Any, instance: Any, device: Any) -> DeviceInfo:
    properties = vk.vkGetPhysicalDeviceProperties(device)
    version = properties.apiVersion
    major, minor, patch = version >> 22, version >> 12 & 0x3FF, version & 0xFFF
    limits, operations = _limits(properties.limits), _subgroup_operations(vk, device)
    features = (*_features(vk, device), *_matrices(vk, instance, device))
    fits, misses = [], {}
    for target in map(targets.load, files.names()):
        if target.gpu is None or target.device != "vulkan":
            continue
        missing = _missing(target, (major, minor), limits)
        missing = missing or _missing_operation(target.name, target.gpu, operations)
        missing = missing or _missing_feature(target, features)
        if missing:
            misses[target.name] = missing
        else:
            fits.append(target)
    fits.sort(key=_rank, reverse=True)
    heaps = vk.vkGetPhysicalDeviceMemoryProperties(device)
    own = [
        heaps.memoryHeaps[n].size
        for n in range(heaps.memoryHeapCount)
        if heaps.memoryHeaps[n].flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
    ]
    return DeviceInfo(
        properties.deviceName,
        "vulkan",
        _KINDS.get(properties.deviceType, "other"),
        f"{major}.{minor}.{patch}",
        int(properties.driverVersion),
        max(own, default=0),
        limits,
        features,
        tuple(t.name for t in fits),
        misses,
        note=_note(properties.deviceName),
    )


def _note(name: str) -> str:
    """Why programs leave a device out. The runtime's Vulkan driver puts a mark beside the pipeline
    cache while it starts, whose second line says it (drivers/vulkan/start.c); "" without one.
    """
    folder = default_folder()
    for path in sorted(folder.glob("pipelines/*.starting")) if folder is not None else ():
        with suppress(OSError, ValueError):
            start, *why = path.read_text(encoding="utf-8").splitlines()
            if why and start.split(" ", 2)[-1] == name:
                return why[0]
    return ""


def _limits(found: Any) -> dict[str, int | tuple[int, int, int]]:
    limits: dict[str, int | tuple[int, int, int]] = {}
    for key, name in LIMITS.items():
        value = getattr(found, name)
        limits[key] = int(value) if isinstance(value, int) else (value[0], value[1], value[2])
    return limits


def _missing(
    target: Target,
    version: tuple[int, int],
    limits: Mapping[str, int | tuple[int, int, int]],
) -> str:
    """The first requirement of a target that the device does not meet; "" if it meets all."""
    if version < _LEAST_VERSION:
        return f"vulkan {version[0]}.{version[1]}, not 1.1"
    wanted = limits_of(target)
    for key, name in LIMITS.items():
        has: Any = limits[key]
        needs: Any = wanted[key]
        if key.startswith("min_"):
            is_there = has <= needs
        elif isinstance(needs, tuple):
            is_there = all(h >= n for h, n in zip(has, needs, strict=True))
        else:
            is_there = has >= needs
        if not is_there:
            return f"{name} is {has}, {target.name} needs {needs}"
    return ""


def _subgroup_operations(vk: Any, device: Any) -> set[str]:
    """The subgroup operations that a device supports in compute shaders, by their names in target
    files."""
    subgroups = vk.VkPhysicalDeviceSubgroupProperties()
    vk.vkGetPhysicalDeviceProperties2(device, vk.VkPhysicalDeviceProperties2(pNext=subgroups))
    if not subgroups.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
        return set()
    bits = {n: getattr(vk, f"VK_SUBGROUP_FEATURE_{n.upper()}_BIT") for n in SUBGROUP_OPERATIONS}
    return {name for name, bit in bits.items() if subgroups.supportedOperations & bit}


def _missing_operation(name: str, wanted: GpuGeometry, operations: set[str]) -> str:
    """The first subgroup operation that a target needs and the device lacks; "" if there is
    none."""
    lacking = [o for o in wanted.subgroup_operations if o not in operations]
    return f"subgroups have no {lacking[0]} operations, which {name} needs" if lacking else ""


def _missing_feature(target: Target, features: tuple[str, ...]) -> str:
    """The first feature that a target's shaders may need and the device lacks; "" if there is
    none."""
    wanted = (*target.features, *features_of_target(target))
    lacking = [f for f in wanted if f not in features]
    return f"there is no {lacking[0]}, which {target.name} needs" if lacking else ""


def _rank(target: Target) -> tuple[int, int, int, str]:
    """A sort key of targets that fit a device: the one with the highest requirements fits best."""
    assert target.gpu is not None
    gpu = target.gpu
    features = len(features_of_target(target))
    return (gpu.max_workgroup_invocations, gpu.max_shared_bytes, features, target.name)


def _features(vk: Any, device: Any) -> tuple[str, ...]:
    """The device's features, of those that the runtime driver's requirements.c checks."""
    storage16 = vk.VkPhysicalDevice16BitStorageFeatures()
    storage8 = vk.VkPhysicalDevice8BitStorageFeatures(pNext=storage16)
    arithmetic = vk.VkPhysicalDeviceShaderFloat16Int8Features(pNext=storage8)
    dots = vk.VkPhysicalDeviceShaderIntegerDotProductFeatures(pNext=arithmetic)
    model = vk.VkPhysicalDeviceVulkanMemoryModelFeatures(pNext=dots)
    all_features = vk.VkPhysicalDeviceFeatures2(pNext=model)
    vk.vkGetPhysicalDeviceFeatures2(device, all_features)
    core = all_features.features
    found = {
        "shaderInt16": core.shaderInt16,
        "shaderInt64": core.shaderInt64,
        "shaderFloat64": core.shaderFloat64,
        "storageBuffer16BitAccess": storage16.storageBuffer16BitAccess,
        "storageBuffer8BitAccess": storage8.storageBuffer8BitAccess,
        "shaderFloat16": arithmetic.shaderFloat16,
        "shaderInt8": arithmetic.shaderInt8,
        "shaderIntegerDotProduct": dots.shaderIntegerDotProduct,
        "vulkanMemoryModel": model.vulkanMemoryModel,
    }
    return tuple(name for name, is_there in found.items() if is_there)


def _matrices(vk: Any, instance: Any, device: Any) -> tuple[str, ...]:
    """The cooperative matrix features of a device, spelled as requirements.c spells them; empty
    without support.
    """
    extensions = vk.vkEnumerateDeviceExtensionProperties(device, None)
    if "VK_KHR_cooperative_matrix" not in {e.extensionName for e in extensions}:
        return ()
    full = vk.VkPhysicalDeviceSubgroupSizeControlFeatures()
    feature = vk.VkPhysicalDeviceCooperativeMatrixFeaturesKHR(pNext=full)
    vk.vkGetPhysicalDeviceFeatures2(device, vk.VkPhysicalDeviceFeatures2(pNext=feature))
    subgroups = vk.VkPhysicalDeviceSubgroupProperties()
    vk.vkGetPhysicalDeviceProperties2(device, vk.VkPhysicalDeviceProperties2(pNext=subgroups))
    if not feature.cooperativeMatrix or not full.computeFullSubgroups:
        return ()
    ask = vk.vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    names = {getattr(vk, f"VK_COMPONENT_TYPE_{n}_KHR"): d for n, d in _COMPONENTS.items()}
    shapes = [
        MatrixShape(p.MSize, p.NSize, p.KSize, *(names[t] for t in (p.AType, p.BType, p.CType)))
        for p in ask(device)
        if p.scope == vk.VK_SCOPE_SUBGROUP_KHR
        and not p.saturatingAccumulation
        and p.CType == p.ResultType
        and {p.AType, p.BType, p.CType} <= set(names)
    ]
    return (
        "cooperativeMatrix",
        "computeFullSubgroups",
        *matrix_features(shapes, subgroups.subgroupSize),
    )
