"""Builds loops for a region: one scalar expression per element, the grid, borders, tiles and
stages.

Owns what every rule builds from. Must not choose a rule: the table does.
"""
