"""`import contrapose` offers what users need, with torch alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import contrapose


def test_every_public_name_is_there_and_documented() -> None:
    assert set(contrapose.__all__) <= set(dir(contrapose))
    assert len(contrapose.__all__) == len(set(contrapose.__all__)) > 60
    for name in contrapose.__all__:
        value = getattr(contrapose, name)
        assert value is getattr(contrapose, name)
        if name != "CATALOGUE":
            assert value.__doc__, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nt_xnet'"):
        getattr(contrapose, "nt_xnet")  # noqa: B009


def test_the_first_example_needs_torch_alone() -> None:
    code = """
import sys, torch
before = set(sys.modules)
from contrapose import Loss, cosine, hardest, nt_xent, two_views
nt_xent(two_views(torch.randn(4, 3), torch.randn(4, 3)), temperature=cosine(0.1, 0.2), negatives=hardest(2))
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"contrapose", "torch"}
assert not new, new
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_explain_in_a_notebook() -> None:
    explanation = contrapose.explain("dystress", "simclr")
    assert "dystress" in str(explanation)
    html = explanation._repr_html_()
    assert "<img" in html or "<svg" in html
    with pytest.raises(ValueError, match="losses: expected at least one loss"):
        contrapose.explain()
