"""The lowest package: the decorator for record classes, which every other package uses.

Owns what knows nothing of models, graphs or devices, and imports nothing of `aot`. What only some
packages share belongs to the lowest of them, not here.
"""
