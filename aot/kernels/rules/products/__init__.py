"""Rules of products: matrix products and convolutions by register tiles, on CPUs and GPUs.

Owns the tiles, their operands and what becomes of their sums.
"""
