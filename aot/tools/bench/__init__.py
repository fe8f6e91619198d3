"""Measuring modules: `aotc bench`, dispatch by dispatch, cold starts, and what shaders cost.

Owns what `aot-run`'s times mean. Must not decide how anything is compiled.
"""
