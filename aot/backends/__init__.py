"""Code generators: kernel IR in, machine code or shader words out; neither knows the other.

Files:
    registry, code: the `Backend` protocol: kernels and a target in, code out; which backend serves
        a target
    sources: hashes of the compiler's own sources, which are part of cache keys
    cpu, vulkan: machine code by LLVM; SPIR-V
"""
