"""The Vulkan backend: kernel IR to SPIR-V 1.3 for Vulkan 1.1. Knows nothing of the CPU backend."""

from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.limits import LimitError
from aot.backends.vulkan.shader import Shader

__all__ = ["LimitError", "Shader", "compile_kernel"]
