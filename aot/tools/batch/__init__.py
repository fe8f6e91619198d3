"""`aotc build`: compiles many modules from one file, independently, and skips those that are up to
date.

Must not know more of a compile than its public call.
"""
