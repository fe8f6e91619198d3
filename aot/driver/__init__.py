"""The driver: runs all stages from a model to a module image, and collects their statistics.

Owns the pipeline, a variant's stages, which executables a GPU's host runs, and the ledger of
deduplication. Must not hold an algorithm of a stage.

Files:
    pipeline, variant: the order of the stages; the stages of a variant after its passes
    kernels, proofs: the kernels of a variant; the proof of each that it stays inside its memory
    cpu_fallback: executables of a Vulkan variant that run on the CPU
    prefix: a language module's prefix: its text, its tokens, and the states behind them
    models: several models of one compile: names, options, one module
    provenance: command line, machine, date and versions, for reports
    observer, clock, ledger, missed_merges: the protocol by which a report gets decisions; seconds
        by stage; what deduplication saved
"""
