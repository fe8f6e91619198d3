"""The Python binding of the C runtime: loading modules, running programs, devices, inputs.

Knows the runtime's interface. Must not import anything of the compiler.
"""
