"""Runs PyTorch's own samples of its ops, each exported, compiled for the host and compared.

python benchmarks/torch_op_samples.py --out FILE      all ops; prints the counts; may be resumed
python benchmarks/torch_op_samples.py OP...           these only, and what became of their samples
python benchmarks/torch_op_samples.py --page FILE...  writes the page from what was run
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def _shard(text: str) -> tuple[int, int]:
    """ "2/8" is the third of eight shares."""
    part, parts = map(int, text.split("/"))
    if not 0 <= part < parts:
        raise ValueError(text)
    return part, parts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs PyTorch's own samples of its ops.")
    parser.add_argument("names", nargs="*", help="ops; all if none is given")
    parser.add_argument("--dtypes", default="float32,int64,bool", help="comma-separated")
    parser.add_argument("--samples", type=int, default=3, help="samples an op and dtype")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="0/1 is all")
    parser.add_argument("--out", type=Path, help="lines of JSON; what stands there is not rerun")
    parser.add_argument("--page", type=Path, nargs="+", metavar="FILE", help="outputs of runs")
    return parser.parse_args()


def main() -> int:
    from tests.support import torch_op_report as report
    from tests.support import torch_op_samples as suite

    options = _options()
    if options.page:
        records = [record for path in options.page for record in suite.read_records(path)]
        report.write(list({(r.name, r.dtype): r for r in records}.values()))  # the last of each
        return 0
    names = suite.chosen(options.names, options.shard)
    records = suite.read_records(options.out) if options.out else []
    found = suite.survey(names, options.dtypes.split(","), options.samples, list(records))
    for record in found:
        records.append(record)
        if options.out:
            with options.out.open("a") as out:
                print(record.to_json(), file=out)
        for number, outcome in enumerate(record.outcomes):
            if options.names or outcome.verdict in suite.FAULTS:
                print(
                    f"{record.name} {record.dtype} {number}: {outcome.verdict}; {outcome.note}",
                    flush=True,
                )
    print(report.counts_table(records))
    return int(any(o.verdict in suite.FAULTS for record in records for o in record.outcomes))


if __name__ == "__main__":
    sys.exit(main())
