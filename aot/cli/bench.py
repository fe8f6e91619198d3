"""`aotc bench`: its options, and its tables for people.

Text only: what is measured is `aot.tools.bench.benchmark`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aot.cli.commands import command_line
from aot.cli.compile import REPORT_OPTION, TRACE_OPTION, check_report, module_path, shown_progress
from aot.cli.text import NamedArray, NamedShape, Pair, Threads, show_facts, table, to_mapping

if TYPE_CHECKING:
    from aot.tools.bench.benchmark import Case

PHASES = ("exec", "open", "verify", "map", "inputs", "prepare", "first_run")
ENGINE_NAMES = ("onnxruntime", "openvino")


@click.command()
@click.argument("module", type=click.Path())
@click.option("--threads", type=Threads(), default=1, show_default=True)
@click.option(
    "--runs", type=click.IntRange(min=1), default=10, show_default=True, help="Timed, at least."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    help="Goes on with timed runs for at least so long; with --against, a turn.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=NamedArray(allow_random=True),
    help="An input: FILE.npy, a number, a JSON list, or random (the default).",
)
@click.option(
    "--shape",
    "input_sizes",
    multiple=True,
    type=NamedShape(is_static=True),
    help="The shape of a random input whose dims are symbolic.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "vulkan"]), default="auto")
@click.option("--entry", metavar="NAME", help="The entry point. Default: the first.")
@click.option("--target", metavar="NAME", help="The variant. Default: the first that runs here.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option("--profile/--no-profile", default=True, help="Whether to time each dispatch.")
@click.option("--cold", "is_cold", is_flag=True, help="Time fresh processes, phase by phase.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Processes with --cold, turns with --against. Default: 10, and 5.",
)
@click.option(
    "--against",
    "engines",
    multiple=True,
    type=click.Choice([*ENGINE_NAMES, "installed"]),
    help="Run another engine by turns, or all that are installed; repeatable. Needs --model.",
)
@click.option("--model", type=click.Path(), help="The ONNX file that MODULE was compiled from.")
@click.option(
    "--input-value",
    "input_values",
    multiple=True,
    type=NamedArray(),
    help="What MODULE was compiled with; the other engine gets it as an input.",
)
@click.option(
    "--shaders",
    "of_shaders",
    is_flag=True,
    help="Time what a Vulkan driver compiles; with --model, at each level of deduplication.",
)
@click.option(
    "--generate",
    "is_generating",
    is_flag=True,
    help="Time a language model: its prompt and its decode, with 1, 2, ... up to --threads.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
@REPORT_OPTION
@TRACE_OPTION
def bench(
    module: str,
    inputs: tuple[Pair, ...],
    input_sizes: tuple[Pair, ...],
    input_values: tuple[Pair, ...],
    is_cold: bool,
    of_shaders: bool,
    is_generating: bool,
    engines: tuple[str, ...],
    model: str | None,
    as_json: bool,
    report: str | None,
    trace: str | None,
    runs: int,
    seconds: float,
    rounds: int | None,
    profile: bool,
    **how: Any,
) -> None:
    """Time a module file with the native aot-run, and say where the time goes.

    \b
    Examples:
      aotc bench model.aotm --threads 2
      aotc bench det.aotm --shape x=1x3x320x320 --seconds 5
      aotc bench model.aotm --cold
      aotc bench model.aotm --against onnxruntime --model model.onnx
      aotc bench model.aotm --shaders --model model.onnx
      aotc bench chat.aotm --generate --threads 2
      aotc bench model.aotm --threads 4 --report model.html

    Dispatches are timed in runs of their own. Gop/s counts the model's arithmetic, GB/s what a
    dispatch must read and write at least; the peak is what one core of this machine was measured to
    do in the dispatch's type, times the threads. A report of runs also has cold starts, and the
    times with fewer threads.
    """
    given, module = module, click.get_current_context().with_resource(module_path(module))
    from aot.tools.bench.benchmark import Case, cold, steady

    check_report(report, module, *([model] if model is not None else []))
    check_report(trace, module, *(f for f in (model, report) if f is not None))
    if trace is not None and (is_generating or of_shaders or engines):
        raise click.UsageError("--trace goes with none of --generate, --shaders and --against")
    if is_generating:
        with shown_progress(f"timing {given}", is_still=True):
            times = _generation(module, rounds or 5, **how)
        run = _run_facts(module, how, {})
        show_facts(times, lambda facts: _run_text(run) + generation_text(facts), as_json=as_json)
        return
    if of_shaders:
        from aot.tools.bench.shaders import bench_shaders, figures_text

        with shown_progress(f"timing the shaders of {given}", is_still=True):
            shader_facts = bench_shaders(
                module,
                model,
                inputs=to_mapping(inputs, "--input"),
                shapes=to_mapping(input_sizes, "--shape"),
                input_values=to_mapping(input_values, "--input-value"),
                seed=how["seed"],
                rounds=rounds or 3,
            )
        run = _run_facts(module, how, to_mapping(input_sizes, "--shape"))
        show_facts({**shader_facts, "run": run}, partial(_with_run, figures_text), as_json=as_json)
        _write_report(report, module, {"shaders": shader_facts}, run)
        return
    if bool(engines) != (model is not None):
        raise click.UsageError("--against and --model go together")
    if engines and is_cold:
        raise click.UsageError("--against and --cold exclude each other")
    arrays, sizes = to_mapping(inputs, "--input"), to_mapping(input_sizes, "--shape")
    if how["threads"] == "auto":
        from aot.runtime.cores import find

        how["threads"] = find().threads
    case = Case(module, inputs=arrays, shapes=sizes, **how)
    values = to_mapping(input_values, "--input-value")
    with shown_progress(f"timing {given}", is_still=True):
        if engines and model is not None:
            kind, text = "against", comparison_text
            facts = _against(case, model, engines, values, rounds or 5, runs, seconds)
        elif is_cold:
            facts, kind, text = cold(case, rounds=rounds or 10), "cold", cold_text
        else:
            facts = steady(case, runs=runs, seconds=seconds, profile=profile)
            kind, text = "steady", steady_text
    facts["module"] = given
    run = _run_facts(module, how, facts["shapes"])
    show_facts({**facts, "run": run}, partial(_with_run, text), as_json=as_json)
    _write_trace(trace, facts, run)
    if report is not None:
        besides = _besides(kind, case, rounds, runs=runs, seconds=seconds, profile=profile)
        _write_report(report, module, {kind: facts, **besides}, run)


def _against(
    case: Case,
    model: str,
    engines: Sequence[str],
    values: Mapping[str, Any],
    rounds: int,
    runs: int,
    seconds: float,
) -> dict[str, Any]:
    """Times beside other engines; "installed" stands for all that are."""
    from aot.tools.engines import compare, installed

    found = [n for e in engines for n in (installed() if e == "installed" else (e,))]
    if not found:
        raise click.UsageError(f"none is installed: {', '.join(ENGINE_NAMES)}")
    names = list(dict.fromkeys(found))
    return compare(
        case, model, names, input_values=values, rounds=rounds, runs=runs, seconds=seconds
    )


def _with_run(text: Callable[[Mapping[str, Any]], str], facts: Mapping[str, Any]) -> str:
    return _run_text(facts["run"]) + text(facts)


def _run_text(run: Mapping[str, Any]) -> str:
    """A line about when, where and on which shapes a benchmark ran."""
    from aot.driver.provenance import machine_text

    shapes = "".join(f", {name}={'x'.join(map(str, s))}" for name, s in run["shapes"].items())
    return f"{run['date']}, {machine_text(run)}{shapes}\n"


def _run_facts(module: str, how: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """What a benchmark says of its command, its machine and its module."""
    from aot.driver.provenance import provenance
    from aot.link.reader import read_module_file

    entries = read_module_file(module, verify_rodata=False).image.variants[0].entry_points
    entry = next((e for e in entries if e.name == how["entry"]), entries[0])
    return provenance(
        "bench",
        command_line(),
        signature=[str(t) for t in (*entry.inputs, *entry.outputs)],
        shapes={name: list(shape) for name, shape in shapes.items()},
        threads=how["threads"],
    )


def _generation(module: str, rounds: int, *, threads: int, **how: Any) -> list[dict[str, Any]]:
    from aot.tools.bench.generation import measure_generation

    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n < threads]
    where = {key: how[key] for key in ("device", "entry", "target")}
    return [
        asdict(times)
        for times in measure_generation(module, [*counts, threads], turns=rounds, **where)
    ]


def generation_text(facts: Sequence[Mapping[str, Any]]) -> str:
    """A line for each number of threads."""
    first = facts[0]
    rows = [
        [
            str(f["threads"]),
            f"{f['prompt_tokens_per_s']:.1f}",
            f"{f['decode_tokens_per_s']:.1f}",
            f"{f['first_token_ms']:.1f}",
            f"{f['load_ms']:.1f}",
        ]
        for f in facts
    ]
    head = ["threads", "prompt", "decode", "first_ms", "load_ms"]  # tokens a second
    what = f"{first['prompt_tokens']} tokens of a prompt, then {first['tokens']} one by one"
    what += f", {first['sequences']} texts at once" if first["sequences"] > 1 else ""
    where = f"context {first['context']}, arena {first['arena_bytes']:,} bytes"
    return f"{what}; {where}\n{table(head, rows, ' '.join(head))}"


def _besides(
    kind: str, case: Case, rounds: int | None, *, runs: int, seconds: float, profile: bool
) -> dict[str, Any]:
    """Additional measurements for a report page."""
    from aot.tools.bench.benchmark import by_threads, cold, steady

    found: dict[str, Any] = {}
    if kind == "against":
        found["steady"] = steady(case, runs=runs, seconds=seconds, profile=profile)
    if kind != "cold":
        found["cold"] = cold(case, rounds=rounds if rounds and kind == "steady" else 10)
        if case.threads > 1:
            found["threads"] = by_threads(case, runs=runs, seconds=min(seconds, 0.5))
    return found


def _write_report(
    report: str | None, module: str, facts: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    if report is not None:
        from aot.report import bench_page, write_page

        write_page(bench_page(module, facts, run), report)


def _write_trace(trace: str | None, facts: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    if trace is not None:
        from aot.tools.traces import bench_trace, write_trace

        write_trace(bench_trace(facts, run), trace)


def steady_text(facts: Mapping[str, Any]) -> str:
    """The text of a benchmark: variant, percentiles, and a line for each dispatch."""
    lines = [
        f"{facts['module']}: {facts['target']} on {facts['device']}, {_threads(facts['threads'])}, "
        f"code {facts['code_mapping']}",
        f"arena {facts['arena_bytes']:,} bytes, scratch {facts['scratch_bytes']:,} bytes, peak "
        f"memory {facts['peak_rss_kb']:,} kB",
        f"{facts['runs']} runs: median {facts['median_ms']:.3f} ms, p90 {facts['p90_ms']:.3f}, "
        f"p99 {facts['p99_ms']:.3f}, min {facts['min_ms']:.3f}, max {facts['max_ms']:.3f}",
    ]
    if "dispatches" not in facts:
        return "\n".join(lines)
    if facts["gflops"] is not None:
        lines.append(
            f"{facts['flops'] / 1e9:.3f} Gop at {_number(facts['gflops'])} Gop/s; "
            f"at least {facts['bytes'] / 1e6:.1f} MB at {_number(facts['gbs'])} GB/s"
        )
    if facts["machine"] is not None:
        lines.append(_machine_text(facts["machine"], facts["of_peak"]))
    if facts["dispatches"]:
        lines += ["", dispatch_table(facts["dispatches"])]
    return "\n".join(lines)


def _machine_text(machine: Mapping[str, Any], of_peak: float | None) -> str:
    peaks = ", ".join(f"{peak:.1f} Gop/s in {name}" for name, peak in machine["peaks_gops"].items())
    part = "" if of_peak is None else f"; this is {_percent(of_peak)} of the threads' peak"
    return (
        f"one core here: {peaks or 'no known peak'} with vectors of {machine['vector_bytes']} "
        f"bytes, {machine['memory_gbs']:.1f} GB/s from memory{part}"
    )


def dispatch_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each dispatch, copy and fill, in the program's order."""
    header = ("ms", "share", "type", "Gop/s", "peak", "GB/s", "grid", "threads", "code", "node")
    lines = [
        [
            f"{row['median_ms']:.4f}",
            _percent(row["share"]),
            row["dtype"],
            _number(row["gflops"]),
            _percent(row["of_peak"]),
            _number(row["gbs"]),
            "x".join(map(str, row.get("grid", ()))),
            str(row["threads"]),
            row["executable"] + ("" if row["count"] == 1 else f" ({row['count']:g} times)"),
            row["node"],
        ]
        for row in rows
    ]
    return table(header, lines, right="ms share Gop/s peak GB/s grid threads")


def cold_text(facts: Mapping[str, Any]) -> str:
    """A line for each phase, a column for each state of the page cache."""
    found = facts["cold"]
    series = {name: found[name] for name in ("warm", "dropped") if name in found}
    rows = [
        [phase, *(f"{of['phases_ms'][phase]:.3f}" for of in series.values())] for phase in PHASES
    ]
    rows.append(["total, ms", *(f"{of['total_ms']:.3f}" for of in series.values())])
    rows.append(["peak memory, kB", *(f"{of['peak_rss_kb']:,}" for of in series.values())])
    header = ("phase", *series)
    lines = [table(header, rows, right=" ".join(header[1:]))]
    rounds = next(iter(series.values()))["rounds"]
    lines.append(f"medians of {rounds} fresh processes by the page cache of the module, in ms")
    if "not_dropped" in found:
        lines.append(f"the page cache was not dropped: {found['not_dropped']}")
    elif found["left_in_cache_bytes"]:
        lines.append(f"{found['left_in_cache_bytes']:,} bytes of the file stayed in the page cache")
    return "\n".join(lines)


def comparison_text(facts: Mapping[str, Any]) -> str:
    """A line for each engine: median, spread of its rounds, and our time as a part of its own."""
    rows = []
    for name, median in facts["median_ms"].items():
        rounds = facts["round_medians_ms"][name]
        ratio = facts["ratio"].get(name)
        spread = f"{min(rounds):.3f} to {max(rounds):.3f}"
        told = "" if ratio is None else f"{ratio:.2f}"
        told += ", noise" if facts["is_noise"].get(name) else ""
        rows.append([name, f"{median:.3f}", spread, told])
    header = ("engine", "ms", "rounds", "aotc/engine")
    return (
        table(header, rows, right="ms rounds aotc/engine")
        + f"\nmedians of {facts['rounds']} rounds by turns, {_threads(facts['threads'])}"
        + ("; noise: the rounds of both overlap" if any(facts["is_noise"].values()) else "")
    )


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f}%"
