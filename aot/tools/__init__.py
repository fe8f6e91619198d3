"""Tools on models and modules besides compiling: inspect, merge, verify, benchmark, quantise.

Owns facts and their text. Must not change what a compile does.

Files:
    inspection, explain_fusion, ledger_text, devices: texts and JSON of `aotc inspect`,
        `explain-dedup` and `devices`
    merging, upgrading: `aotc merge` and `aotc upgrade`
    comparison, traces: `aotc report compare`; compiles and benchmarks as traces for Perfetto
    verification, module_verification, oracles, agreement, rounding: `aotc verify`: the engine of a
        model's format, the measure of agreement, what roundings explain
    text_verification: `aotc verify` of language modules, which read a text
    onnx_engine, torch_engine, litert_engine, llama_engine, reference_engine: the engines that
        results are compared with
    engines, engine_errors: other engines by turns, for benchmarks; how engines fail
    open_extents, string_numbers: extents of inputs that follow from others; strings of engines as
        numbers
    quantisation, calibration, block_quantisation, pictures, onnx_export: `aotc quantize`: the
        quantised model, the data and the models that it takes
    bench, batch: `aotc bench` and `aotc build`
"""
