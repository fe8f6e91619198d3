"""Importers: each maps a model format to ops, with names that lead back, and optimises nothing."""
