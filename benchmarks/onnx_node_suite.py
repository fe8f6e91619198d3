"""Runs ONNX's node tests on every engine.

python benchmarks/onnx_node_suite.py              all cases; prints the counts
python benchmarks/onnx_node_suite.py NAME...      these only, and why they fail
python benchmarks/onnx_node_suite.py --write      and rewrites the pins and the page of failures
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    from tests.support import onnx_node_report as report
    from tests.support import onnx_node_suite as suite

    parser = argparse.ArgumentParser(description="Runs ONNX's node tests.")
    parser.add_argument("names", nargs="*", help="cases; all if none is given")
    parser.add_argument("--write", action="store_true", help="rewrite the pins and the page")
    parser.add_argument("--engines", default=",".join(suite.ENGINES), help="comma-separated")
    options = parser.parse_args()
    outcomes = suite.survey(options.engines.split(","), options.names)
    for name in options.names:
        for engine, found in outcomes.items():
            print(f"{name} {engine}: {found[name] or 'passes'}")
    if not options.names:
        print(report.counts_table(outcomes))
        if options.write:
            report.write(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
