"""Passes that form dispatch regions and executables: merging siblings, fusing, joining, outlining.

Own what becomes one dispatch. Must not change what ops compute.
"""
