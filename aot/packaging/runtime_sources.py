"""Finds the runtime's C sources, and selects those that a build needs.

By folder and by name: what is added to the runtime is found without a change here.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from aot.base.records import dataclass
from aot.errors import CompileError

INSTALLED = "_runtime_source"  # in the package; in a checkout the folder runtime beside it


@dataclass(frozen=True)
class RuntimeSources:
    """The C sources of the runtime: paths relative to `root`, with slashes, sorted."""

    root: Path

    @cached_property
    def headers(self) -> list[str]:
        """All headers that any build may include."""
        patterns = ("include/aot/*.h", "src/*.h", "state/*.h", "drivers/*/*.h", "packaging/aot/*.h")
        return self._find(*patterns)

    @cached_property
    def common(self) -> list[str]:
        """The sources that every build needs: the core with the CPU driver, without operating
        system parts.
        """
        core = [f for f in self._find("src/*.c") if not Path(f).name.startswith("os_")]
        beside = self._find("drivers/cpu/*.c", "extras/*.c")
        return [*core, *beside, "state/lengths.c", "state/pieces.c"]

    @property
    def posix(self) -> list[str]:
        return ["src/os_posix.c", "cores/cores_posix.c", "state/state.c"]

    @property
    def threads(self) -> list[str]:
        return ["src/os_threads_posix.c"]

    @property
    def no_os(self) -> list[str]:
        return ["packaging/os_none.c"]

    @property
    def embedding(self) -> list[str]:
        return ["packaging/embedded.c"]

    @cached_property
    def text(self) -> list[str]:
        """The sources and headers of chats, and of encoding and decoding text for language
        models."""
        return self._find("text/*.c", "text/*.h")

    @cached_property
    def vulkan(self) -> list[str]:
        return self._find("drivers/vulkan/*.c")

    @cached_property
    def tool(self) -> list[str]:
        """The sources and headers of aot-run."""
        return self._find("tools/*.c", "tools/*.h")

    def read(self, name: str) -> bytes:
        """The contents of one file."""
        return (self.root / name).read_bytes()

    def _find(self, *patterns: str) -> list[str]:
        found = [path for pattern in patterns for path in self.root.glob(pattern)]
        return sorted(path.relative_to(self.root).as_posix() for path in found)


def runtime_sources() -> RuntimeSources:
    """The sources that are installed with this package.

    Raises:
        CompileError: they did not.
    """
    package = Path(__file__).resolve().parent.parent
    places = (package / INSTALLED, package.parent / "runtime")
    for place in places:
        if (place / "src" / "module.c").is_file():
            return RuntimeSources(place)
    looked = ", ".join(map(str, places))
    raise CompileError(f"the runtime's sources are not there: {looked}; install the package again")
