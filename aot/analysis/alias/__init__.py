"""Alias analysis: which values may share memory, who writes it, and which code motion that permits.

Owns the alias database and its solver, which follow rewrites. Must not decide what to rewrite.

Files:
    database: answers queries; built once for a function, updated as it changes
    effects, facts: what an op does to memory; what is known of a function's memory
    points_to, location_sets: the graph of values and the memory that each may be, solved; sets of
        locations
    write_db, write_order: writes by location and by op; whether memory changes between two ops
    lint: compares an updated database with a rebuilt one, for tests
"""
