"""Every wrong setting is refused in one line before a run is created, with exit code 2 and no traceback."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest
from commands import error_message
from conftest import Promise

from contrapose.lab.frameworks import FRAMEWORK_DEFAULTS, FRAMEWORKS, FrameworkSettings, frameworks_with
from contrapose.lab.settings import rule_of
from contrapose.lab.training import Run

RUN = Run(limit=128, batch=32, epochs=2, knn_every=2, knn=5, metrics=0)
SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]
WRONG = {
    "int": ("many", "-5", "1.5", "nan", str(2**70)),
    "float": ("many", "-5", "nan", "inf"),
    "str": ("no such thing",),
    "tuple[int, ...]": ("many", "1.5"),
    "tuple[str, ...]": ("no such thing",),
}
# Any text is right until the records are known: the name of a number in them.
ANY_TEXT = {"keep_best"}
SETTINGS = [
    (field.name, text) for field in fields(Run) if field.name not in ANY_TEXT for text in WRONG.get(str(field.type), ())
]
# Numbers and flags that SimCLR does not use; texts have checks of their own, which come first.
OF_OTHER_FRAMEWORKS = [
    setting
    for setting in fields(FrameworkSettings)
    if setting.type in ("bool", "int")
    and not rule_of(setting).ignored_elsewhere
    and RUN.framework not in frameworks_with(setting.name)
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"framework": "simclr2"}, f"framework: expected one of {', '.join(FRAMEWORKS)}, got 'simclr2'"),
        ({"batch": 1}, "batch: expected a whole number of at least 2"),
        ({"batch": 2.5}, "batch: expected a whole number"),
        ({"lr": float("nan")}, "lr: expected a finite number, got nan"),
        ({"lr": -0.5}, "lr: expected a number of at least 0, got -0.5"),
        ({"epochs": True}, "epochs: expected a whole number"),
        ({"encoder": "resnet"}, "encoder: expected one of"),
        ({"views": "simclr-cifr"}, "did you mean 'simclr-cifar'"),
        ({"view_count": 1}, "view_count: simclr needs at least 2 views"),
        ({"loss": "nt_xnt"}, "did you mean 'nt_xent'"),
        (
            {"loss": "nt_xent(negatives=hardest(63))"},
            "loss: hardest(63) asks for more than the 62 negatives that simclr has",
        ),
        (
            {"framework": "moco", "queue": 9, "loss": "simple(negatives=hardest(10))"},
            "than the 9 negatives that moco has",
        ),
        (
            {"framework": "moco", "queue": 9, "batch_negatives": True, "loss": "simple(negatives=hardest(41))"},
            "than the 40 negatives that moco has",
        ),
        ({"symmetric": True}, "symmetric: it is for moco; the framework is simclr"),
        ({"precision": "fp8"}, "precision: expected one of auto, fp32, bf16, fp16"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_read(
    change: dict[str, object], message: str, promise: Promise
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Run(**{**vars(RUN), **change})
    assert message in str(caught.value)
    promise.case()


@pytest.mark.parametrize("setting", OF_OTHER_FRAMEWORKS, ids=lambda setting: setting.name)
def test_a_setting_of_another_framework(setting: Field[Any], promise: Promise) -> None:
    """It would be ignored silently, and would change the name of the run."""
    message = f"{setting.name}: it is for {', '.join(frameworks_with(setting.name))}; the framework is simclr"
    with pytest.raises(ValueError, match=f"^{message}$"):
        Run(**{**vars(RUN), setting.name: True if setting.type == "bool" else FRAMEWORK_DEFAULTS[setting.name] + 3})
    promise.case()


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(8, marks=pytest.mark.thorough),
        pytest.param(1, marks=pytest.mark.slow),
    ],
)
def test_every_setting_with_wrong_values(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], promise: Promise
) -> None:
    """The short form takes every eighth of them."""
    monkeypatch.chdir(tmp_path)
    assert len(SETTINGS) > 100
    for name, text in SETTINGS[::share]:
        option = f"--{name.replace('_', '-')}"
        message = error_message(capsys, "train", *SMALL, f"{option}={text}")
        assert name in message.replace("-", "_"), message
        assert list(tmp_path.iterdir()) == [], (option, text)  # neither a run nor its lock
        promise.case()
