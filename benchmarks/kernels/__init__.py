"""Kernels by themselves, beside what the machine could do at best (see README.md)."""
