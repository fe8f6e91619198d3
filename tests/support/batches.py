"""A small batch file, its models, and an executor that runs at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from aot.tools.batch.batch import Task

MODEL = """
func @main(%x: f32[N, 3]) -> ("y") {
  %1 = OP(%x) : f32[N, 3]
  return(%1)
}
"""
SMALL = """
models = ["a.ir", { name = "bee", path = "b.ir", input_shapes = { x = "4x3" } }]
targets = ["x86-64-v3", { name = "arm", targets = ["aarch64-generic"] }]
options = [{ name = "plain" }, { name = "half", storage = "fp16" }]
"""


class Here(Executor):
    """Runs at once, in this process."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(args[0])
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
