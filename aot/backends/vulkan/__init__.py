"""The Vulkan backend: kernel IR to SPIR-V 1.3 for Vulkan 1.1.

Owns shaders and what a device must have for them. Knows nothing of the CPU backend.
"""
