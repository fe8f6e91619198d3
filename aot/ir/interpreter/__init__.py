"""The reference interpreter: runs the graph of any stage in numpy, as the oracle of every backend.

Owns evaluation and memory that several values alias. Must not optimise.
"""
