"""Options and rules of the whole suite: `--bless`, `--op`, and no silent skips where CI runs."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
from hypothesis import settings

# There is a worker for each core, and threads for products of matrices wait for more by spinning:
# they are counted when numpy is imported.
for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import aot.ops  # noqa: E402, F401 - fills the op table, whatever a test imports first
from tests.support.paths import MODULES_VARIABLE  # noqa: E402

# no deadline: tests never depend on time; the same examples in every run of CI
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)

IS_CI = os.environ.get("CI") == "true"
settings.load_profile("ci" if IS_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="rewrite golden files to what the code now gives"
    )
    parser.addoption(
        "--op",
        action="append",
        default=[],
        metavar="NAME",
        help="of the samples that the runtime runs, only those of this op; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A cache of compiled code, and one of compiled reference models, for this run alone, which
    its workers share: no test finds what another run left, and none touches the user's."""
    for name in ("AOT_CACHE_DIR", MODULES_VARIABLE):
        if name not in os.environ:
            folder = tempfile.mkdtemp(prefix="aotc-test-cache-")
            os.environ[name] = folder
            config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
            config.add_cleanup(partial(os.environ.pop, name, None))
    if names := config.getoption("--op"):
        from tests.support import samples_module

        try:
            samples_module.restrict_to(names)
        except ValueError as error:
            raise pytest.UsageError(f"--op: {error}") from None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """What collecting has made stays until the end: looking through it for garbage, ever so often,
    takes a tenth of a run. Tests are collected as always, their garbage a little later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--bless"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sweeps take hours: they run where `-m` or a test's own id asks for them."""
    is_named = any("::" in a for a in config.args)
    for marker in ("sweep", "gate"):
        asked = is_named or marker in (config.option.markexpr or "")
        apart = [] if asked else [item for item in items if item.get_closest_marker(marker)]
        if apart:
            config.hook.pytest_deselected(items=apart)
            items[:] = [item for item in items if not item.get_closest_marker(marker)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each worker has tests that follow each other, half of the rest when it has none left: those
    that take long are side by side, and one worker would be left with them."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what tests have measured and told with `record_property("figure", ...)`."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    figures = [text for r in reports for key, text in r.user_properties if key == "figure"]
    if figures:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(dict.fromkeys(figures)))


def _fail_if_skipped(report: Any) -> None:
    """A skipped test proves nothing: CI has everything that tests ask for."""
    if IS_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped where CI=true: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
