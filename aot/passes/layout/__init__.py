"""Passes that choose and propagate layouts: layout assignment, lazily resolved shapes, packed
weights.

Must not form regions.
"""
