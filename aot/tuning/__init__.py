"""Tuning: measures candidate schedules of executables, and records the results in a file.

Owns measuring and its cache. Must not decide what candidates there are, nor apply what it found.

Files:
    tuner, session: which executables are measured, and when; what counts as faster
    module, runner: modules made for measuring; running them here or by the user's command
    cache: the file of records
"""
