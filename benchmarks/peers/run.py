"""aotc beside its peers: convert once, then interleaved rounds of fresh processes.

  run.py --models a,b --peers ort,ov,ncnn,mnn,iree,iree_best,aotc [--what convert,cold,steady]
         [--threads 1] [--rounds 5] [--work WORK] [--aotc PATH] [--aot-run PATH]

Appends one JSON line a measurement to WORK/results.jsonl and prints the tables of this run.
Needs numpy: WORK/venvs/ort/bin/python will do.  WORK comes from setup.sh and prepare.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report
from peers import PEERS, Budget, Model, Peer, PeerError, Settings

DEFAULT_PEERS = "ort,ov,ncnn,mnn,iree,iree_best,aotc"
STAGES = ("convert", "cold", "steady")
FAILURES = (PeerError, OSError, KeyError, ValueError)  # the last three: output that cannot be read


class Log:
    """The records of this run, each also a line of the results file."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.records: list[report.Record] = []

    def add(self, kind: str, **fields: object) -> None:
        record = {"run": self.run, "kind": kind, "time": round(time.time()), **fields}
        record["load1"] = round(os.getloadavg()[0], 2)
        self.records.append(record)
        with self.path.open("a") as out:
            out.write(json.dumps(record) + "\n")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def relative_error(model: Model, out: Path) -> float:
    """Largest error over all outputs, each relative to the largest magnitude of its reference.

    An output file is found by its index or its name; where a runtime keeps neither, by its size,
    and of several that fit the nearest counts.  Infinite where one is missing or not finite.
    """
    got = {re.sub(r"\W", "_", path.stem): np.load(path) for path in out.glob("*.npy")}
    worst = 0.0
    for i, output in enumerate(model.outputs):
        expected = np.load(model.output_path(i)).astype(np.float64).ravel()
        names = {str(i), re.sub(r"\W", "_", output["name"])}
        named = [tensor for name, tensor in got.items() if name in names]
        fits = [t.astype(np.float64).ravel() for t in named or got.values()]
        errors = [
            float(np.abs(t - expected).max(initial=0)) for t in fits if t.size == expected.size
        ]
        scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
        worst = max(worst, min(filter(math.isfinite, errors), default=math.inf) / scale)
    return worst


def convert_and_check(peers: list[Peer], model: Model, is_converting: bool, log: Log) -> list[Peer]:
    """Convert if asked, compare outputs with the reference; return the peers that got through."""
    ready = []
    for peer in peers:
        stage = "convert"
        try:
            if is_converting:
                peer.clear(model)
                converted = peer.convert(model)
                log.add("convert", model=model.name, peer=peer.name, **(converted or {}))
            missing = [path for path in peer.artifact_files(model) if not path.exists()]
            if missing:
                raise PeerError(f"no artifact {missing[0].name}: run --what convert")
            log.add("artifact", model=model.name, peer=peer.name, bytes=peer.artifact_bytes(model))
            stage = "check"
            with tempfile.TemporaryDirectory() as out:
                peer.check(model, Path(out))
                error = relative_error(model, Path(out))
        except FAILURES as failure:
            fail(log, model, peer, stage, failure)
            continue
        log.add("check", model=model.name, peer=peer.name, error=error)
        if not error <= report.ERROR_LIMIT:
            note(f"{model.name}: {peer.name}: wrong outputs, relative error {error:.1e}")
        ready.append(peer)
    return ready


def measure(stage: str, peers: list[Peer], model: Model, rounds: int, log: Log) -> list[Peer]:
    """Peers take turns, and a different one begins each round; return those that got through."""
    ready = list(peers)
    for index in range(rounds):
        shift = index % max(1, len(peers))
        for peer in peers[shift:] + peers[:shift]:
            if peer not in ready:
                continue
            try:
                result = getattr(peer, stage)(model)
            except FAILURES as failure:
                fail(log, model, peer, stage, failure)
                ready.remove(peer)
                continue
            log.add(stage, model=model.name, peer=peer.name, round=index, **result)
    return ready


def fail(log: Log, model: Model, peer: Peer, stage: str, failure: Exception) -> None:
    note(f"{model.name}: {peer.name}: {stage} failed: {failure}")
    log.add("fail", model=model.name, peer=peer.name, stage=stage, error=str(failure))


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((n.split(":")[1].strip() for n in lines if n.startswith("model name")), "unknown")


def load_models(work: Path) -> dict[str, Model]:
    index = json.loads((work / "models" / "models.json").read_text())
    return {
        name: Model(name, work / "models", row["macs"], row["inputs"], row["outputs"])
        for name, row in index.items()
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    work = os.environ.get("PEERS_WORK", Path.home() / ".cache" / "peers")
    parser.add_argument("--models", help="ids, with commas between them; all prepared ones")
    parser.add_argument("--peers", default=DEFAULT_PEERS, help=f"of {','.join(PEERS)}")
    parser.add_argument("--what", default=",".join(STAGES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--min-ms", type=float, default=600, help="steady time a process")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a process")
    parser.add_argument("--work", type=Path, default=Path(work), help="default $PEERS_WORK")
    parser.add_argument("--aotc", help="the compiler; default: from PATH")
    parser.add_argument("--aot-run", help="the native tool; default: beside aotc or from PATH")
    parser.add_argument("--vulkan-target", default="vulkan-1.1", help="of aotc_vk")
    args = parser.parse_args()
    for option, allowed in (("peers", PEERS), ("what", STAGES)):
        values = getattr(args, option).split(",")
        unknown = [value for value in values if value not in allowed]
        if unknown:
            parser.error(f"--{option}: unknown {', '.join(unknown)}; one of {', '.join(allowed)}")
        setattr(args, option, values)
    if not (args.work / "bin" / "runclock").exists():
        parser.error(f"no {args.work / 'bin' / 'runclock'}: run setup.sh")
    if not (args.work / "models" / "models.json").exists():
        parser.error(f"no models in {args.work / 'models'}: run prepare.py")
    return args


def main() -> int:
    args = parse_arguments()
    work = args.work.resolve()
    models = load_models(work)
    names = args.models.split(",") if args.models else list(models)
    unknown = [name for name in names if name not in models]
    if unknown:
        note(f"run.py: not prepared: {', '.join(unknown)}")
        return 2

    steady = Budget(warmup=3, runs=10, min_ms=args.min_ms)
    settings = Settings(
        *(work, args.threads, args.timeout, args.aotc, args.aot_run, args.vulkan_target), steady
    )
    peers = []
    for peer in (PEERS[name](settings) for name in args.peers):
        if reason := peer.missing():
            print(f"left out: {peer.name}: {reason}")
        else:
            peers.append(peer)

    log = Log(work / "results.jsonl", time.strftime("%Y%m%d-%H%M%S"))
    log.add("host", cpu=cpu_name(), cpus=os.cpu_count(), threads=args.threads)
    for name in names:
        note(f"{name}: {', '.join(args.what)}")
        model = models[name]
        log.add("model", model=name, macs=model.macs)
        ready = convert_and_check(peers, model, "convert" in args.what, log)
        for stage in ("cold", "steady"):
            if stage in args.what:
                ready = measure(stage, ready, model, args.rounds, log)

    print(f"run {log.run}: {cpu_name()}, {args.threads} thread(s), {args.rounds} rounds\n")
    print(report.render(log.records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
