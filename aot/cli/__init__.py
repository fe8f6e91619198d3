"""The command `aotc`: arguments in, text out. The only part that prints.

Owns options, help and exit codes. Must not compute what the API does not.
"""
