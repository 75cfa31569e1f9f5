"""Records of text files that are not what they seem to be."""

from __future__ import annotations

from contrapose.lab.modalities.text.lines import BadLine
from contrapose.lab.modalities.text.records import parse_json


def test_brackets_that_can_be_read_but_not_written_are_bad_lines() -> None:
    """json.loads and json.dumps exhaust Python's stack at different depths."""
    for depth in range(700, 1100):
        value = parse_json("[" * depth + '"\\ud83d\\ude00"' + "]" * depth)
        assert isinstance(value, list | BadLine)
