"""From a region to kernel IR: one scalar expression an element, loops around it, borders and tiles.

Owns what every schedule uses. Must not choose a schedule: the plan does.
"""
