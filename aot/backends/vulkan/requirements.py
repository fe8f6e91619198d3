"""What shaders ask of a device, by the names that Vulkan gives: limits and features.

Owns which limits are worth declaring: those that devices differ in below what the floor of Vulkan
1.1 promises, or that a target may raise. Buffers' sizes depend on shapes: the driver checks those.
"""

from __future__ import annotations

from collections.abc import Iterable

from aot.backends.vulkan.shader import Shader
from aot.backends.vulkan.spirv import Capability

Limits = tuple[tuple[str, int], ...]

# The features of a device, as the runtime knows them, that are behind a shader's capabilities.
_FEATURES = {
    Capability.FLOAT16: ("shaderFloat16",),
    Capability.INT8: ("shaderInt8",),
    Capability.INT16: ("shaderInt16",),
    Capability.STORAGE_BUFFER_16BIT_ACCESS: ("storageBuffer16BitAccess",),
    Capability.STORAGE_BUFFER_8BIT_ACCESS: ("storageBuffer8BitAccess",),
    Capability.GROUP_NON_UNIFORM_ARITHMETIC: ("subgroupArithmetic", "subgroupBasic"),
}


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
    return tuple(sorted((name, value) for name, value in found.items() if value))


def features_of(capabilities: Iterable[Capability]) -> tuple[str, ...]:
    """Names of the features that a shader with these capabilities needs, sorted."""
    return tuple(sorted({name for c in capabilities for name in _FEATURES.get(c, ())}))


def features(shaders: Iterable[Shader]) -> tuple[str, ...]:
    """Names of all features that one of the shaders needs, sorted."""
    return tuple(sorted({name for shader in shaders for name in shader.features}))
