"""Code generators, from kernel IR to machine code or shader words; they are independent of each
other.

Files:
    registry, code: the `Backend` protocol: kernels and a target in, code out; which backend serves
        a target
    sources: hashes of the compiler's own sources, which are part of cache keys
    cpu, vulkan: machine code by LLVM; SPIR-V
"""
