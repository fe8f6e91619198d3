"""Passes that choose and carry on layouts: assignment, lazily resolved shapes, packed weights.

Must not form regions.
"""
