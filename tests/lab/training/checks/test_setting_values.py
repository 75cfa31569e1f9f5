"""A setting of the wrong type or out of range is refused when the run is described, before anything is read or written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import error_message

from contrapose.lab.training import Run

SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]
# A value of another type for each annotation; a bool is an int in Python, but no number of epochs.
WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    "str": (3, None, ["a"], b"a"),
    "bool": ("no", 1, None),
    "int": ("3", 1.5, True, None),
    "float": ("0.1", True, None, 1j),
    "tuple[int, ...]": (3, "12", (1.5,), (True,), ("1",)),
    "tuple[str, ...]": (3, "ab", (1,), (None,)),
}


def test_every_setting_of_another_type() -> None:
    cases = [(field.name, value) for field in fields(Run) for value in WRONG_TYPES[str(field.type)]]
    assert len(cases) > 150
    for name, value in cases:
        with pytest.raises(ValueError, match=f"^{name}: expected .*, got ") as caught:
            Run(**{name: value})
        assert str(caught.value).endswith(repr(value))


def test_other_types_that_are_right() -> None:
    """A path is a text, a whole number is a number, and a list is a tuple: they give the same run."""
    assert Run(data=Path("digits16")) == Run()  # type: ignore[arg-type]
    assert Run(lr=1).lr == 1
    assert Run(keep=[1, 2]) == Run(keep=(1, 2))  # type: ignore[arg-type]
    assert Run(keep=[1, 2]).name == Run(keep=(1, 2)).name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.5}, "momentum: expected a number of at most 1, got 1.5"),
        ({"momentum": -0.1}, "momentum: expected a number of at least 0, got -0.1"),
        ({"momentum": float("nan")}, "momentum: expected a finite number, got nan"),
        ({"lr": 10**400}, "lr: expected a finite number, got 1000"),
        ({"limit": -1}, "limit: expected a whole number of at least 0, got -1"),
        ({"framework": "moco", "norm_splits": 7}, "norm_splits: a batch of 64 cannot be split into 7 equal parts"),
        ({"framework": "moco", "norm_splits": 256}, "norm_splits: a batch of 64 cannot be split into 256 equal parts"),
        ({"norm_splits": 1000}, "norm_splits: it is for moco; the framework is simclr"),
        ({"columns": ("a",)}, r"columns: they are for texts and captions, and the data is images, got \('a',\)"),
        (
            {"imbalance": "exponential:0.5"},
            "imbalance: expected a ratio of at least 1 between largest and smallest class",
        ),
        ({"imbalance": "exponential:many"}, "imbalance: expected exponential:FACTOR, .* got 'exponential:many'"),
        ({"imbalance": "exponentially"}, "imbalance: expected exponential:FACTOR, .* got 'exponentially'"),
        ({"imbalance": "kukleva"}, "imbalance: expected exponential:FACTOR, .* got 'kukleva'"),
        ({"imbalance": "uniform:-3"}, "imbalance: expected exponential:FACTOR, .* got 'uniform:-3'"),
        ({"imbalance": "pareto:"}, "imbalance: expected exponential:FACTOR, .* got 'pareto:'"),
        ({"loss": "align_uniform(align_weight=-1)"}, "align_weight: expected a number of at least 0, got -1.0"),
        ({"loss": "align_uniform(uniform_weight=-0.5)"}, "uniform_weight: expected a number of at least 0, got -0.5"),
        ({"loss": "cacr(attract_weight=-1)"}, "attract_weight: expected a number of at least 0, got -1.0"),
        ({"loss": "cacr(repel_weight=-1)"}, "repel_weight: expected a number of at least 0, got -1.0"),
    ],
)
def test_values_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Run(**settings)


@pytest.mark.parametrize(
    "rule",
    ["exponential", "exponential:100", "exponential:1", "kukleva:0", "pareto", "pareto:12205", "uniform:12406",
     "cacr-linear", "cacr-exponential", "index:my list.txt"],
)  # fmt: skip
def test_every_rule_of_imbalance(rule: str) -> None:
    assert Run(imbalance=rule).imbalance == rule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--classes", "imagenet1000"], "classes: expected imagenet100 or a text file with one name per line"),
        (["--classes", "empty.txt"], "classes: expected a text file with one name per line, but empty.txt has none"),
        (["--classes", "imagenet100"], "classes: only a folder with one subfolder per class has a choice of classes"),
        (["--imbalance", "index:none.npy"], "imbalance: expected a file of indices after 'index:', but none.npy"),
        (["--imbalance", "geometric"], "imbalance: expected exponential:FACTOR"),
        (["--momentum", "1.01"], "momentum: expected a number of at most 1"),
        (["--columns", "a", "b"], "columns: they are for texts and captions"),
        (["--loss", "cacr(repel_weight=-2)"], "repel_weight: expected a number of at least 0"),
    ],
)
def test_nothing_is_written_for_them(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    assert message in error_message(capsys, "train", *SMALL, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]  # neither a run nor its lock
