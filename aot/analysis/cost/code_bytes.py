"""The bytes of each part of a kernel's code, by architecture and vectors.

A table only: `code_size.py` says what the parts are and counts them. Made by
`python benchmarks/code_size.py --fit`, which compiles the reference models' executables.
"""

from __future__ import annotations

from collections.abc import Mapping

Fit = Mapping[str, Mapping[str, float]]
"""Bytes by form of loops and part; of several stages, the share of what each takes alone."""

FITTED: Mapping[str, Fit] = {
    "x86_64/32": {
        "attention": {
            "cheap": 5.8,
            "dear": 441.7,
            "kernel": 2340.6,
            "parameters": 33.7,
            "sum": 78.3,
        },
        "products": {
            "body": 80.3,
            "bordered body": 141.4,
            "bordered row": 5.5,
            "cheap": 26.3,
            "cheap of a sum": 3.0,
            "dear": 462.7,
            "dynamic body": 96.7,
            "guarded row": 24.3,
            "masked sum": 17.8,
            "own weights": 321.2,
            "parameters": 56.4,
            "row": 23.8,
            "stored sum": 0.9,
            "vector": 113.8,
        },
        "recurrence": {
            "cheap": 5.8,
            "dear": 441.7,
            "kernel": 3140.6,
            "parameters": 33.7,
            "sum": 78.3,
        },
        "scan": {
            "cheap": 5.8,
            "dear": 441.7,
            "kernel": 1040.6,
            "parameters": 33.7,
            "sum": 78.3,
        },
        "sort": {
            "cheap": 5.8,
            "dear": 441.7,
            "kernel": 1640.6,
            "parameters": 33.7,
            "sum": 78.3,
        },
        "stages": {
            "several": 0.72,
        },
        "stream": {
            "cheap": 5.8,
            "dear": 441.7,
            "kernel": 140.6,
            "parameters": 33.7,
            "sum": 78.3,
        },
        "window": {
            "body": 150.3,
            "bordered body": 372.9,
            "cheap": 3.8,
            "cheap of a sum": 11.8,
            "dynamic row": 95.5,
            "guarded sum": 36.8,
            "guarded tap": 7.0,
            "kept sum": 30.7,
            "looped": 1.3,
            "parameters": 2.5,
            "tap": 17.7,
        },
        "winograd": {
            "cheap": 434.1,
            "dear": 371.3,
            "kernel": 3623.6,
            "parameters": 359.8,
            "vectors": 266.1,
        },
    },
}
