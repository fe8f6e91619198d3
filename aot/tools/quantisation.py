"""Post-training quantisation of ONNX models with ONNX Runtime's quantiser.

Owns what goes in and what is reported of the result: the error of each layer and output, measured
on the calibration data. The numbers of the quantised model are those of our own compile, because
engines may saturate sums on CPUs that lack instructions for them.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from aot import api
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir.types import Array
from aot.link.files import write_atomically
from aot.tools.block_quantisation import quantise_weights
from aot.tools.calibration import InputSpec, Sample, samples_in, samples_of
from aot.tools.engine_errors import first_line
from aot.tools.engines import check_onnx
from aot.tools.onnx_engine import numpy_name
from aot.tools.onnx_export import export, is_module
from aot.tools.pictures import Pictures

# samples on which errors are measured: each keeps what all layers compute
MEASURED = 4
LEAST_OPSET = 13  # the first whose DequantizeLinear has an axis
EXACT_DB = 200.0  # of what does not differ
# layers below stay in floats: the difference is a third of the signal
LEAST_DB = 10.0
_ROUNDS = 2  # how often layers with too large an error are left out


@dataclass(frozen=True)
class LayerError:
    """The error of a quantised layer's result, relative to the float model's.

    Attributes:
        name: of the node.
        op: its operator.
        snr_db: the signal's power over that of the difference, in decibels.
    """

    name: str
    op: str
    snr_db: float


@dataclass(frozen=True)
class Quantised:
    """The outcome of `quantize`.

    Attributes:
        layers: largest error first.
        outputs: signal to noise of each output of the compiled model, in decibels.
        skipped: nodes that stayed in floats, by name.
        samples: how many the calibration data has.
        float_bytes, quantised_bytes: sizes of the two ONNX files.
        multiply_adds: of the quantised model by why they are not in integers; those that are under
            "in integers".
    """

    path: Path
    layers: tuple[LayerError, ...]
    outputs: Mapping[str, float]
    skipped: tuple[str, ...]
    samples: int
    float_bytes: int
    quantised_bytes: int
    multiply_adds: Mapping[str, int]


def quantize(
    model: str | os.PathLike[str] | Any,
    output: str | os.PathLike[str],
    calibration: str | os.PathLike[str] | Iterable[Sample],
    *,
    pictures: Pictures | None = None,
    weights: str = "int8",
    activations: str = "int8",
    block_size: int = 32,
    skip: Sequence[str] = (),
    skip_below: float = LEAST_DB,
    per_channel: bool = True,
) -> Quantised:
    """Quantises a model and writes it: weights to i8 and activations to u8, as QuantizeLinear and
    DequantizeLinear; or weights of products alone, in blocks (MatMulNBits).

    Args:
        model: an ONNX file in float32; or a `torch.nn.Module`, with samples by the names of its
            forward's parameters.
        output: the ONNX file to write.
        calibration: a folder or a file, see `aot.tools.calibration.samples_of`; or mappings from
            the names of inputs to arrays, of one sample or several each.
        pictures: how the pictures of a folder become numbers.
        weights: "int8"; or "int4", by blocks.
        activations: "int8", with steps found on the calibration data, or by each run for each block
            of weights by blocks; "dynamic", with steps that each run finds; "none": they stay
            floats, and weights are in blocks.
        block_size: weights of a block: a power of two of 16 or more.
        skip: names of nodes that stay in floats.
        skip_below: layers whose signal to noise is below so many decibels stay in floats, too;
            -inf for none.
        per_channel: a step for each output channel of the weights, rather than one for all.

    Raises:
        CompileError: the model or the data cannot be read, a name is of no node, or ONNX Runtime
            cannot quantise the model; nothing is written then.
    """
    if find_spec("onnxruntime") is None:
        raise CompileError("quantising needs onnxruntime: pip install 'aotc[quantize]'")
    in_blocks = weights == "int4" or activations == "none"
    if in_blocks and (activations == "dynamic" or not per_channel):
        raise CompileError(
            "weights by blocks have steps of their own: neither dynamic nor per tensor"
        )
    if block_size < 16 or block_size & (block_size - 1):
        raise CompileError(f"block size is {block_size}, expected a power of two of 16 or more")
    bits = 0 if not in_blocks else 4 if weights == "int4" else 8
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder, _quietly():
        path, given = _as_file(model, calibration, Path(folder))
        job = _Job(path, activations, per_channel, bits, block_size)
        unknown = [name for name in skip if name not in job.names]
        if unknown:
            raise CompileError(f"no node is called {unknown[0]!r}, which is to stay in floats")
        if isinstance(given, str | os.PathLike):
            samples = samples_of(given, job.inputs, pictures)
        else:
            samples = samples_in(given, job.inputs)
        made, found = _quantised(job, samples, skip, skip_below, Path(folder))
        data = made.read_bytes()
        sizes = path.stat().st_size, len(data)
    write_atomically(output, [data])
    return Quantised(Path(output), **found, float_bytes=sizes[0], quantised_bytes=sizes[1])


def _as_file(
    model: Any, calibration: Any, folder: Path
) -> tuple[Path, str | os.PathLike[str] | Iterable[Sample]]:
    """(ONNX file of a model, calibration data); a PyTorch module is exported into the folder
    first."""
    if not is_module(model):
        if not Path(model).is_file():
            raise CompileError(f"cannot read {os.fspath(model)}: no such file")
        check_onnx("onnxruntime", model)
        return Path(model), calibration
    if isinstance(calibration, str | os.PathLike):
        raise CompileError(
            "the inputs of a module are not known: give mappings from the names of its forward's "
            "parameters to arrays as calibration data"
        )
    given = [{name: np.asarray(a) for name, a in sample.items()} for sample in calibration]
    if not given:
        raise CompileError("the calibration data has no samples")
    path = folder / "module.onnx"
    export(model, given[0], path)
    return path, given


def _quantised(
    job: _Job, samples: Sequence[Sample], skip: Sequence[str], skip_below: float, folder: Path
) -> tuple[Path, dict[str, Any]]:
    """(path of the quantised model, attributes of a `Quantised`)."""
    measured = samples[:MEASURED]
    skipped = list(dict.fromkeys(skip))
    made = folder / "quantised.onnx"
    source = job.prepared(folder)
    floats = _activations(source, measured)
    for number in range(_ROUNDS + 1):
        job.run(source, made, samples, skipped)
        layers = _layers(source, floats, _activations(made, measured))
        bad = [e.name for e in layers if e.snr_db < skip_below and e.name not in skipped]
        if not bad or number == _ROUNDS:
            break
        skipped += bad
    outputs, sums = _measure(job.session, made, measured)
    return made, {
        "layers": tuple(layers),
        "outputs": outputs,
        "skipped": tuple(skipped),
        "samples": len(samples),
        "multiply_adds": sums,
    }


@contextmanager
def _quietly() -> Iterator[None]:
    """A context without ONNX Runtime's warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _Reader:
    """An iterator over samples, with the interface that ONNX Runtime's quantiser needs."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._left: Iterator[Sample] = iter(samples)

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> dict[str, Array]:
        return dict(next(self._left))

    def get_next(self) -> dict[str, Array] | None:
        sample = next(self._left, None)
        return None if sample is None else dict(sample)


class _Job:
    """The quantisation of one model."""

    def __init__(
        self, model: Path, activations: str, per_channel: bool, bits: int, block_size: int
    ) -> None:
        import onnx
        import onnxruntime

        self.model = model
        self.activations = activations
        self.per_channel = per_channel
        self.bits = bits  # of weights by blocks; 0 where they are not
        self.block_size = block_size
        try:
            graph = onnx.load(os.fspath(model), load_external_data=False).graph
            self.session = onnxruntime.InferenceSession(
                os.fspath(model), _plain_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise CompileError(f"cannot read {model}: {first_line(error)}") from None
        self.names = {node.name for node in graph.node if node.name}
        self.inputs = [
            InputSpec(
                info.name,
                np.dtype(numpy_name(info.type)),
                tuple(d if isinstance(d, int) else None for d in info.shape),
                info.shape[0] if info.shape and isinstance(info.shape[0], str) else "",
            )
            for info in self.session.get_inputs()
        ]

    def run(
        self, source: Path, made: Path, samples: Sequence[Sample], skipped: Sequence[str]
    ) -> None:
        """Quantises the model `source` that `prepared` returned, except the skipped nodes, and
        writes it to `made`.

        Raises:
            CompileError: with ONNX Runtime's reason.
        """
        from onnxruntime import quantization as q

        if self.bits:
            self._in_blocks(source, made, skipped)
            return
        common: dict[str, Any] = {
            "weight_type": q.QuantType.QInt8,
            "per_channel": self.per_channel,
            "nodes_to_exclude": list(skipped),
        }
        try:
            if self.activations == "dynamic":
                q.quantize_dynamic(source, made, **common)
            else:
                q.quantize_static(
                    source,
                    made,
                    _Reader(samples),
                    quant_format=q.QuantFormat.QDQ,
                    activation_type=q.QuantType.QUInt8,
                    **common,
                )
        except Exception as error:
            raise CompileError(
                f"ONNX Runtime cannot quantise {self.model}: {first_line(error)}"
            ) from None

    def _in_blocks(self, source: Path, made: Path, skipped: Sequence[str]) -> None:
        import onnx

        model = onnx.load(os.fspath(source))
        rounds = self.activations != "none"
        found = quantise_weights(
            model, self.bits, self.block_size, skipped, rounds_activations=rounds
        )
        if not found:
            raise CompileError(
                f"{self.model}: no MatMul or Gemm has constant weights of at least "
                f"{self.block_size} rows, which could be quantised by blocks"
            )
        onnx.save(model, made)

    def prepared(self, folder: Path) -> Path:
        """The model converted to an opset with per-channel scales; shapes are inferred and
        constants folded where possible.

        Raises:
            CompileError: it cannot be brought into that opset.
        """
        import onnx
        from onnxruntime.quantization.shape_inference import quant_pre_process

        model = onnx.load(os.fspath(self.model))
        opset = max((o.version for o in model.opset_import if not o.domain), default=0)
        source, prepared = folder / "converted.onnx", folder / "prepared.onnx"
        try:
            if opset < LEAST_OPSET:
                model = onnx.version_converter.convert_version(model, LEAST_OPSET)
            onnx.save(model, source)
        except Exception as error:
            raise CompileError(
                f"cannot bring {self.model} from opset {opset} to {LEAST_OPSET}, which "
                f"quantising needs: {first_line(error)}"
            ) from None
        try:
            quant_pre_process(os.fspath(source), os.fspath(prepared))
        except Exception:  # of what cannot be inferred; all that follows does without
            return source
        return prepared


Activations = Mapping[str, Sequence[Array]]
"""What is computed on each sample, by the name of the value."""


def _activations(model: Path, samples: Sequence[Sample]) -> Activations:
    """The values of all tensors in an ONNX model, for each sample."""
    from onnxruntime.quantization import qdq_loss_debug as debug

    opened = model.with_name(f"{model.stem}.opened.onnx")
    debug.modify_model_output_intermediate_tensors(os.fspath(model), os.fspath(opened))
    found: Activations = debug.collect_activations(
        os.fspath(opened), _Reader(samples), session_options=_plain_options()
    )
    return found


def _layers(source: Path, floats: Activations, others: Activations) -> list[LayerError]:
    """The error of each layer that both models have, largest first."""
    import onnx
    from onnxruntime.quantization.qdq_loss_debug import DEQUANT_OUTPUT_SUFFIX

    found = []
    nodes = onnx.load(os.fspath(source), load_external_data=False).graph.node
    # an activation that a quantised range does is gone from the quantised model
    after = {n.input[0]: n.output[0] for n in nodes if n.op_type in _ACTIVATIONS}
    for node in (n for n in nodes if n.op_type in _LAYERS):
        for name in (node.output[0], after.get(node.output[0], "")):
            other = others.get(name + DEQUANT_OUTPUT_SUFFIX, others.get(name))
            if name in floats and other is not None:
                error = _snr(floats[name], other)
                found.append(LayerError(node.name or name, node.op_type, error))
                break
    return sorted(found, key=lambda layer: layer.snr_db)


_ACTIVATIONS = frozenset({"Relu", "Clip"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def _plain_options() -> Any:
    """ONNX Runtime options without graph optimisations: fused integer sums would saturate, while
    float sums of dequantised values do not.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return options


def _measure(
    session: Any, made: Path, samples: Sequence[Sample]
) -> tuple[dict[str, float], dict[str, int]]:
    """(signal-to-noise ratio by output, multiply-adds) of our compile of the quantised model,
    measured against the float model."""
    compiled = api.compile(made)
    names = [info.name for info in session.get_outputs()]
    wanted: dict[str, list[Array]] = {name: [] for name in names}
    found: dict[str, list[Array]] = {name: [] for name in names}
    with api.load(compiled) as program:
        for sample in samples:
            results = program(dict(sample))
            for name, value in zip(names, session.run(names, dict(sample)), strict=True):
                wanted[name].append(np.asarray(value))
                found[name].append(np.asarray(results[name]))
    (variant,) = compiled.stats["variants"]
    sums = {str(k): int(v) for k, v in variant.get("multiply_adds", {}).items()}
    return {name: _snr(wanted[name], found[name]) for name in names}, sums


def _snr(wanted: Sequence[Array], found: Sequence[Array]) -> float:
    """The signal-to-noise ratio in dB over all samples."""
    signal = noise = 0.0
    for a, b in zip(wanted, found, strict=True):
        exact = a.astype(np.float64)
        signal += float(np.square(exact).sum())
        noise += float(np.square(exact - b.astype(np.float64)).sum())
    if noise == 0:
        return EXACT_DB
    if signal == 0:
        return -EXACT_DB
    return min(EXACT_DB, 10 * float(np.log10(signal / noise)))
