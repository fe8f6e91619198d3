"""What users do with models and modules beside compiling: inspect, merge, verify, explain.

Owns facts and their text. Must not change what a compile does.
"""
