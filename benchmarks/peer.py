"""`Peer`: a criterion of a library that conformance.py checks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from contrapose.conformance.checks import CHECKS, check
from contrapose.conformance.findings import Finding
from contrapose.conformance.measure import MakeCriterion
from contrapose.conformance.references import Reference


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A criterion of a library, with the loss that it should compute."""

    name: str
    make: MakeCriterion
    reference: str | Reference
    distributed: MakeCriterion | None = None
    module: str = "torch"  # modules to import, for this criterion and for its distributed form
    package: str = "torch"  # its name in the package index
    checks: tuple[str, ...] = tuple(CHECKS)  # an option for several processes has nothing else to check
    promised: tuple[str, ...] = ("formula", "distributed", "duplicates")  # checks of what its documentation promises
    ours: bool = False

    @property
    def version(self) -> str:
        """Version of the installed package; empty if it is not installed."""
        if importlib.util.find_spec(self.module.partition(".")[0]) is None:
            return ""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:  # a source tree on the path
            return "unknown"

    def check(self, name: str) -> list[Finding]:
        """Return the findings of one check."""
        return check(self.make, distributed=self.distributed, reference=self.reference, checks=[name])
