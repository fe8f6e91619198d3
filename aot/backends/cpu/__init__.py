"""The CPU backend: compiles kernel IR through LLVM to objects of one function each, without
undefined symbols.

Owns LLVM text, objects and their cache. Knows nothing of the Vulkan backend. Importing it loads
nothing, so that commands that only ask the cache stay quick.

Files:
    backend, codegen, object_cache: the `Backend`; objects from the cache or from LLVM; the cache
    compile, llvm, workers: from a kernel to LLVM IR text; LLVM; processes that run it and import
        nothing of `aot`
    assembler, traits, scopes, lanes: LLVM IR as text; a target's instructions; values that are
        known; values in vector loops
    statements, expressions, arithmetic, convert: what kernel IR becomes
    addresses, memory, scratch, ranges: addresses of elements; loads and stores; scratch; ranges of
        indices
    gathered, picked, transposed, byte_tables: loads of scattered elements by vectors of neighbours
        and shuffles; table lookups
    dot_products, quantising: sums of products of packed words; rounding to 8 and 16 bits
"""
