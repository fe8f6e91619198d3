"""The entries of ONNX's operators, by family; each builds our ops from a node's attributes and
operands.

Own what ONNX means. Must not optimise.
"""
