"""The order of the stages: from a model to the image of a module, and what was counted meanwhile.

Owns the pipeline, a variant's stages, which executables a GPU's host runs, and the ledger of
deduplication. Must not hold an algorithm of a stage.
"""
