"""The Vulkan backend: kernel IR to SPIR-V 1.3 for Vulkan 1.1.

Owns shaders and what a device must have for them. Knows nothing of the CPU backend.

Files:
    backend, shader, requirements, limits: the `Backend`; a shader with its interface; what a device
        must have; kernels beyond limits
    assembler, spirv, type_rules, values: SPIR-V as words; its numbers; the types that instructions
        want; values under construction, folded and numbered
    emit, expressions, placement, parameters: what kernel IR becomes; which loops are unrolled; the
        parameter block
    elements, memory, scratch_memory, texels, peers: elements in memory and in registers; buffers;
        scratch; texel buffers; loads shared by lanes
    vectors, subgroups, dot_products, matrices: vec4 instructions; subgroup operations; products of
        bytes; cooperative matrices
    wide_integers, quotients: 64-bit integers as pairs of words; quotients of inexact drivers
"""
