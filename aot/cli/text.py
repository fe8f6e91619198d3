"""Text of the command: parsing of arguments, tables, progress, summaries.

Text only; nothing here compiles or runs.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from aot.errors import CompileError, of_facts, one_line, printable

if TYPE_CHECKING:
    from aot import CompiledModule
    from aot.backends.cpu.object_cache import CacheInfo
    from aot.cli.findings import Finding
    from aot.tools.agreement import OutputAgreement
    from aot.tools.batch.batch import Row
    from aot.tools.devices import DeviceInfo
    from aot.tools.verification import Verification

Pair = tuple[str, Any]


class _Output(io.FileIO):
    """Standard output whose failures say what they are, wherever a command writes to it."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            raise  # whoever reads has seen enough: that is no error
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
            raise CompileError(f"cannot write to standard output: {reason.lower()}") from None


class _Text(io.TextIOWrapper):
    """A standard stream, to which only `printable` text comes."""

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)


def open_standard_streams() -> None:
    """Gives this process standard streams that a command can use.

    Those that are closed are opened on the null device, so that no file of ours gets their number;
    output that is written to a closed one fails. Whatever a command prints is `printable`.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    old = sys.stdout
    buffer = io.BufferedWriter(_Output(1, "w", closefd=False))
    encoding, errors = ("utf-8", "strict") if old is None else (old.encoding, old.errors)
    sys.stdout = _Text(buffer, encoding, errors, line_buffering=os.isatty(1))
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    beside = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = _Text(beside, encoding, "backslashreplace", line_buffering=True)


def _unescaped(stream: IO[str]) -> IO[str]:
    """The stream for what moves the cursor on purpose."""
    if not isinstance(stream, _Text):
        return stream
    return open(stream.fileno(), "w", encoding=stream.encoding, closefd=False)


def _split(text: str) -> tuple[str, str]:
    # The last "=" that is no bound's: names of inputs may hold one, values do not.
    found = re.fullmatch(r"(.*[^<>])=((?:[^=]|[<>]=)*)", text, re.DOTALL)
    if found is None:
        raise click.BadParameter(f"{text!r} is not NAME=...")
    return found[1], found[2]


class NamedShape(click.ParamType[Pair]):
    """NAME=1x3xHx224; `?` is a dim that stays as the model has it, H:..960 one with a bound."""

    name = "NAME=SHAPE"

    def __init__(self, *, is_static: bool = False) -> None:
        self.is_static = is_static

    def convert(self, value: Any, param: Any, ctx: Any) -> Pair:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        name, text = _split(value)
        from aot.ir.bounds import parse_shape  # not above: it needs numpy, which '--help' does not

        example = "1x3x224x224" if self.is_static else "1x3xHx224"
        try:
            dims = parse_shape(text)
        except ValueError as error:
            reason = "" if self.is_static else f": {error}"
            self.fail(f"{text!r} is not a shape such as {example}{reason}", param, ctx)
        if self.is_static and not all(isinstance(dim, int) for dim in dims):
            self.fail(f"{text!r} is not a shape such as {example}", param, ctx)
        return name, dims


class Threads(click.ParamType[Any]):
    """A number of threads, or `auto`, one for each fast core."""

    name = "N|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        if value == "auto":
            return "auto"
        number = int(value) if str(value).isdecimal() else 0
        if not 1 <= number <= 256:
            self.fail(f"{value!r} is not a number of threads, 1 to 256, or auto", param, ctx)
        return number


class NamedArray(click.ParamType[Pair]):
    """NAME=FILE.npy, NAME=VALUE, and NAME=random where that makes sense."""

    name = "NAME=VALUE"

    def __init__(self, *, allow_random: bool = False) -> None:
        self.allow_random = allow_random

    def convert(self, value: Any, param: Any, ctx: Any) -> Pair:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        name, text = _split(value)
        if text == "random" and self.allow_random:
            return name, None
        if text.endswith(".npy"):
            from aot.ir.array_files import array  # not above: it needs numpy

            return name, array(text)
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        if not _is_plain(parsed):
            allowed = "a .npy file, a number or a list" + (" or random" * self.allow_random)
            self.fail(f"{text!r} is not {allowed}", param, ctx)
        return name, parsed


class NamedState(click.ParamType[Pair]):
    """PAST=PRESENT, or PAST=PRESENT:max=N: an input, the output that it is after a run, and the
    most that it may grow to."""

    name = "PAST=PRESENT[:max=N]"

    def convert(self, value: Any, param: Any, ctx: Any) -> Pair:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        found = re.fullmatch(r"(?s:(.+?)=(.+?))(?::max=([0-9]+))?", value)
        if found is None:
            self.fail(f"{value!r} is not PAST=PRESENT or PAST=PRESENT:max=N", param, ctx)
        if found[3] is not None and not int(found[3]):
            self.fail(f"{value!r}: max must be positive", param, ctx)
        return found[1], (found[2], int(found[3] or 0))


class NamedText(click.ParamType[Pair]):
    """KEY=TEXT, where the text may be empty."""

    name = "KEY=TEXT"

    def convert(self, value: Any, param: Any, ctx: Any) -> Pair:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        key, separator, text = value.partition("=")
        if not key or not separator:
            self.fail(f"{value!r} is not KEY=TEXT", param, ctx)
        return key, text


class NamedExtent(click.ParamType[Pair]):
    """NAME=N: a node of the model, and the most that an extent is which it computes."""

    name = "NAME=N"

    def convert(self, value: Any, param: Any, ctx: Any) -> Pair:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        found = re.fullmatch(r"(?s:(.+))=([0-9]+)", value)
        if found is None:
            self.fail(f"{value!r} is not NAME=N", param, ctx)
        return found[1], int(found[2])


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a string, or a list of these."""
    if isinstance(value, list):
        return all(_is_plain(v) for v in value)
    return isinstance(value, int | float | str)


def to_mapping(pairs: Sequence[Pair], option: str) -> dict[str, Any]:
    """The pairs of a repeatable option by name."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise click.UsageError(f"{option} is given twice for {name!r}")
        found[name] = value
    return {name: value for name, value in found.items() if value is not None}


def to_lists(pairs: Sequence[Pair]) -> dict[str, list[Any]]:
    """The pairs of an option that may be given several times for a name, by name."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """Aligned columns; `right` names the header's columns that are flush right."""
    lines = [list(header), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    pad: list[Callable[[str, int], str]] = [
        str.rjust if name in right.split() else str.ljust for name in header
    ]
    return "\n".join(
        "  ".join(p(c, w) for p, c, w in zip(pad, line, widths, strict=True)).rstrip()
        for line in lines
    )


def definitions(rows: Sequence[Sequence[str]], width: int = 100) -> str:
    """Key, value and what it means: the meaning in a column of its own, or below a long value."""
    import textwrap

    keys = max((len(row[0]) for row in rows), default=0)
    values = min(24, max((len(row[1]) for row in rows), default=0))
    start = " " * (keys + values + 4)
    lines: list[str] = []
    for key, value, meaning in rows:
        head = f"{key:<{keys}}  {value:<{values}}"
        if len(value) > values:
            lines.append(head)
            head = ""
        wrapped = textwrap.wrap(meaning, width - len(start))
        lines += [f"{head if n == 0 else '':<{len(start) - 2}}  {w}" for n, w in enumerate(wrapped)]
    return "\n".join(lines)


def matrix_facts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The facts of `aotc build --json`."""
    return [
        {
            "model": row.cell.model.name,
            "target": row.cell.target.name,
            "options": row.cell.option.name,
            "output": str(row.cell.output),
            "status": row.status,
            "bytes": row.bytes,
            "seconds": round(row.seconds, 3),
            "error": row.error,
        }
        for row in rows
    ]


def matrix_table(rows: Sequence[Row]) -> str:
    """The table of `aotc build`, a line per module."""
    lines = [
        [
            row.cell.model.name,
            row.cell.target.name,
            row.cell.option.name,
            row.status,
            f"{row.bytes:,}" if row.bytes else "",
            f"{row.seconds:.1f}" if row.seconds else "",
            row.error or str(row.cell.output),
        ]
        for row in rows
    ]
    header = ("model", "target", "options", "status", "bytes", "seconds", "module")
    return table(header, lines, right="bytes seconds")


def shape_text(shape: Sequence[object]) -> str:
    """A shape as `1x3x224`, or `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


class TerminalProgress:
    """Shows the running stage on one line of a terminal; a context manager and a `Progress`.

    The line is shown from the first call on, or after `PATIENCE_SECONDS`: nothing is shown of a
    model that is refused at once.
    """

    PATIENCE_SECONDS = 0.7

    def __init__(self, stream: IO[str], stage: str, *, is_still: bool = False) -> None:
        """
        Args:
            stage: what runs before the first call.
            is_still: the line is drawn once and does not move, as beside a measurement.
        """
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        name, count = TextColumn("{task.description}"), TextColumn("{task.fields[count]}")
        moving = (SpinnerColumn(), name, BarColumn(bar_width=24), count, TimeElapsedColumn())
        columns = (name,) if is_still else moving
        self._bars = Progress(
            *columns,
            console=Console(file=_unescaped(stream)),
            transient=True,
            auto_refresh=not is_still,
        )
        self._task = self._bars.add_task(stage, total=None, count="")
        self._lock = threading.Lock()
        self._is_over = False
        self._timer = threading.Timer(self.PATIENCE_SECONDS, self._start)
        self._timer.daemon = True

    def __enter__(self) -> TerminalProgress:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bars.live.is_started:
                self._bars.stop()

    def _start(self) -> None:
        with self._lock:
            if not self._is_over:
                self._bars.start()  # which does nothing where it was

    def __call__(self, stage: str, done: int, total: int) -> None:
        self._start()
        self._bars.update(
            self._task,
            description=stage,
            total=total or None,
            completed=done,
            count=f"{done}/{total}" if total else "",
        )


def show_facts(facts: Any, text: Callable[[Any], str], *, as_json: bool) -> None:
    """Prints facts for scripts, or as text, in which what ends a line in a name is escaped."""
    click.echo(json.dumps(facts, indent=2) if as_json else text(of_facts(facts)))


def write_stats(stats: Mapping[str, Any], path: str) -> None:
    """Writes statistics as JSON to a file, or to standard output for "-"."""
    text = json.dumps(stats, indent=2) + "\n"
    if path == "-":
        click.echo(text, nl=False)
        return
    from aot.link.files import write_atomically

    write_atomically(Path(path), [text.encode()])


def outputs_table(arrays: Mapping[str, Any]) -> str:
    """One line an output: name, type, shape and the range of its values."""
    import numpy as np

    rows = []
    for name, array in arrays.items():
        numbers = ["", "", ""]
        if array.dtype == object:
            rows.append([name, "string", shape_text(array.shape), *numbers])
            continue
        if array.size:
            with np.errstate(all="ignore"):  # infinities have no mean
                mean = array.mean(dtype=np.float64)
            numbers = [f"{float(v):.6g}" for v in (array.min(), array.max(), mean)]
        rows.append([name, str(array.dtype), shape_text(array.shape), *numbers])
    return table(("output", "dtype", "shape", "min", "max", "mean"), rows, right="min max mean")


def save_arrays(arrays: Mapping[str, Any], folder: Path) -> None:
    """Writes each array to NAME.npy; characters that make trouble in file names become `_`."""
    import io

    import numpy as np

    from aot.link.files import write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompileError(f"cannot make {folder}: {(error.strerror or '').lower()}") from error
    taken: set[str] = set()
    for name, array in arrays.items():
        stem = re.sub(r"[^\w.-]", "_", name)[:200] or "_"
        while stem in taken:
            stem += "_"
        taken.add(stem)
        stream = io.BytesIO()
        plain = array.astype(str) if array.dtype == object else array  # strings
        np.save(stream, plain, allow_pickle=False)
        write_atomically(folder / f"{stem}.npy", [stream.getvalue()])


def verification_table(result: Verification) -> str:
    """One line an output: how far it is from the engine's; and what there is to know of each."""
    rows = [
        [
            o.name,
            o.dtype,
            shape_text(o.shape),
            f"{o.magnitude:.6g}",
            f"{o.error:.2e}",
            "-" if o.noise is None else f"{o.noise:.2e}",
            "agrees" if o.agrees else o.problem or "differs",
        ]
        for o in result.outputs
    ]
    header = ("output", "dtype", "shape", "magnitude", "error", "noise", "verdict")
    verdict = "agrees" if result.agrees else "does not agree"
    engine = f"{result.engine} {result.version}".strip()
    lines = [
        table(header, rows, right="magnitude error noise"),
        f"target {result.target} {verdict} with {engine} within {_widest(result):.3g}",
    ]
    for o in result.outputs:
        lines += _agreement_lines(o)
    for o in result.rounded:
        lines.append(
            f"{one_line(o.name)}: within {o.tolerance:.2g}, rms {o.rms_tolerance:.2g}, "
            "as the model rounds"
        )
    if result.uninformative:
        lines.append(
            f"{', '.join(map(one_line, result.uninformative))}: one number all over, which says "
            "little; give inputs that mean something with --input"
        )
    if result.random and not result.agrees:
        lines.append(
            f"random inputs: {', '.join(map(one_line, result.random))}; --input gives what the "
            "model was made for"
        )
    if result.remark:
        lines.append(f"this can't see faults of the importer: {result.remark}")
    return "\n".join(lines)


def _widest(result: Verification) -> float:
    """The largest tolerance that an output was compared by."""
    return max((o.tolerance for o in result.outputs), default=result.tolerance)


def _agreement_lines(output: OutputAgreement) -> list[str]:
    """The worst element of an output, and how many elements have errors of which size."""
    from aot.tools.agreement import DECADES

    lines = []
    if output.worst is not None:
        worst = output.worst
        place = f"[{', '.join(map(str, worst.index))}]"
        lines.append(
            f"  {one_line(output.name)}{place}: {worst.found:.9g}, expected {worst.expected:.9g}"
        )
    if output.histogram and output.error > 0:
        none, *counts, more = output.histogram
        parts = [f"{none} exact"] if none else []
        parts += [f"{n} to {end:.0e}" for n, end in zip(counts, DECADES, strict=True) if n]
        parts += [f"{more} above"] if more else []
        lines.append(f"  {one_line(output.name)}, errors of elements: {', '.join(parts)}")
    return lines


def _arena_rest(variant: Mapping[str, Any]) -> str:
    """The addition to an arena's size about buffers whose size depends on input shapes."""
    count = variant.get("arena_symbolic_buffers", 0)
    return f" and {count} buffers that grow with the inputs" if count else ""


def compile_summary(stats: Mapping[str, Any], output: str, size: int, seconds: float) -> str:
    """The few lines that close a compile on a terminal."""
    lines = [f"{output}: {size:,} bytes in {seconds:.1f} s"]
    for variant in of_facts(stats.get("variants", ())):
        executables = variant["executables"]
        met = executables["structural"]["met"]
        kept = executables["emitted"]["kept"]
        lines.append(
            f"  {variant['target']}: {variant['dispatches']} dispatches, {_kernels(kept)} "
            f"({met} before equal ones became one), {variant['code_bytes']:,} bytes of code, "
            f"arena {variant['arena_bytes']:,} bytes{_arena_rest(variant)}"
        )
        lines += _host_lines(variant.get("cpu_fallback"))
        storage = variant.get("storage", {})
        if "constants" in storage:
            lines.append(
                f"    {storage['constants']} constants and {storage['activations']} activations in "
                f"{storage['type']}, {storage['constant_bytes_saved']:,} bytes of constants saved"
            )
        winograd = variant.get("winograd", {})
        if winograd.get("transformed"):
            lines.append(
                f"    {winograd['transformed']} of {winograd['convolutions']} convolutions by "
                f"Winograd's algorithm have transformed filters, of {winograd['more_bytes']:,} "
                "bytes more"
            )
        if "arithmetic" in variant:
            total = variant["arithmetic"]["multiply_adds"]
            for name in ("f16", "bf16"):
                if f"multiply_adds_in_{name}" in variant["arithmetic"]:
                    share = variant["arithmetic"][f"multiply_adds_in_{name}"] / max(1, total)
                    lines.append(f"    {100 * share:.1f} % of {total:,} multiply-adds in {name}")
    variants = stats.get("variants", ())
    if variants and "multiply_adds" in variants[0]:
        lines.append(quantised_line(variants[0]["multiply_adds"]))
    if "prefix" in stats:
        prefix = stats["prefix"]
        states = (f"{size:,} bytes for {t}" for t, size in prefix["state_bytes"].items())
        lines.append(f"  prefix: {prefix['tokens']:,} tokens; state: {', '.join(states) or 'none'}")
    rodata = stats.get("rodata")
    if rodata:
        saved = rodata["bytes_met"] - rodata["bytes_kept"]
        lines.append(
            f"  constants: {rodata['bytes_kept']:,} bytes, {saved:,} less than without "
            "deduplication"
        )
    return "\n".join(lines)


def _kernels(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"


def quantised_line(amounts: Mapping[str, int]) -> str:
    """How much of a quantised model is computed in integers, and why the rest is not."""
    from aot.passes.quantise.quantise_contractions import IN_INTEGERS

    total = max(1, sum(amounts.values()))
    whole = amounts.get(IN_INTEGERS, 0)
    line = f"  quantised: {100 * whole / total:.1f} % of {total:,} multiply-adds in integers"
    others = sorted((-n, reason) for reason, n in amounts.items() if reason != IN_INTEGERS)
    if others:
        line += "; in floats, as " + ", ".join(
            f"{reason} ({-100 * n / total:.1f} %)" for n, reason in others
        )
    return line


def _host_lines(hosted: Mapping[str, Any] | None) -> Iterator[str]:
    """Lines on the parts of a GPU variant that the CPU runs, one for each reason."""
    if hosted is None:
        return
    copies = hosted["copies"]
    yield (
        f"    {hosted['dispatches']} dispatches run on the CPU, {hosted['target']}, with "
        f"{copies['to_host']} copies to it and {copies['to_device']} back"
    )
    reasons: dict[str, list[str]] = {}
    for found in hosted["because"]:
        where = f" ({found['node']})" if found["node"] else ""
        reasons.setdefault(found["why"], []).append(found["op"] + where)
    for why, ops in reasons.items():
        shown = ", ".join(dict.fromkeys(ops[:4])) + (f" and {len(ops) - 4} more" * (len(ops) > 4))
        yield f"      {why}: {shown}"


def merge_summary(counts: Mapping[str, Any], output: str, size: int) -> str:
    """The few lines that close a merge on a terminal."""
    lines = [f"{output}: {size:,} bytes, {counts['modules']} modules"]
    for variant in of_facts(counts["variants"]):
        code, executables = variant["code"], variant["executables"]
        lines.append(
            f"  {variant['target']}: {_kernels(executables['kept'])} of {executables['met']} in "
            f"the modules, {code['kept']:,} bytes of code, {code['met'] - code['kept']:,} less "
            "than in all of them"
        )
    rodata = counts["rodata"]
    saved = rodata["bytes_met"] - rodata["bytes_kept"]
    lines.append(
        f"  constants: {rodata['bytes_kept']:,} bytes, {saved:,} less than in all of the modules"
    )
    return "\n".join(lines)


def cache_facts(info: CacheInfo) -> dict[str, Any]:
    """The facts of `aotc cache --json`."""
    return {
        "folder": None if info.folder is None else str(info.folder),
        "entries": info.entries,
        "bytes": info.bytes,
        "limit_bytes": info.limit_bytes,
    }


def cache_summary(info: CacheInfo, *, is_cleared: bool) -> str:
    """One line about the cache, as `aotc cache` prints it."""
    if info.folder is None:
        return "no folder is known for the cache: set AOT_CACHE_DIR"
    if is_cleared:
        return f"{info.folder}: {info.entries} objects removed, {info.bytes:,} bytes"
    return (
        f"{info.folder}: {info.entries} objects, {info.bytes:,} bytes "
        f"of at most {info.limit_bytes:,}"
    )


def devices_text(found: Sequence[DeviceInfo]) -> str:
    """The text of `aotc devices`, a paragraph per device."""
    parts = []
    for device in found:
        lines = [f"{device.name} ({device.device})"]
        if device.kind:
            memory = f"{device.memory_bytes / 2**30:.1f} GiB"
            lines.append(f"  {device.kind}, vulkan {device.api_version}, {memory} of its own")
        lines += [f"  unused    {device.note}"] * bool(device.note)
        lines.append(f"  targets   {', '.join(device.fits) or 'none'}")
        if device.threads:
            lines.append(f"  threads   {device.threads} with auto: {device.threads_reason}")
        lines += [f"  not       {name}: {why}" for name, why in device.misses.items()]
        lines += [f"  features  {', '.join(device.features)}"] * bool(device.features)
        for key, value in device.limits.items():
            text = "x".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}"
            lines.append(f"  {key:<28} {text}")
        parts.append("\n".join(lines))
    if all(device.device != "vulkan" for device in found):
        parts.append("no Vulkan driver here has a GPU (VK_LOADER_DEBUG=error says why)")
    return "\n\n".join(parts)


def check_output(output: str, stats: str | None) -> None:
    """Checks that a module may be written to standard output where `output` is "-".

    Raises:
        click.UsageError: it is a terminal, which shows no bytes, or statistics go there, too.
    """
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("a module is no text: send it to a file or a pipe, or give -o FILE")
    if output == "-" and stats == "-":
        raise click.UsageError("the module and --stats cannot both go to standard output")


def write_module(module: CompiledModule, output: str) -> None:
    """Writes a module to a file, or to standard output for "-".

    Raises:
        CompileError: the file cannot be written.
    """
    if output != "-":
        module.save(output)
        return
    sys.stdout.buffer.write(module.to_bytes())
    sys.stdout.buffer.flush()


def findings_text(findings: Sequence[Finding]) -> str:
    """The text of `aotc doctor`, a paragraph per area; what is missing begins with a dash."""
    lines: list[str] = []
    area = ""
    for finding in findings:
        if finding.area != area:
            lines += [""] * bool(lines) + [finding.area]
            area = finding.area
        mark, text = ("+", finding.found) if finding.found else ("-", finding.advice)
        lines.append(f"  {mark} {finding.name:<16} {text}")
    missing = sum(not finding.found for finding in findings)
    return "\n".join([*lines, "", f"{missing} missing, each needed for what is said of it only"])
