"""The Vulkan backend: kernel IR to SPIR-V 1.3 for Vulkan 1.1. Knows nothing of the CPU backend."""
