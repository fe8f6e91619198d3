"""Runs one compute shader on a software Vulkan driver, through the pip package `vulkan`.

Owns instance, devices, buffers and the dispatch of one `Shader`; follows the ABI written down in
`aot.backends.vulkan.shader` and is the only place in the tests that does. Every class buffer gets
poisoned words behind it, and the validation layer listens where it is installed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.backends.vulkan.shader import (
    GRID_ROW,
    PARAM_BUFFER_BINDING,
    Shader,
    texel_binding,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, Kernel

DRIVERS = ("lavapipe", "swiftshader")
# Drivers, and whether shaders read texels there (AOT_VULKAN_TEXELS). SwiftShader's texel buffers
# are too short for models.
WAYS = (("lavapipe", "on"), ("lavapipe", "off"), ("swiftshader", "off"))
POISON = 0xA5
POISON_BYTES = 256
VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
INSTALL = "run .ci/software_vulkan.sh"
_PARAM_BASE_WORDS = 8  # the block of a uniform buffer does not start at 0, to test its base


def swiftshader_directory() -> Path:
    """Where .ci/software_vulkan.sh puts SwiftShader."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("AOT_SWIFTSHADER_DIR") or f"{cache_home}/aotc/swiftshader")


def manifests() -> dict[str, Path]:
    """The manifest of every driver that is there."""
    found = {
        "lavapipe": sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")),
        "swiftshader": sorted(swiftshader_directory().glob("vk_swiftshader_icd.json")),
    }
    return {name: paths[0] for name, paths in found.items() if paths}


@dataclass
class Session:
    """An instance over all drivers; `messages` is what the validation layer said."""

    vk: Any
    instance: Any
    devices: dict[str, Any]
    messages: list[str]
    has_validation: bool


@cache
def session() -> Session:
    """The process's instance.

    Raises:
        ImportError, OSError: the package or the loader is missing.
    """
    os.environ["VK_DRIVER_FILES"] = ":".join(str(path) for path in manifests().values())
    import vulkan as vk

    layers = [layer.layerName for layer in vk.vkEnumerateInstanceLayerProperties()]
    has_validation = VALIDATION_LAYER in layers
    application = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 1, 0))
    instance = vk.vkCreateInstance(
        vk.VkInstanceCreateInfo(
            pApplicationInfo=application,
            ppEnabledLayerNames=[VALIDATION_LAYER] if has_validation else [],
            ppEnabledExtensionNames=["VK_EXT_debug_utils"] if has_validation else [],
        ),
        None,
    )
    messages: list[str] = []
    if has_validation:
        _listen(vk, instance, messages)
    devices: dict[str, Any] = {}
    for device in vk.vkEnumeratePhysicalDevices(instance):
        name = vk.vkGetPhysicalDeviceProperties(device).deviceName.lower()
        for driver, part in (("lavapipe", "llvmpipe"), ("swiftshader", "swiftshader")):
            if part in name:
                devices[driver] = device
    return Session(vk, instance, devices, messages, has_validation)


def _listen(vk: Any, instance: Any, messages: list[str]) -> None:
    def heard(severity: int, kind: int, data: Any, user: Any) -> int:
        messages.append(vk.ffi.string(data.pMessage).decode())
        return 0

    create = vk.vkGetInstanceProcAddr(instance, "vkCreateDebugUtilsMessengerEXT")
    create(
        instance,
        vk.VkDebugUtilsMessengerCreateInfoEXT(
            messageSeverity=(
                vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
                | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT
            ),
            messageType=(
                vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
                | vk.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT
            ),
            pfnUserCallback=heard,
        ),
        None,
    )


@cache
def device(driver: str) -> Device:
    """The device of `driver`; skips the test, saying why, where it is not there."""
    try:
        found = session()
    except (ImportError, OSError) as error:
        pytest.skip(f"vulkan is not there ({error}): {INSTALL}")
    if driver not in found.devices:
        pytest.skip(f"driver {driver} is not there: {INSTALL}")
    return Device(found, driver)


def extensions_of(vk: Any, physical: Any) -> list[str]:
    """Of the extensions behind `narrow_features`, those that the device has beside Vulkan 1.1."""
    there = {e.extensionName for e in vk.vkEnumerateDeviceExtensionProperties(physical, None)}
    wanted = ("VK_KHR_8bit_storage", "VK_KHR_shader_float16_int8")
    return [name for name in wanted if name in there]


def narrow_features(vk: Any, physical: Any) -> Any:
    """What a device has of 16-bit and 8-bit arithmetic and storage, to be enabled."""
    storage16 = vk.VkPhysicalDevice16BitStorageFeatures()
    storage8 = vk.VkPhysicalDevice8BitStorageFeatures(pNext=storage16)
    arithmetic = vk.VkPhysicalDeviceShaderFloat16Int8Features(pNext=storage8)
    vk.vkGetPhysicalDeviceFeatures2(physical, vk.VkPhysicalDeviceFeatures2(pNext=arithmetic))
    return arithmetic


def has_narrow_types(driver: str) -> bool:
    """Whether a driver has 16-bit and 8-bit arithmetic and storage."""
    found = narrow_features(session().vk, device(driver).physical)
    return bool(found.shaderFloat16 and found.shaderInt8)


def pack_params(kernel: Kernel, values: Mapping[str, float]) -> bytes:
    """The parameter block: a word each, floats as their bits."""
    words = []
    for param in kernel.params:
        value = values[param.name]
        if param.dtype.is_float:
            data = np.array(value, param.dtype.numpy).tobytes()
            words.append(int.from_bytes(data, "little"))
        else:
            words.append(int(value) & 0xFFFFFFFF)
    return struct.pack(f"<{len(words)}I", *words)


class Device:
    """A logical device with one compute queue and memory that the host sees."""

    def __init__(self, found: Session, driver: str) -> None:
        self.session = found
        self.vk = vk = found.vk
        self.driver = driver
        self.physical = found.devices[driver]
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
        self.handle = vk.vkCreateDevice(
            self.physical,
            vk.VkDeviceCreateInfo(
                pNext=narrow_features(vk, self.physical),
                queueCreateInfoCount=1,
                pQueueCreateInfos=[queue],
                ppEnabledExtensionNames=extensions_of(vk, self.physical),
            ),
            None,
        )
        self.queue = vk.vkGetDeviceQueue(self.handle, 0, 0)
        self.pool = vk.vkCreateCommandPool(
            self.handle, vk.VkCommandPoolCreateInfo(queueFamilyIndex=0), None
        )
        wanted = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        types = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)
        self.memory_type = next(
            n
            for n in range(types.memoryTypeCount)
            if types.memoryTypes[n].propertyFlags & wanted == wanted
        )

    def run(
        self,
        shader: Shader,
        buffers: Mapping[BufferClass, bytes],
        params: bytes,
        grid: tuple[int, int, int],
    ) -> dict[BufferClass, bytes]:
        """One dispatch; gives the class buffers as it leaves them.

        Raises:
            AssertionError: the validation layer spoke, or words behind a buffer changed.
        """
        assert len(params) == 4 * shader.param_words, "the parameter block has another length"
        with ExitStack() as stack:
            texels = {binding for binding, _ in shader.texels}
            classes = {
                binding: stack.enter_context(
                    self.buffer(buffers[binding], self.usage(is_texels=binding in texels))
                )
                for binding in sorted({*shader.bindings, *texels}, key=lambda b: b.value)
            }
            bound = {binding.value: classes[binding] for binding in shader.bindings}
            for binding, words in shader.texels:
                bound[texel_binding(binding, words)] = classes[binding]
            pushed = params
            if shader.param_buffer_bytes:
                block = b"\xa5" * 4 * _PARAM_BASE_WORDS + params
                block += b"\xa5" * (shader.param_buffer_bytes - len(block))
                bound[PARAM_BUFFER_BINDING] = stack.enter_context(
                    self.buffer(block, self.vk.VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT)
                )
                pushed = struct.pack("<I", _PARAM_BASE_WORDS)
            self.dispatch(stack, shader, bound, pushed, grid)
            after = {binding: buffer.read() for binding, buffer in classes.items()}
        heard = "\n".join(self.session.messages)
        self.session.messages.clear()
        assert not heard, f"{self.driver}: the validation layer says: {heard}"
        return after

    def usage(self, *, is_texels: bool) -> int:
        usage = int(self.vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
        if is_texels:
            usage |= int(self.vk.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT)
        return usage

    @contextmanager
    def buffer(self, data: bytes, usage: int) -> Iterator[DeviceBuffer]:
        vk = self.vk
        is_texels = usage & vk.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT
        padded = data + bytes(-len(data) % (16 if is_texels else 4))
        assert padded, "a buffer must not be empty"
        handle = vk.vkCreateBuffer(
            self.handle,
            vk.VkBufferCreateInfo(
                size=len(padded) + POISON_BYTES,
                usage=usage,
                sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
            ),
            None,
        )
        needs = vk.vkGetBufferMemoryRequirements(self.handle, handle)
        memory = vk.vkAllocateMemory(
            self.handle,
            vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=self.memory_type),
            None,
        )
        vk.vkBindBufferMemory(self.handle, handle, memory, 0)
        mapped = vk.vkMapMemory(self.handle, memory, 0, needs.size, 0)
        made = DeviceBuffer(handle, mapped, len(data), len(padded))
        mapped[: len(padded) + POISON_BYTES] = padded + bytes([POISON]) * POISON_BYTES
        try:
            yield made
        finally:
            vk.vkUnmapMemory(self.handle, memory)
            vk.vkDestroyBuffer(self.handle, handle, None)
            vk.vkFreeMemory(self.handle, memory, None)

    def dispatch(
        self,
        stack: ExitStack,
        shader: Shader,
        bound: Mapping[int, DeviceBuffer],
        pushed: bytes,
        grid: tuple[int, int, int],
    ) -> None:
        vk, handle = self.vk, self.handle
        layout, descriptor_layout = self.layout(stack, shader, bound)
        module = vk.vkCreateShaderModule(
            handle,
            vk.VkShaderModuleCreateInfo(codeSize=len(shader.words), pCode=shader.words),
            None,
        )
        stack.callback(vk.vkDestroyShaderModule, handle, module, None)
        stage = vk.VkPipelineShaderStageCreateInfo(
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName=shader.entry_point
        )
        pipeline = vk.vkCreateComputePipelines(
            handle, None, 1, [vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)], None
        )[0]
        stack.callback(vk.vkDestroyPipeline, handle, pipeline, None)
        commands = vk.vkAllocateCommandBuffers(
            handle,
            vk.VkCommandBufferAllocateInfo(
                commandPool=self.pool,
                level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            ),
        )
        stack.callback(vk.vkFreeCommandBuffers, handle, self.pool, 1, commands)
        command = commands[0]
        vk.vkBeginCommandBuffer(command, vk.VkCommandBufferBeginInfo())
        vk.vkCmdBindPipeline(command, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
        if bound:
            descriptors = self.descriptors(stack, descriptor_layout, bound)
            vk.vkCmdBindDescriptorSets(
                command, vk.VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, [descriptors], 0, None
            )
        if pushed:
            vk.vkCmdPushConstants(
                command,
                layout,
                vk.VK_SHADER_STAGE_COMPUTE_BIT,
                0,
                len(pushed),
                vk.ffi.new("char[]", pushed),
            )
        vk.vkCmdDispatch(command, *dispatch_grid(grid))
        vk.vkEndCommandBuffer(command)
        fence = vk.vkCreateFence(handle, vk.VkFenceCreateInfo(), None)
        stack.callback(vk.vkDestroyFence, handle, fence, None)
        vk.vkQueueSubmit(self.queue, 1, [vk.VkSubmitInfo(pCommandBuffers=[command])], fence)
        vk.vkWaitForFences(handle, 1, [fence], True, 10**11)

    def layout(
        self, stack: ExitStack, shader: Shader, bound: Mapping[int, DeviceBuffer]
    ) -> tuple[Any, Any]:
        """The pipeline's layout and that of descriptor set 0."""
        vk, handle = self.vk, self.handle
        bindings = [
            vk.VkDescriptorSetLayoutBinding(
                binding=number,
                descriptorType=self.kind(number),
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for number in sorted(bound)
        ]
        descriptor_layout = vk.vkCreateDescriptorSetLayout(
            handle, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None
        )
        stack.callback(vk.vkDestroyDescriptorSetLayout, handle, descriptor_layout, None)
        ranges = (
            [
                vk.VkPushConstantRange(
                    stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
                    offset=0,
                    size=shader.push_constant_bytes,
                )
            ]
            if shader.push_constant_bytes
            else []
        )
        layout = vk.vkCreatePipelineLayout(
            handle,
            vk.VkPipelineLayoutCreateInfo(
                pSetLayouts=[descriptor_layout], pPushConstantRanges=ranges
            ),
            None,
        )
        stack.callback(vk.vkDestroyPipelineLayout, handle, layout, None)
        return layout, descriptor_layout

    def kind(self, binding: int) -> int:
        vk = self.vk
        return int(
            vk.VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
            if binding == PARAM_BUFFER_BINDING
            else vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
            if binding > PARAM_BUFFER_BINDING
            else vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        )

    def descriptors(self, stack: ExitStack, layout: Any, bound: Mapping[int, DeviceBuffer]) -> Any:
        vk, handle = self.vk, self.handle
        sizes = [
            vk.VkDescriptorPoolSize(type=self.kind(number), descriptorCount=1)
            for number in sorted(bound)
        ]
        pool = vk.vkCreateDescriptorPool(
            handle, vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=sizes), None
        )
        stack.callback(vk.vkDestroyDescriptorPool, handle, pool, None)
        allocated = vk.vkAllocateDescriptorSets(
            handle, vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[layout])
        )[0]
        writes = [
            vk.VkWriteDescriptorSet(
                dstSet=allocated,
                dstBinding=number,
                dstArrayElement=0,
                descriptorCount=1,
                descriptorType=self.kind(number),
                **self.contents(stack, number, bound[number]),
            )
            for number in sorted(bound)
        ]
        vk.vkUpdateDescriptorSets(handle, len(writes), writes, 0, None)
        return allocated

    def contents(self, stack: ExitStack, binding: int, buffer: DeviceBuffer) -> dict[str, Any]:
        """What of a buffer is bound: all of it but the poison."""
        vk, size = self.vk, buffer.padded_bytes
        if binding <= PARAM_BUFFER_BINDING:
            whole = vk.VkDescriptorBufferInfo(buffer=buffer.handle, offset=0, range=size)
            return {"pBufferInfo": [whole]}
        is_quads = binding < texel_binding(BufferClass.CONSTANTS, 1)
        view = vk.vkCreateBufferView(
            self.handle,
            vk.VkBufferViewCreateInfo(
                buffer=buffer.handle,
                format=vk.VK_FORMAT_R32G32B32A32_UINT if is_quads else vk.VK_FORMAT_R32_UINT,
                offset=0,
                range=size,
            ),
            None,
        )
        stack.callback(vk.vkDestroyBufferView, self.handle, view, None)
        return {"pTexelBufferView": [view]}


def dispatch_grid(grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The workgroups to dispatch for a kernel's grid, as `aot/backends/vulkan/shader.py` has it."""
    x, y, z = grid
    return grid if x <= GRID_ROW else (GRID_ROW, y, z * -(-x // GRID_ROW))


@dataclass
class DeviceBuffer:
    """Mapped memory of `data_bytes`, padded to whole words, with poison behind."""

    handle: Any
    mapped: Any
    data_bytes: int
    padded_bytes: int

    def read(self) -> bytes:
        data = bytes(self.mapped[: self.padded_bytes + POISON_BYTES])
        assert data[self.padded_bytes :] == bytes([POISON]) * POISON_BYTES, (
            "a shader wrote behind its buffer"
        )
        return data[: self.data_bytes]


def as_array(data: bytes, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The elements at the start of `data`."""
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(data, dtype.numpy, count).reshape(shape)
