"""Lowering rules of windowed ops: pools, depthwise and grouped convolutions, resizes.

Owns how lines of an input are brought into scratch for them.
"""
