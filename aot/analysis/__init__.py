"""Facts about a graph that passes, kernels and the linker share; analyses change nothing.

Owns access maps, dispatches, stages and dim values; aliasing, costs and memory have packages of
their own. Must not mutate a function.
"""
