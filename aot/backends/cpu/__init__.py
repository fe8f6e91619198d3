"""The CPU backend: kernel IR to objects through LLVM, one function each, nothing undefined.

Owns LLVM text, objects and their cache. Knows nothing of the Vulkan backend. Importing it loads
nothing, so that commands that only ask the cache stay quick.
"""
