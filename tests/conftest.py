"""Shared by all tests: what a promise records, and a machine that behaves the same everywhere."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Read when torch is loaded: threads of processes that share the cores must not spin while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch
from hypothesis import settings

import contrapose

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"  # as `make promises` sets it: every case, however long it takes
settings.register_profile("ordinary", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("full", deadline=None, max_examples=1000)
if "PYTEST_XDIST_WORKER" in os.environ:  # one core for each worker, and for the runs and processes that it starts
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = os.environ["LOKY_MAX_CPU_COUNT"] = "1"
VERSIONS = {
    "contrapose": contrapose.__version__,
    "torch": torch.__version__,
    "python": platform.python_version(),
    "platform": f"{platform.system()} {platform.machine()}",
}
_CACHE = tempfile.TemporaryDirectory(prefix="contrapose-cache-")  # no test reads or writes the user's
os.environ["CONTRAPOSE_CACHE"] = _CACHE.name
torch.manual_seed(0)  # for what test modules draw when they are imported
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ordinary"))


# Files that take a minute or more, the longest first: at the end, one worker would wait for the other.
_LONG = (
    "promises/test_flat_memory.py", "test_site.py", "reduce/test_tiled.py", "pairs/test_ring.py", "promises/test_ranks.py", "promises/test_workers.py",
    "promises/test_kills.py", "lab/jobs/test_resumable.py", "lab/test_own_images.py", "promises/test_travelling_objects.py",
    "promises/test_world_size.py", "promises/test_resume.py", "lab/test_cli.py", "promises/test_fast_paths.py",
    "lab/cli/test_demo.py", "lab/training/test_default.py", "promises/test_hostile_memory.py",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the files that take longest first."""
    places = {config.rootpath / "tests" / name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


# What a skipped test needs, by a word of its reason, and how to run it.
_NEEDS = {
    "GPU": "a GPU (make test-all on a machine with one)",
    "Chromium": "Chromium (apt install chromium)",
    "": "other packages or data (pytest -rs names them)",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that were skipped by what they need, in one line, with how to run them."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    counts = Counter(next(word for word in _NEEDS if word in reason) for reason in reasons)
    if counts:
        parts = [f"{counts[word]} need {what}" for word, what in _NEEDS.items() if counts[word]]
        terminalreporter.write_line(f"skipped: {'; '.join(parts)}")


@dataclass
class Promise:
    """Counts cases and keeps the worst figure; one line of promises.jsonl."""

    cases: int = 0
    worst: float = 0.0

    def case(self, figure: float = 0.0) -> None:
        self.cases += 1
        self.worst = max(self.worst, figure)


@pytest.fixture(autouse=True)
def _same_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seed torch, and warn if a test leaves oneDNN disabled: convolutions then round differently in all tests that follow.

    torch disables it in the whole process when a CPU cannot compute a product in bf16.
    """
    torch.manual_seed(0)
    yield
    if not torch.backends.mkldnn.enabled:
        torch.backends.mkldnn.set_flags(True)
        request.node.warn(pytest.PytestWarning(f"{request.node.nodeid} left oneDNN disabled"))


@pytest.fixture
def promise(request: pytest.FixtureRequest) -> Iterator[Promise]:
    """Appends name, cases, passed, worst figure, seconds and versions to promises.jsonl in the project's root."""
    record, start, before = Promise(), time.perf_counter(), request.session.testsfailed
    yield record
    line = {
        "name": request.node.nodeid.split("promises/")[-1],
        "cases": record.cases,
        "passed": request.session.testsfailed == before and record.cases > 0,
        "worst": record.worst,
        "seconds": round(time.perf_counter() - start, 3),
        "versions": VERSIONS,
    }
    with (Path(request.config.rootpath) / "promises.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
