"""Passes: graph to graph, one a file; `order` has the two lists, the one place of their order.

Own what becomes of a graph. Must not know how kernels are lowered, compiled or linked.
"""
