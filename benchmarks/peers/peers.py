"""The peers: how each converts a model, and how one fresh process of each runs it.

A peer owns its command lines and nothing else: rounds and medians are run.py's, tables report.py's.
To add one, subclass Peer or WorkerPeer and add it to PEERS.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

HERE = Path(__file__).resolve().parent
ENVIRON = os.environ | {
    # mnnconvert has pip install what it reports usage with, into whichever Python is first on PATH
    "PIP_NO_INDEX": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MESA_SHADER_CACHE_DISABLE": "true",  # a cold start on Vulkan must compile its shaders
    "__GL_SHADER_DISK_CACHE": "0",  # the same of Nvidia's driver
}


class PeerError(Exception):
    """A peer cannot convert or run a model; the message is the peer's own, shortened."""


@dataclass(frozen=True)
class Model:
    name: str
    folder: Path
    macs: int
    inputs: list[dict]
    outputs: list[dict]

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.onnx"

    def input_path(self, index: int) -> Path:
        return self.folder / f"{self.name}.in{index}.npy"

    def output_path(self, index: int) -> Path:
        return self.folder / f"{self.name}.out{index}.npy"


@dataclass(frozen=True)
class Budget:
    """Calls after the first one: `warmup`, then until `runs` calls and `min_ms` have passed."""

    warmup: int = 0
    runs: int = 0
    min_ms: float = 0


@dataclass(frozen=True)
class Settings:
    work: Path
    threads: int = 1
    timeout_s: float = 600
    aotc: str | None = None
    aot_run: str | None = None
    vulkan_target: str = "vulkan-1.1"
    steady: Budget = field(default_factory=lambda: Budget(3, 10, 600))

    def site(self, venv: str, path: str) -> Path:
        """A path inside the packages of one environment; a path that is not there if it is not."""
        folder = self.work / "venvs" / venv
        found = folder.glob(f"lib/python3*/site-packages/{path}")
        return next(found, folder / path)

    def python(self, venv: str) -> Path:
        return self.work / "venvs" / venv / "bin" / "python"


@dataclass(frozen=True)
class Process:
    """One finished command, as runclock saw it."""

    stdout: str
    spawn_ns: int
    wall_ms: float
    rss_kb: int


def tail(text: str, limit: int = 300) -> str:
    """The end of a tool's output on one line, without its rules and boxes."""
    return re.sub(r"[\s#=\u2500-\u257f]+", " ", text).strip()[-limit:]


def complaint(text: str, limit: int = 300) -> str:
    """The first line that names an error, from there on; else the end."""
    found = re.search(r".*error:.*", text, re.IGNORECASE)
    return found[0].strip()[:limit] if found else tail(text, limit)


class Peer:
    """A compiler or runtime.  `needs` to `steady` are its own; the rest is their means."""

    name = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def needs(self) -> list[Path]:
        """Files without which the peer is left out."""
        raise NotImplementedError

    def artifact(self, model: Model) -> Path:
        raise NotImplementedError

    def artifact_files(self, model: Model) -> list[Path]:
        """The files that are shipped."""
        return [self.artifact(model)]

    def convert(self, model: Model) -> dict | None:
        """Write the artifact; wall time as `convert_ms`.  None: the .onnx itself is loaded."""
        raise NotImplementedError

    def check(self, model: Model, out: Path) -> None:
        """Run once and write every output to `out`, as INDEX.npy or NAME.npy."""
        raise NotImplementedError

    def cold(self, model: Model) -> dict:
        """Spawn, load, run once: `cold_ms`, `rss_kb`; not its own: `floor_ms`, `floor_rss_kb`."""
        raise NotImplementedError

    def steady(self, model: Model) -> dict:
        """Time repeated runs in a warm process: `median_ms`, `min_ms`, `p90_ms`, `runs`."""
        raise NotImplementedError

    def missing(self) -> str | None:
        gone = [str(path) for path in self.needs() if not path.exists()]
        return f"no {gone[0]}" if gone else None

    def clear(self, model: Model) -> None:
        """Remove an older artifact, so that a failed conversion leaves none."""
        for path in self.artifact_files(model):
            if path != model.path:
                path.unlink(missing_ok=True)

    def artifact_bytes(self, model: Model) -> int:
        return sum(path.stat().st_size for path in self.artifact_files(model))

    def build_path(self, model: Model, suffix: str, folder: str = "") -> Path:
        path = self.settings.work / "art" / (folder or self.name) / f"{model.name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def spawn(self, command: list, cwd: Path | None = None, threads: int | None = None) -> Process:
        clock = self.settings.work / f"clock.{os.getpid()}"
        env = ENVIRON if threads is None else ENVIRON | {"OMP_NUM_THREADS": str(threads)}
        prefix = [self.settings.work / "bin" / "runclock", clock]
        try:
            done = subprocess.run(
                [str(word) for word in prefix + command],
                cwd=cwd,
                env=env,
                timeout=self.settings.timeout_s,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            spawn, end, rss, _, _, status = map(int, clock.read_text().split())
        except subprocess.TimeoutExpired:
            raise PeerError(f"not done after {self.settings.timeout_s:.0f} s") from None
        finally:
            clock.unlink(missing_ok=True)
        if status:
            message = complaint(done.stderr) or complaint(done.stdout)
            raise PeerError(f"{Path(command[0]).name}: exit status {status}: {message}")
        return Process(done.stdout, spawn, (end - spawn) / 1e6, rss)


class WorkerPeer(Peer):
    """A peer whose program takes aot-run's command line and prints its JSON line."""

    def program(self, model: Model) -> list:
        raise NotImplementedError

    def run(self, model: Model, budget: Budget, out: Path | None = None) -> dict:
        command = self.program(model)
        for i, tensor in enumerate(model.inputs):
            command += ["--input", f"{tensor['name']}={model.input_path(i)}"]
        if out:
            command += ["--output", out]
        command += ["--warmup", budget.warmup, "--runs", budget.runs, "--min-ms", budget.min_ms]
        command += ["--threads", self.settings.threads, "--json"]
        process = self.spawn(command, threads=self.settings.threads)
        try:
            result = json.loads(process.stdout.strip().splitlines()[-1])
            first_result_ns = result["first_result_ns"]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise PeerError(f"no result line ({error!r}): {tail(process.stdout)}") from None
        floor_ns = result.pop("floor_ns", process.spawn_ns)
        return result | {
            "cold_ms": (first_result_ns - process.spawn_ns) / 1e6,
            "floor_ms": (floor_ns - process.spawn_ns) / 1e6,
            "rss_kb": process.rss_kb,
        }

    def check(self, model: Model, out: Path) -> None:
        self.run(model, Budget(), out)

    def cold(self, model: Model) -> dict:
        return self.run(model, Budget())

    def steady(self, model: Model) -> dict:
        return self.run(model, self.settings.steady)


class Ort(WorkerPeer):
    """onnxruntime through its C API, the .onnx, all graph optimizations at load."""

    name = "ort"

    def needs(self) -> list[Path]:
        return [self.settings.work / "bin" / "ort_run"]

    def artifact(self, model: Model) -> Path:
        return model.path

    def convert(self, model: Model) -> dict | None:
        return None

    def program(self, model: Model) -> list:
        return [self.settings.work / "bin" / "ort_run", self.artifact(model), "--opt-level", 99]


class OrtFormat(Ort):
    """The same from a pre-optimized .ort file."""

    name = "ort_fmt"
    CONVERT = (
        "import sys, onnxruntime as ort; o = ort.SessionOptions();"
        "o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL;"
        "o.optimized_model_filepath = sys.argv[2];"
        "o.add_session_config_entry('session.save_model_format', 'ORT');"
        "ort.InferenceSession(sys.argv[1], o)"
    )

    def needs(self) -> list[Path]:
        return [*super().needs(), self.settings.python("ort")]

    def artifact(self, model: Model) -> Path:
        return self.build_path(model, ".ort")

    def convert(self, model: Model) -> dict:
        python = self.settings.python("ort")
        process = self.spawn([python, "-c", self.CONVERT, model.path, self.artifact(model)])
        return {"convert_ms": process.wall_ms, "convert_rss_kb": process.rss_kb}

    def program(self, model: Model) -> list:
        return [self.settings.work / "bin" / "ort_run", self.artifact(model), "--opt-level", 0]


class OpenVino(WorkerPeer):
    """OpenVINO through its C API, from its IR files."""

    name = "ov"
    CONVERT = (
        "import os, sys; os.environ['CI'] = 'true';"  # no usage reports: they can take seconds
        "import openvino as ov;"
        "ov.save_model(ov.convert_model(sys.argv[1]), sys.argv[2], compress_to_fp16=False)"
    )

    def needs(self) -> list[Path]:
        return [self.settings.work / "bin" / "ov_run", self.settings.python("ov")]

    def artifact(self, model: Model) -> Path:
        return self.build_path(model, ".xml")

    def artifact_files(self, model: Model) -> list[Path]:
        xml = self.artifact(model)
        return [xml, xml.with_suffix(".bin")]

    def convert(self, model: Model) -> dict:
        python = self.settings.python("ov")
        process = self.spawn([python, "-c", self.CONVERT, model.path, self.artifact(model)])
        return {"convert_ms": process.wall_ms, "convert_rss_kb": process.rss_kb}

    def program(self, model: Model) -> list:
        return [self.settings.work / "bin" / "ov_run", self.artifact(model)]


class OpenVinoCache(OpenVino):
    """The same with a warm CACHE_DIR, which is made on the device: the artifact is still the IR."""

    name = "ov_cache"

    def convert(self, model: Model) -> dict:
        result = super().convert(model)
        self.cold(model)  # fills the cache
        return result

    def program(self, model: Model) -> list:
        return [*super().program(model), "--cache-dir", self.build_path(model, ".cache")]


class PythonWorker(WorkerPeer):
    """A runtime that comes only as a Python module, run by worker.py in its own environment.

    worker.py tells where the interpreter's share ends; it is recorded and taken off in the tables.
    """

    environment: str

    def needs(self) -> list[Path]:
        return [self.settings.python(self.environment)]

    def program(self, model: Model) -> list:
        return [
            self.settings.python(self.environment),
            HERE / "worker.py",
            self.name,
            self.artifact(model),
        ]


class Ncnn(PythonWorker):
    """ncnn from pnnx's files: fp32 weights, fp16 and bf16 storage off."""

    name = environment = "ncnn"
    TYPES: ClassVar = {"float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32"}

    def pnnx(self) -> Path:
        return self.settings.site("pnnx", "pnnx/pnnx")

    def needs(self) -> list[Path]:
        return [*super().needs(), self.pnnx()]

    def artifact(self, model: Model) -> Path:
        return self.build_path(model, "")

    def artifact_files(self, model: Model) -> list[Path]:
        return [Path(f"{self.artifact(model)}.ncnn.{kind}") for kind in ("param", "bin")]

    def convert(self, model: Model) -> dict:
        base = self.artifact(model)
        shutil.copy(model.path, base.parent)  # pnnx writes its files beside its input
        shapes = [
            f"[{','.join(map(str, t['shape']))}]{self.TYPES.get(t['dtype'], 'f32')}"
            for t in model.inputs
        ]
        command = [self.pnnx(), f"{model.name}.onnx", f"inputshape={','.join(shapes)}", "fp16=0"]
        process = self.spawn(command, cwd=base.parent)
        if not all(path.exists() for path in self.artifact_files(model)):
            raise PeerError(f"pnnx wrote no ncnn files: {tail(process.stdout)}")
        return {"convert_ms": process.wall_ms, "convert_rss_kb": process.rss_kb}


class NcnnVulkan(Ncnn):
    """The same on the first Vulkan device; shaders compile while loading and at the first run."""

    name = "ncnn_vk"


class Mnn(PythonWorker):
    """MNN from its own file, precision normal."""

    name = environment = "mnn"

    def converter(self) -> Path:
        return self.settings.work / "venvs" / "mnn" / "bin" / "mnnconvert"

    def needs(self) -> list[Path]:
        return [*super().needs(), self.converter()]

    def artifact(self, model: Model) -> Path:
        return self.build_path(model, ".mnn")

    def convert(self, model: Model) -> dict:
        command = [self.converter(), "-f", "ONNX", "--bizCode", "peers"]
        command += ["--modelFile", model.path, "--MNNModel", self.artifact(model)]
        process = self.spawn(command)
        if not self.artifact(model).exists():
            raise PeerError(f"mnnconvert wrote no file: {tail(process.stdout)}")
        return {"convert_ms": process.wall_ms, "convert_rss_kb": process.rss_kb}


class Iree(Peer):
    """IREE for the host CPU at its default optimization level, through its command-line tools.

    iree-run-module does not tell when the first result was there: the whole process is measured.
    """

    name = "iree"
    FLAGS: tuple[str, ...] = (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    )

    def runtime(self, tool: str) -> Path:
        return self.settings.site("iree", f"iree/_runtime_libs/{tool}")

    def compiler(self) -> Path:
        return self.settings.site("iree", "iree/compiler/_mlir_libs/iree-compile")

    def importer(self) -> Path:
        return self.settings.work / "venvs" / "iree" / "bin" / "iree-import-onnx"

    def needs(self) -> list[Path]:
        return [
            self.importer(),
            self.compiler(),
            self.runtime("iree-run-module"),
            self.runtime("iree-benchmark-module"),
        ]

    def artifact(self, model: Model) -> Path:
        return self.build_path(model, ".vmfb")

    def mlir(self, model: Model) -> Path:
        return self.build_path(model, ".mlir")

    def convert(self, model: Model) -> dict:
        mlir, statistics_csv = self.mlir(model), self.build_path(model, ".csv")
        command = [self.importer(), model.path, "-o", mlir, "--opset-version", "17"]
        imported = self.spawn(command)
        compiled = self.spawn(
            [
                self.compiler(),
                mlir,
                "-o",
                self.artifact(model),
                "--iree-scheduling-dump-statistics-format=csv",
                f"--iree-scheduling-dump-statistics-file={statistics_csv}",
                *self.FLAGS,
            ]
        )
        return {
            "convert_ms": imported.wall_ms + compiled.wall_ms,
            "convert_rss_kb": max(imported.rss_kb, compiled.rss_kb),
            "import_ms": imported.wall_ms,
            **scheduling_counts(statistics_csv.read_text()),
        }

    def arguments(self, model: Model) -> list:
        with self.mlir(model).open() as text:
            found = re.search(r'func\.func @(?:"([^"]+)"|([\w$.]+))', text.read(1 << 16))
        if not found:
            raise PeerError("no function in the imported module")
        threads = self.settings.threads
        device = "local-sync" if threads == 1 else "local-task"
        topology = [] if threads == 1 else [f"--task_topology_group_count={threads}"]
        inputs = [f"--input=@{model.input_path(i)}" for i in range(len(model.inputs))]
        return [
            f"--device={device}",
            f"--module={self.artifact(model)}",
            f"--function={found[1] or found[2]}",
            *topology,
            *inputs,
        ]

    def check(self, model: Model, out: Path) -> None:
        outputs = [f"--output=@{out / f'{i}.npy'}" for i in range(len(model.outputs))]
        self.spawn([self.runtime("iree-run-module"), *self.arguments(model), *outputs])

    def cold(self, model: Model) -> dict:
        tool = self.runtime("iree-run-module")
        command = [tool, *self.arguments(model), "--output_max_element_count=1"]
        process = self.spawn(command)
        return {"cold_ms": process.wall_ms, "rss_kb": process.rss_kb}

    def steady(self, model: Model) -> dict:
        repetitions = 5
        process = self.spawn(
            [
                self.runtime("iree-benchmark-module"),
                *self.arguments(model),
                f"--benchmark_repetitions={repetitions}",
                f"--benchmark_min_time={self.settings.steady.min_ms / 1e3 / repetitions:.3f}s",
                "--benchmark_format=json",
            ]
        )
        report = json.loads(process.stdout[process.stdout.index("{") :])
        rows = [row for row in report["benchmarks"] if row["run_type"] == "iteration"]
        to_ms = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
        means = [row["real_time"] * to_ms[row["time_unit"]] for row in rows]
        return {
            "median_ms": statistics.median(means),
            "min_ms": min(means),
            "p90_ms": max(means),
            "runs": sum(row["iterations"] for row in rows),
            "rss_kb": process.rss_kb,
        }


class IreeBest(Iree):
    """One fixed set of better flags; compare with the better of the two."""

    name = "iree_best"
    FLAGS = (
        *Iree.FLAGS,
        "--iree-opt-level=O3",
        "--iree-dispatch-creation-data-tiling",
        "--iree-global-opt-use-im2col-for-convs",
        "--iree-preprocessing-pass-pipeline="
        "builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))",
        # Without these two some models are refused.
        "--iree-llvmcpu-stack-allocation-limit=1048576",
        "--iree-llvmcpu-fail-on-large-vector=0",
    )


class IreeVulkan(Iree):
    """IREE's SPIR-V through its Vulkan driver; some models take minutes on a software device."""

    name = "iree_vk"
    FLAGS = ("--iree-hal-target-device=vulkan",)

    def arguments(self, model: Model) -> list:
        own = ("--device=", "--task_topology")
        shared = [a for a in super().arguments(model) if not str(a).startswith(own)]
        return ["--device=vulkan", *shared]


def scheduling_counts(csv: str) -> dict[str, int]:
    """Dispatches and executables of the whole module, from iree-compile's statistics."""
    lines = csv.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith('"Constants"')), None)
    if at is None:
        return {}
    row = dict(
        zip((w.strip('"') for w in lines[at].split(",")), lines[at + 1].split(","), strict=False)
    )
    return {"dispatches": int(row["Dispatches"]), "executables": int(row["Executables"])}


class Aotc(WorkerPeer):
    """The product.  What it relies on:

    aotc compile MODEL.onnx -o OUT.aotm --target host
    aot-run OUT.aotm --input NAME=FILE.npy ... --output DIR --warmup N --runs N --min-ms MS
            --threads N --json

    The last line printed is a JSON object with first_result_ns (CLOCK_MONOTONIC at the end of the
    first inference), phases_ms {open, verify, map, prepare, first_run}, runs, median_ms, min_ms,
    p90_ms, peak_rss_kb.  With --runs 0 it stops after the first inference; without --output it
    writes nothing.  Outputs are DIR/NAME.npy or DIR/INDEX.npy.
    """

    name = "aotc"
    RUN_OPTIONS: tuple[str, ...] = ()

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.compiler = shutil.which(settings.aotc or "aotc")
        beside = Path(self.compiler).with_name("aot-run") if self.compiler else "aot-run"
        self.runner = shutil.which(settings.aot_run or beside) or shutil.which("aot-run")

    def missing(self) -> str | None:
        if not self.compiler:
            return f"no {self.settings.aotc or 'aotc'} (give --aotc)"
        return None if self.runner else "no aot-run on PATH or beside aotc (give --aot-run)"

    def target(self) -> str:
        return "host"

    def artifact(self, model: Model) -> Path:
        return self.build_path(model, ".aotm")

    def convert(self, model: Model) -> dict:
        command = [self.compiler, "compile", model.path, "-o", self.artifact(model)]
        process = self.spawn([*command, "--target", self.target()])
        return {"convert_ms": process.wall_ms, "convert_rss_kb": process.rss_kb}

    def program(self, model: Model) -> list:
        return [self.runner, self.artifact(model), *self.RUN_OPTIONS]


class AotcVulkan(Aotc):
    """The product on Vulkan: aotc compile ... --target TARGET, aot-run ... --device vulkan."""

    name = "aotc_vk"
    RUN_OPTIONS = ("--device", "vulkan")

    def target(self) -> str:
        return self.settings.vulkan_target


PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        *(Ort, OrtFormat, OpenVino, OpenVinoCache, Ncnn, Mnn, Iree, IreeBest, Aotc),
        *(NcnnVulkan, IreeVulkan, AotcVulkan),
    )
}
