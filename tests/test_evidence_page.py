"""docs/evidence.md is what the recorded runs say."""

from __future__ import annotations

import re

import evidence_page


def test_the_page_is_that_of_the_records() -> None:
    assert evidence_page.PAGE.read_text() == evidence_page.page(), "run python benchmarks/evidence_page.py"


def test_every_number_links_to_a_run() -> None:
    links = re.findall(r"\]\((\.\./results/[^)]+)\)", evidence_page.PAGE.read_text())
    assert len(links) > 60
    assert all((evidence_page.PAGE.parent / link.partition("#")[0]).is_file() for link in links)


def test_no_two_settings_are_averaged() -> None:
    """Runs of one name in a table differ in their seeds only."""
    for protocol in evidence_page.PROTOCOLS:
        for results in evidence_page.averages(protocol.results()).values():
            assert len({result.seed for result in results}) == len(results)
