"""Targets: descriptions of devices, one TOML file each.

Owns the target record, the reading and checking of target files, the choice among them, and what
this machine's CPU has. Must not know passes, kernels or backends.

Files:
    model, toml, selection: the record of a target; its file read and checked; lookup by name and
        the host's choice
    files: where the shipped targets' files are, and their names
    host_cpu, implied_features: features of this machine's CPU; features that a CPU's name brings
        along
"""
