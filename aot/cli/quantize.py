"""`aotc quantize`: its options, and what it prints of the result."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from aot.cli.compile import shown_progress
from aot.cli.text import table
from aot.errors import one_line

if TYPE_CHECKING:
    from aot.tools.quantisation import Quantised

SHOWN = 10  # layers


def _numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, ...] | None:
    """Parses numbers with commas between them; None of None."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not numbers with commas between") from None


@click.command(name="quantize")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", required=True, metavar="FILE.onnx", help="The model to write.")
@click.option(
    "--calibrate",
    required=True,
    metavar="PATH",
    help="Inputs as the model will see them: a folder of .npz files with an array an input, or of "
    ".npy files or pictures where there is one input; or one such file, of several samples.",
)
@click.option(
    "--mean",
    callback=_numbers,
    metavar="N[,N,N]",
    help="Of pictures, (pixel - mean) * scale: one number, or of red, green and blue.",
)
@click.option(
    "--scale",
    callback=_numbers,
    metavar="N[,N,N]",
    help="The same; pixels are 0 to 255.",
)
@click.option("--layout", type=click.Choice(["nchw", "nhwc"]), help="Dims of a picture's input.")
@click.option(
    "--weights",
    type=click.Choice(["int8", "int4"]),
    default="int8",
    show_default=True,
    help="int4: those of matrix products, by blocks; all else stays in floats.",
)
@click.option(
    "--activations",
    type=click.Choice(["int8", "dynamic", "none"]),
    default="int8",
    show_default=True,
    help="int8: steps found on the calibration data, or by each run with weights by blocks; "
    "dynamic: found by each run; none: floats, with weights by blocks.",
)
@click.option(
    "--block-size",
    type=int,
    default=32,
    show_default=True,
    metavar="N",
    help="Weights of a block that share a step.",
)
@click.option(
    "--skip", multiple=True, metavar="NODE", help="A node that stays in floats; repeatable."
)
@click.option(
    "--skip-below",
    type=float,
    default=10.0,
    show_default=True,
    metavar="DB",
    help="Layers whose signal to noise is below stay in floats; -inf: none.",
)
@click.option(
    "--per-channel/--per-tensor",
    default=True,
    show_default=True,
    help="Steps of the weights: one for each output channel, or one.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def quantize(
    model: str,
    output: str,
    calibrate: str,
    mean: tuple[float, ...] | None,
    scale: tuple[float, ...] | None,
    layout: str | None,
    weights: str,
    activations: str,
    block_size: int,
    skip: tuple[str, ...],
    skip_below: float,
    per_channel: bool,
    as_json: bool,
) -> None:
    """Quantise an ONNX model in float32 to 8 or 4 bits, on data of yours.

    \b
    Examples:
      aotc quantize model.onnx --calibrate data/ -o model.q.onnx
      aotc quantize model.onnx --calibrate photos/ --mean 127.5 --scale 0.00784
                    --layout nchw -o model.q.onnx
      aotc quantize model.onnx --calibrate data.npz --skip-below 20 -o model.q.onnx
      aotc quantize bert.onnx --calibrate data.npz --activations dynamic -o bert.q.onnx
      aotc quantize llm.onnx --calibrate data.npz --weights int4 -o llm.q.onnx

    Needs onnxruntime. docs/use/quantised.md says what to look at in the result.
    """
    from aot.tools.pictures import pictures_of
    from aot.tools.quantisation import quantize as make

    with shown_progress(f"quantising {model}"):
        result = make(
            model,
            output,
            calibrate,
            pictures=pictures_of(mean, scale, layout),
            weights=weights,
            activations=activations,
            block_size=block_size,
            skip=skip,
            skip_below=skip_below,
            per_channel=per_channel,
        )
    click.echo(_json(result) if as_json else _text(result))


def _json(result: Quantised) -> str:
    fields = dataclasses.asdict(result)
    return json.dumps({**fields, "path": str(result.path)}, indent=2)


def _text(result: Quantised) -> str:
    kilobytes = f"{result.float_bytes / 1000:,.0f} -> {result.quantised_bytes / 1000:,.0f} kB"
    lines = [f"{result.path}: {kilobytes}, calibrated on {result.samples} samples"]
    total = sum(result.multiply_adds.values())
    for reason, amount in result.multiply_adds.items():
        lines.append(f"  {100 * amount / max(total, 1):.1f} % of multiply-adds {_place(reason)}")
    for name, snr in result.outputs.items():
        lines.append(f"  output {one_line(name)}: signal to noise {snr:.1f} dB")
    if result.skipped:
        lines.append(f"  in floats: {', '.join(map(one_line, result.skipped))}")
    rows = [(f"{e.snr_db:.1f}", e.op, e.name) for e in result.layers[:SHOWN]]
    if rows:
        lines += ["", "layers with the largest errors:"]
        lines.append(table(("dB", "op", "node"), rows, right="dB"))
    return "\n".join(lines)


def _place(reason: str) -> str:
    return reason if reason.startswith("in ") else f"in floats: {reason}"
