"""Passes: graph to graph, one a file. Their order lives in pipeline.py alone."""

from aot.passes.base import Pass, PassContext, PassRun, run_passes

__all__ = ["Pass", "PassContext", "PassRun", "run_passes"]
