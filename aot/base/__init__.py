"""The bottom of the packages: the decorator of plain classes, which every package uses.

Owns what knows nothing of models, graphs or devices, and imports nothing of `aot`. What only some
packages share belongs to the lowest of them, not here.
"""
