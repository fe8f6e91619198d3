"""Passes that decide which values share memory: writes as values, views, concatenations, states.

Must not place bytes: the linker does.
"""
