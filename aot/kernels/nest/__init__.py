"""From a region to loops: one scalar expression an element, the grid, borders, tiles and stages.

Owns what every rule builds from. Must not choose a rule: the table does.
"""
