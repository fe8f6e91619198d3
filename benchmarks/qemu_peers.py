"""Instructions of one inference on Arm beside other engines, counted under QEMU.

    python benchmarks/qemu_peers.py --setup FOLDER             # an AArch64 Python with the engines
    python benchmarks/qemu_peers.py --setup FOLDER --work WORK squeezenet_rw yolov8n_320
    python benchmarks/qemu_peers.py --setup FOLDER --work WORK --target aarch64-linux-dotprod \\
        resnet50_rw.int8 --peers ort

WORK is the folder of peers/setup.sh and peers/prepare.py. ONNX Runtime, ncnn and MNN are their
wheels for AArch64 in an emulated Python, one thread, the files that peers/ converts; this
compiler's module runs in a static `aot-run`. The emulated CPU has the instructions of the target
and no others. An inference is what a process takes more that makes one more.
Counts say nothing of caches, nor how many instructions a core begins at a time.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "peers")]

import numpy as np
from peers import HERE, Mnn, Model, Ncnn, Ort, Peer, PeerError, Settings
from run import load_models, relative_error

from aot.errors import AotError
from aot.options import CompileOptions
from benchmarks.qemu_instructions import count_model, plugin_for

EMULATOR = "qemu-aarch64"
# the CPU whose instructions a target has, and its number; QEMU has none with i8mm alone
CPUS = {"aarch64-generic": "cortex-a72", "aarch64-linux-dotprod": "cortex-a76"}
PARTS = {"cortex-a72": (0xD08, ""), "cortex-a76": (0xD0B, " atomics fphp asimdhp asimdrdm asimddp")}
MOST_ERROR = 0.2  # more is another model; quantised ones differ by steps
RUNS = (1, 2, 3, 4, 5)
PACKAGES = ("numpy==2.4.6", "onnxruntime==1.31.1", "ncnn==1.0.20261020", "MNN==3.6.1")
PYTHON = "3.11"  # of the Debian packages below
DEBS = (
    *(f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib"),
    *("libc6", "libstdc++6", "libgcc-s1", "libgomp1", "zlib1g", "libexpat1", "libffi8"),
    *("libssl3", "liblzma5", "libbz2-1.0", "libuuid1", "libcrypt1"),
)
PLATFORMS = (
    *("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_24_aarch64"),
    *("manylinux_2_17_aarch64", "manylinux2014_aarch64", "any"),
)


class Emulated:
    """An AArch64 Python in a folder, with the engines' packages.

    Attributes:
        root: what its programs see as the root of the file system.
        packages: of Python.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.packages = folder / "packages"

    def install(self) -> None:
        """Fetches what is missing: Debian's packages, which need its arm64 lists, and wheels.

        Raises:
            subprocess.CalledProcessError: a package cannot be had.
        """
        if not (self.root / "usr" / "bin" / f"python{PYTHON}").exists():
            self._install_debs()
        if not self.packages.exists():
            self._install_wheels()

    def _install_debs(self) -> None:
        subprocess.run(["dpkg", "--add-architecture", "arm64"], check=True)
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        with tempfile.TemporaryDirectory() as folder:
            names = [f"{name}:arm64" for name in DEBS]
            subprocess.run(["apt-get", "download", "-qq", *names], cwd=folder, check=True)
            self.root.mkdir(parents=True, exist_ok=True)
            for file in sorted(Path(folder).glob("*.deb")):
                subprocess.run(["dpkg", "-x", str(file), str(self.root)], check=True)

    def _install_wheels(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
            command += ["--only-binary=:all:", "--python-version", PYTHON, "--abi", "abi3"]
            command += ["--abi", f"cp{PYTHON.replace('.', '')}", "--abi", "none"]
            for platform in PLATFORMS:
                command += ["--platform", platform]
            subprocess.run([*command, *PACKAGES], check=True)
            for file in sorted(Path(folder).glob("*.whl")):
                with zipfile.ZipFile(file) as wheel:
                    wheel.extractall(self.packages)

    def count(self, cpu: str, arguments: Sequence[str | Path]) -> int:
        """Instructions of a Python process.

        Raises:
            PeerError: it failed.
        """
        self._describe(cpu)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "counts"
            command = [EMULATOR, "-cpu", cpu, "-L", self.root]
            command += ["-plugin", f"{plugin_for(EMULATOR)},out={out}"]
            command += [self.root / "usr" / "bin" / f"python{PYTHON}", *arguments]
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.packages)}
            environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            environment |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(
                list(map(str, command)),
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            if done.returncode:
                raise PeerError((done.stderr.strip() or "no message").splitlines()[-1][:200])
            return sum(int(line.split()[1]) for line in out.read_text().splitlines())

    def _describe(self, cpu: str) -> None:
        """Writes what the emulated Linux says of its processors: the host's own are not Arm's,
        and QEMU before 8.1 shows them."""
        part, features = PARTS[cpu]
        text = "".join(
            f"processor\t: {number}\nBogoMIPS\t: 100.00\n"
            f"Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid{features}\n"
            f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
            f"CPU part\t: {part:#x}\nCPU revision\t: 0\n\n"
            for number in range(os.cpu_count() or 1)
        )
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc" / "cpuinfo").write_text(text)


def count_peer(emulated: Emulated, cpu: str, peer: Peer, model: Model) -> int:
    """Instructions of one inference by another engine.

    Raises:
        PeerError: it cannot run the model.
    """
    worker: list[str | Path] = [HERE / "worker.py", peer.name, peer.artifact(model)]
    for i, tensor in enumerate(model.inputs):
        worker += ["--input", f"{tensor['name']}={model.input_path(i)}"]
    with tempfile.TemporaryDirectory() as out:
        worker += ["--output", out, "--warmup", "1", "--runs"]
        counts = [emulated.count(cpu, [*worker, runs]) for runs in map(str, RUNS)]
        error = relative_error(model, Path(out))
    if error > MOST_ERROR:
        raise PeerError(f"its outputs are off by {error:.2g} of the largest")
    return slope(RUNS, counts)


def slope(runs: Sequence[int], counts: Sequence[int]) -> int:
    """What a run adds. The start of some processes takes many instructions more than that of
    others: the slope that most pairs of processes agree on, within a percent.

    >>> slope((1, 2, 3, 4, 5), (110, 120, 630, 140, 650))
    10
    """
    points = list(zip(runs, counts, strict=True))
    slopes = sorted((d - b) / (c - a) for (a, b), (c, d) in itertools.combinations(points, 2))
    return round(max(slopes, key=lambda s: sum(abs(s - t) <= 0.01 * abs(s) for t in slopes)))


def count_ours(model: Model, target: str) -> int:
    """Instructions of one inference of the compiled model."""
    inputs = {t["name"]: np.load(model.input_path(i)) for i, t in enumerate(model.inputs)}
    return count_model(model.path, CompileOptions(targets=(target,)), inputs).instructions


def main() -> int:
    """A line for each model as it is counted; the geometric mean at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help="of WORK/models; all by default")
    parser.add_argument("--setup", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--work", type=Path, help="of the peers; without it only --setup is done")
    parser.add_argument("--target", default="aarch64-generic", choices=CPUS)
    parser.add_argument("--peers", default="ort,ncnn,mnn")
    arguments = parser.parse_args()
    emulated = Emulated(arguments.setup)
    emulated.install()
    if arguments.work is None:
        return 0
    settings, ratios = Settings(arguments.work.resolve()), []
    chosen = arguments.peers.split(",")
    peers = [kind(settings) for kind in (Ort, Ncnn, Mnn) if kind.name in chosen]
    print(f"{'millions of instructions':28}", *(f"{p.name:>10}" for p in peers), "aotc  of best")
    known = load_models(arguments.work.resolve())
    for model in [known[name] for name in arguments.models or known]:
        found: list[int | None] = []
        for peer in peers:
            try:
                if not all(file.exists() for file in peer.artifact_files(model)):
                    peer.convert(model)
                found.append(count_peer(emulated, CPUS[arguments.target], peer, model))
            except PeerError as error:
                print(f"  {peer.name}: {error}")
                found.append(None)
        try:
            ours = count_ours(model, arguments.target)
        except (AotError, RuntimeError) as error:
            print(f"{model.name:28} {error}")
            continue
        shown = ["         -" if n is None else f"{n / 1e6:10.1f}" for n in found]
        best = min((n for n in found if n), default=None)
        ratio = "" if best is None else f"{ours / best:.2f}"
        ratios += [ours / best] if best else []
        print(f"{model.name:28}", *shown, f"{ours / 1e6:8.1f}  {ratio}", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean {mean:.2f} of the best of {len(ratios)}, worst {max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
