"""Device limits and features that shaders and targets require, by Vulkan's names.

Owns which limits are worth declaring: those that devices differ in below what the floor of Vulkan
1.1 promises, or that a target may raise. Buffers' sizes are declared where no shape changes them;
the driver checks the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from aot.backends.vulkan.shader import Shader
from aot.backends.vulkan.spirv import Capability
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass
from aot.target.model import MatrixShape, Target

Limits = tuple[tuple[str, int], ...]

# Limits that a target names, by Vulkan's names; of the last the device's must be the smaller.
LIMITS = {
    "max_storage_buffers": "maxPerStageDescriptorStorageBuffers",
    "max_push_constant_bytes": "maxPushConstantsSize",
    "max_workgroup_invocations": "maxComputeWorkGroupInvocations",
    "max_workgroup_size": "maxComputeWorkGroupSize",
    "max_workgroup_count": "maxComputeWorkGroupCount",
    "max_shared_bytes": "maxComputeSharedMemorySize",
    "max_storage_buffer_bytes": "maxStorageBufferRange",
    "min_storage_alignment_bytes": "minStorageBufferOffsetAlignment",
}

# The features behind narrow types: those that compute in them, and those that store them.
_ARITHMETIC_FEATURES = {
    DType.F16: "shaderFloat16",
    DType.I8: "shaderInt8",
    DType.U8: "shaderInt8",
    DType.I16: "shaderInt16",
    DType.U16: "shaderInt16",
}
_STORAGE_FEATURES = {8: "storageBuffer8BitAccess", 16: "storageBuffer16BitAccess"}

# The limit of a buffer's bytes, and what Vulkan promises of it.
_STORAGE_RANGE, _LEAST_STORAGE_RANGE = LIMITS["max_storage_buffer_bytes"], 1 << 27

DOT_PRODUCT_FEATURE = "shaderIntegerDotProduct"

# The features of a device, as the runtime knows them, that are behind a shader's capabilities.
_FEATURES = {
    Capability.FLOAT16: ("shaderFloat16",),
    Capability.INT8: ("shaderInt8",),
    Capability.INT16: ("shaderInt16",),
    Capability.STORAGE_BUFFER_16BIT_ACCESS: ("storageBuffer16BitAccess",),
    Capability.STORAGE_BUFFER_8BIT_ACCESS: ("storageBuffer8BitAccess",),
    Capability.DOT_PRODUCT: (DOT_PRODUCT_FEATURE,),
    Capability.VULKAN_MEMORY_MODEL: ("vulkanMemoryModel",),
    Capability.COOPERATIVE_MATRIX_KHR: (
        *("cooperativeMatrix", "subgroupBasic"),
        "computeFullSubgroups",  # VUID-RuntimeSpirv-OpTypeCooperativeMatrixKHR-10770
    ),
    Capability.GROUP_NON_UNIFORM_ARITHMETIC: ("subgroupArithmetic", "subgroupBasic"),
}


def limits_of(target: Target) -> dict[str, int | tuple[int, int, int]]:
    """The limits that a device must reach for a target, by the keys of `LIMITS`."""
    assert target.gpu is not None and target.vulkan is not None
    return {
        key: getattr(target.gpu if hasattr(target.gpu, key) else target.vulkan, key)
        for key in LIMITS
    }


def features_of_target(target: Target) -> tuple[str, ...]:
    """The features that a target's shaders may need, sorted."""
    assert target.gpu is not None
    found = {_ARITHMETIC_FEATURES[d] for d in target.dtypes if d in _ARITHMETIC_FEATURES}
    found |= {_STORAGE_FEATURES[b] for b in target.gpu.storage_bits}
    if target.gpu.integer_dot_product:
        found.add(DOT_PRODUCT_FEATURE)
    if target.gpu.matrices:
        found |= {"cooperativeMatrix", "vulkanMemoryModel", "computeFullSubgroups"}
        found |= set(matrix_features(target.gpu.matrices, target.gpu.subgroup_lanes))
    return tuple(sorted(found))


def matrix_features(shapes: Iterable[MatrixShape], lanes: int) -> tuple[str, ...]:
    """Names of the runtime's device features for matrices of `shapes` in subgroups of `lanes`
    lanes. The runtime checks them against the device's list of shapes, in addition to the Vulkan
    feature.
    """
    return (*(f"cooperativeMatrix[{s}]" for s in dict.fromkeys(shapes)), f"subgroupSize[{lanes}]")


def limits(shaders: Iterable[Shader]) -> Limits:
    """The least that each limit must be, in the order of their names; none that would be 0."""
    found: dict[str, int] = {}

    def needs(name: str, value: int) -> None:
        found[name] = max(found.get(name, 0), value)

    for shader in shaders:
        x, y, z = shader.workgroup_size
        needs("maxComputeWorkGroupInvocations", x * y * z)
        for axis, lanes in enumerate(shader.workgroup_size):
            needs(f"maxComputeWorkGroupSize[{axis}]", lanes)
        needs("maxComputeSharedMemorySize", shader.shared_bytes)
        needs("maxPushConstantsSize", shader.push_constant_bytes)
        needs("maxUniformBufferRange", shader.param_buffer_bytes)
        needs("maxPerStageDescriptorStorageBuffers", len(shader.bindings))
        if shader.windows:  # beside the classes, which are bound always
            buffers = len(BufferClass) + len(shader.windows)
            needs("maxPerStageDescriptorStorageBuffers", buffers)
    return tuple(sorted((name, value) for name, value in found.items() if value))


def limits_of_buffers(largest: int) -> Limits:
    """The limit on a storage buffer of `largest` bytes; none where every device allows so many."""
    return ((_STORAGE_RANGE, largest),) if largest > _LEAST_STORAGE_RANGE else ()


def features_of(capabilities: Iterable[Capability], others: Iterable[str] = ()) -> tuple[str, ...]:
    """Sorted names of the features that a shader with these capabilities requires, with
    `others`.
    """
    found = {name for c in capabilities for name in _FEATURES.get(c, ())}
    return tuple(sorted({*found, *others}))


def features(shaders: Iterable[Shader]) -> tuple[str, ...]:
    """Names of all features that one of the shaders needs, sorted."""
    return tuple(sorted({name for shader in shaders for name in shader.features}))
