"""The tests that `pytest --contrastive` adds. Imported when the option is used; `contrapose.pytest_plugin` has the options."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

import contrapose
from contrapose.conformance.checks import CHECKS, check
from contrapose.conformance.findings import Finding
from contrapose.conformance.processes import check_picklable
from contrapose.conformance.references import REFERENCES
from contrapose.conformance.testing import judge
from contrapose.validate import check_known

OPTION = "--contrastive"


class ConformanceTests:
    """The plugin of one run: adds the tests, collects their findings and writes them to a file."""

    def __init__(
        self,
        config: pytest.Config,
        *,
        criterion: str,
        distributed: str | None,
        reference: str | None,
        json: Path | None,
    ) -> None:
        folder = config.invocation_params.dir
        self.findings: list[dict[str, Any]] = []
        self.has_errors = False  # whether a test failed, also one that ended before it had findings
        self.criterion = criterion
        self.reference = reference or "nt_xent"
        self.file = None if json is None else folder / json
        try:
            self.make = import_object(OPTION, criterion, folder)
            self.distributed = (
                None if distributed is None else import_object(f"{OPTION}-distributed", distributed, folder)
            )
            if self.distributed is not None:
                check_picklable(self.distributed)
            self.compared_with = _reference(self.reference, folder)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        if self.file is not None and not self.file.parent.is_dir():
            raise pytest.UsageError(f"{OPTION}-json: expected a file in an existing folder, got {str(json)!r}")
        self.names = {"distributed": distributed, "reference": reference}

    @pytest.hookimpl(tryfirst=True)  # before -k and -m select
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add one test per check."""
        tests = _Criterion.from_parent(session, name=self.criterion, nodeid=self.criterion)
        tests.run = self
        items.extend(session.genitems(tests))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the findings of a test. They come with its report, since pytest-xdist runs tests in other processes."""
        self.has_errors |= report.failed and report.nodeid.startswith(self.criterion)
        if report.when == "call":
            for name, findings in report.user_properties:
                if name == OPTION:
                    self.findings.extend(findings)  # type: ignore[arg-type]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the findings of all checks that ran."""
        if self.file is None or hasattr(session.config, "workerinput"):  # a process of pytest-xdist has a part of them
            return
        record = {
            "criterion": self.criterion,
            "distributed": self.names["distributed"],
            "reference": self.reference,
            "versions": {
                "contrapose": contrapose.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "passed": bool(self.findings) and not self.has_errors,
            "findings": self.findings,
        }
        self.file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def findings_of(self, name: str) -> list[Finding]:
        """Run one check."""
        return check(self.make, distributed=self.distributed, reference=self.compared_with, checks=[name])

    def command(self, name: str) -> str:
        """Return a line for the shell that runs one check."""
        given = {"": self.criterion, **{f"-{key}": value for key, value in self.names.items() if value}}
        options = " ".join(f"{OPTION}{key} {shlex.quote(value)}" for key, value in given.items())
        return f"python -m pytest {options} -m contrastive -k {name}"


class _Criterion(pytest.Collector):
    """The criterion, whose children are the checks."""

    run: ConformanceTests

    def collect(self) -> Iterator[pytest.Item]:
        for name in CHECKS:
            test = _Check.from_parent(self, name=name)
            test.run = self.run
            test.add_marker("contrastive")
            yield test


class _Check(pytest.Item):
    """One check of the criterion."""

    run: ConformanceTests

    def runtest(self) -> None:
        findings = self.run.findings_of(self.name)
        self.user_properties.append((OPTION, [finding.record() | {"failed": finding.failed} for finding in findings]))
        judge(findings, reproduce=self.run.command(self.name))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid


def import_object(option: str, name: str, folder: Path) -> Any:
    """Return the function that `module:function` names; modules in `folder` can be imported too.

    Raises ValueError, with the name of the command-line option, if there is no such function.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{option}: expected module:function, got {name!r}")
    if str(folder) not in sys.path:
        # `pytest`, unlike `python -m pytest`, does not look for modules in the current folder.
        sys.path.insert(0, str(folder))
    try:
        found = attrgetter(attribute)(import_module(module))
    except Exception as error:  # a module may raise anything when it is imported
        raise ValueError(f"{option}: cannot import {name}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{option}: expected a function, got {name} = {found!r}")
    return found


def _reference(name: str, folder: Path) -> Any:
    if ":" in name:
        return import_object(f"{OPTION}-reference", name, folder)
    check_known(f"{OPTION}-reference", name, REFERENCES)
    return name
