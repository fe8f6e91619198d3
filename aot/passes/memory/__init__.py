"""Passes that decide what shares memory: writes as values, views, concatenations, kept states.

Must not place bytes: the linker does.
"""
