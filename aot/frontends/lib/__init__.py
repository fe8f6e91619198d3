"""Decompositions shared by all importers: from concepts common to model formats to our ops.

Must not know a format: what an attribute is called, or what is absent, is its importer's to say.
"""
