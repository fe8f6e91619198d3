"""Importers: each translates a model format to ops, keeps the model's names for messages, and
optimises nothing.

Files:
    registry: a record for each file format: how files are recognised, who reads them and binds
        inputs
    text: text IR as an input
    lib: decompositions that any importer uses, on a `GraphBuilder`
    onnx, torch, tflite, gguf: the importers: an entry for each operator in `ops`; architectures of
        decoders in gguf
"""
