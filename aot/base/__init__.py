"""What any package may stand on: plain classes.

Owns what knows nothing of models, graphs or devices, and imports nothing of `aot`. What only some
packages share belongs to the lowest of them, not here.
"""
