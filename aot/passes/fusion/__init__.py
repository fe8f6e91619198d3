"""Passes that form dispatch regions and executables: merging, fusing, joining, outlining.

Own what becomes one dispatch. Must not change what ops compute.
"""
