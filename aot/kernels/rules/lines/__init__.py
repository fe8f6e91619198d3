"""Rules of ops that go along lines of elements in order: scans, scatters, sorts, suppression.

Must not be asked of a region: such an op is an executable by itself.
"""
