"""Benchmarks of modules: `aotc bench`, times by dispatch, cold starts, and the compile times of
shaders.

Owns what `aot-run`'s times mean. Must not decide how anything is compiled.
"""
