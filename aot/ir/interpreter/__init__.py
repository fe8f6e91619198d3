"""The reference interpreter: runs any stage's graph in numpy, and is the oracle of every backend.

Owns evaluation and memory that several values alias. Must not optimise.
"""
