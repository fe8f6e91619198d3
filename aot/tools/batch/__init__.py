"""`aotc build`: many modules from one file, each for itself, skipped where it is up to date.

Must not know more of a compile than its public call.
"""
