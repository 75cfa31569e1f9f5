"""`contrapose detect` prints and writes the average precision of a detector."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.evaluation.detection import draw_shapes


@pytest.fixture
def run(tmp_path: Path) -> str:
    settings = {"limit": 40, "batch": 8, "epochs": 1, "knn": 3, "metrics": 0, "out": tmp_path / "run"}
    main(["train", *(str(word) for name, value in settings.items() for word in (f"--{name}", value))])
    return str(tmp_path / "run")


@pytest.mark.thorough
def test_boxes_and_masks(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = draw_shapes(tmp_path / "shapes", layout="coco", train=2, test=1, size=40)
    capsys.readouterr()
    main(["detect", run, str(folder), "--masks", "--iterations", "1", "--batch", "1", "--size", "40"])
    scores = json.loads(capsys.readouterr().out)
    assert set(scores) == {"step", "AP", "AP50", "AP75", "mask_AP", "mask_AP50", "mask_AP75"}
    written = json.loads((Path(run) / "detection-shapes.json").read_text())
    settings = written.pop("settings")
    assert (settings["iterations"], settings["sizes"][-1], settings["masks"]) == (1, 40, True)
    assert written == scores


def test_refusals(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = draw_shapes(tmp_path / "shapes", train=1, test=1, size=40)
    assert "expected a folder of VOC" in error_message(capsys, "detect", run, str(tmp_path))
    assert "omit --masks" in error_message(capsys, "detect", run, str(folder), "--masks")
    assert "size: expected at least 32 pixels" in error_message(capsys, "detect", run, str(folder), "--size", "8")
    monkeypatch.setitem(sys.modules, "pycocotools", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "pycocotools.coco", raising=False)
    with pytest.raises(SystemExit) as exit_info:
        main(["detect", run, str(folder)])
    assert exit_info.value.code == 1
    message = capsys.readouterr().err
    assert "detection needs pycocotools, which is not installed" in message
    assert "[detection]'" in message


@pytest.mark.thorough
def test_ctrl_c(run: str, tmp_path: Path) -> None:
    """It ends the training with a sentence, and no scores are left."""
    folder = draw_shapes(tmp_path / "shapes", train=2, test=1, size=40)
    command = [sys.executable, "-u", "-m", "contrapose", "detect", run, str(folder), "--size", "40", "--batch", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert "2 training and 1 test images, 2 classes; Faster R-CNN" in process.stderr.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        printed = process.stderr.read()
    assert process.returncode == 130
    assert printed.splitlines()[-1].startswith("contrapose: stopped by signal 2")
    assert "Traceback" not in printed, printed
    assert not list(Path(run).glob("detection*"))
