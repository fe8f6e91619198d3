"""Decompositions that any importer may use: from what formats have in common to our ops.

Must not know a format: what an attribute is called, or what is absent, is its importer's to say.
"""
