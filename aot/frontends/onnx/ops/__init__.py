"""ONNX's operators by family: an entry each, from a node's attributes and operands to our ops.

Own what ONNX means. Must not optimise.
"""
