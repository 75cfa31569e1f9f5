"""The pytest plugin: `pytest --contrastive my_loss:factory` adds one test per conformance check.

pytest imports this module in every run of everybody who has contrapose installed. So it imports nothing else of contrapose, and
no torch, before the option is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

OPTION = "--contrastive"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("contrapose", "conformance of a contrastive loss (contrapose)")
    group.addoption(
        OPTION,
        metavar="MODULE:FUNCTION",
        help="check the criterion that FUNCTION(temperature) returns, one test per check; -m contrastive runs only these",
    )
    group.addoption(
        f"{OPTION}-distributed",
        metavar="MODULE:FUNCTION",
        help="its form for several processes; called in each process of an initialised process group",
    )
    group.addoption(
        f"{OPTION}-reference",
        metavar="NAME",
        help="the loss that it should compute: nt_xent (the default), info_nce, clip, siglip, or module:function of "
        "(z1, z2, temperature)",
    )
    group.addoption(f"{OPTION}-json", metavar="FILE", type=Path, help="write all findings to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the tests if a criterion is given."""
    config.addinivalue_line("markers", "contrastive: conformance checks of the criterion given by --contrastive")
    criterion = config.getoption("contrastive")
    others = {name: config.getoption(f"contrastive_{name}") for name in ("distributed", "reference", "json")}
    if criterion is not None:
        from contrapose.conformance.pytest_items import ConformanceTests

        config.pluginmanager.register(ConformanceTests(config, criterion=criterion, **others), "contrapose-conformance")
    elif unused := [name for name, value in others.items() if value is not None]:
        import pytest

        raise pytest.UsageError(f"{OPTION}-{unused[0]}: expected {OPTION} MODULE:FUNCTION as well")
