"""How many threads `auto` takes: files as the systems of phones, PCs and containers have them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.errors import RuntimeFailure
from aot.runtime import cores
from aot.tools.devices import devices
from tests.support.runtime_modules import scale_module

CPUS = "sys/devices/system/cpu"


def tree(folder: Path, online: str, **files: object) -> Path:
    """A system with these CPUs; the files' names have `__` for a slash, `N` for each number of a
    list of values."""
    (folder / CPUS).mkdir(parents=True)
    (folder / CPUS / "online").write_text(f"{online}\n")
    for name, value in files.items():
        path = name.replace("__", "/")
        values = {path: value}
        if isinstance(value, list):
            values = {f"{CPUS}/cpu{n}/{path}": each for n, each in enumerate(value)}
        for file, text in values.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f"{text}\n")
    return folder


def check(
    folder: Path, threads: int, cpus: tuple[int, ...], reason: str, *, leaves_slower: bool = False
) -> None:
    assert cores.find(folder) == cores.ChosenCores(threads, cpus, leaves_slower, reason)


def test_a_phone_takes_its_big_and_middle_cores(tmp_path: Path) -> None:
    capacities = [250, 250, 250, 250, 620, 620, 1024, 1024]
    folder = tree(tmp_path, "0-7", cpu_capacity=capacities)
    reason = "4 of 8 cores: the others have at most 24 % of the fastest one's capacity"
    check(folder, 4, (4, 5, 6, 7), reason, leaves_slower=True)


def test_half_of_the_fastest_is_fast(tmp_path: Path) -> None:
    folder = tree(tmp_path, "0-2", cpu_capacity=[1024, 512, 511])
    reason = "2 of 3 cores: the others have at most 49 % of the fastest one's capacity"
    check(folder, 2, (0, 1), reason, leaves_slower=True)


def test_clocks_where_no_capacity_is_told(tmp_path: Path) -> None:
    clocks = [1_800_000] * 4 + [2_400_000] * 3 + [2_900_000]
    folder = tree(tmp_path, "0-7", cpufreq__cpuinfo_max_freq=clocks)
    reason = "4 of 8 cores: the others have at most 62 % of the fastest one's clock"
    check(folder, 4, (4, 5, 6, 7), reason, leaves_slower=True)


def test_a_capacity_that_one_core_lacks_counts_for_none(tmp_path: Path) -> None:
    folder = tree(tmp_path, "0-1", cpu_capacity=[300])
    check(folder, 2, (0, 1), "all 2 cores that the process may use")


def test_one_thread_for_two_of_a_core(tmp_path: Path) -> None:
    siblings = ["0,4", "1,5", "2,6", "3,7"] * 2
    folder = tree(tmp_path, "0-7", topology__thread_siblings_list=siblings)
    check(folder, 4, (0, 1, 2, 3), "all 4 cores, which are 8 CPUs")


def test_efficiency_cores_of_a_pc(tmp_path: Path) -> None:
    siblings = ["0-1", "0-1", "2-3", "2-3", "4", "5"]
    files = {"sys__devices__cpu_atom__cpus": "4-5", "topology__thread_siblings_list": siblings}
    folder = tree(tmp_path, "0-5", **files)
    check(folder, 2, (0, 2), "2 of 4 cores: the others are efficiency cores", leaves_slower=True)


def test_only_efficiency_cores(tmp_path: Path) -> None:
    folder = tree(tmp_path, "4-5", sys__devices__cpu_atom__cpus="4-5")
    check(folder, 2, (4, 5), "all 2 cores that the process may use")


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"sys__fs__cgroup__cpu.max": "150000 100000"}, 2),
        ({"sys__fs__cgroup__cpu.max": "50000 100000"}, 1),
        ({"sys__fs__cgroup__cpu.max": "max 100000"}, 4),
        ({"sys__fs__cgroup__cpu.max": "900000 100000"}, 4),
        ({"sys__fs__cgroup__cpu.max": "rubbish"}, 4),
        ({"sys__fs__cgroup__cpu.max": "100000 0"}, 4),
        (
            {
                "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "300000",
                "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000",
            },
            3,
        ),
        ({"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1"}, 4),
    ],
)
def test_a_container_s_quota(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    reason = "all 4 cores that the process may use"
    if threads < 4:
        reason += f"; the control group's quota allows {threads}"
    check(tree(tmp_path, "0-3", **files), threads, (0, 1, 2, 3), reason)


@pytest.mark.parametrize("online", ["", "0-", "-3", "zero", "99999", "0-3;4"])
def test_rubbish_is_one_thread(tmp_path: Path, online: str) -> None:
    check(tree(tmp_path, online), 1, (), "the system tells of no cores")


def test_a_system_without_files(tmp_path: Path) -> None:
    check(tmp_path, 1, (), "the system tells of no cores")


def test_more_cpus_than_are_numbered(tmp_path: Path) -> None:
    found = cores.find(tree(tmp_path, "0-4000000000"))
    assert (found.threads, len(found.cpus)) == (256, 1024)
    assert found.reason == "all 1024 cores that the process may use; the runtime allows 256"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's CPU sets")
def test_only_what_the_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    try:
        os.sched_setaffinity(0, {first})
        found = cores.find()
        with aot.load(scale_module().to_bytes(), threads="auto") as program:
            assert program.threads == found.threads == 1
            x = np.ones((2, 3), np.float32)
            assert program(x=x)["y"].shape == (2, 3)
        assert os.sched_getaffinity(0) == {first}
    finally:
        os.sched_setaffinity(0, before)
    assert found.cpus == (first,)


def test_devices_tells_how_many_and_why() -> None:
    cpu = next(iter(devices()))
    found = cores.find()
    assert (cpu.threads, cpu.threads_reason) == (found.threads, found.reason)


def test_no_other_words() -> None:
    with pytest.raises(RuntimeFailure) as caught:
        aot.load(scale_module().to_bytes(), threads="many")  # type: ignore[arg-type]
    assert str(caught.value) == "many threads, expected 1 to 256, or auto"
