"""A checkpoint of an earlier version resumes bit-identically.

checkpoints/VERSION/NAME are runs that were stopped after a few steps, by that version of the package; expected.json has their
weights and losses at the end. They are never written again: a new version adds a folder of its own. Those in 0.1.0-first are by the
code of the day of the first release, whose rounding was another one: their weights at the end are not compared.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Promise
from tiers import first

from contrapose.lab.modalities.images import encoders
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint
from contrapose.lab.training.checkpoints.kept import read_kept
from contrapose.lab.training.records.files import read_records

FIXTURES = Path(__file__).with_name("checkpoints")
RUNS = sorted(path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/run.json"))


@pytest.fixture(autouse=True)
def _narrow_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the encoder of these runs, `tiny` with a single channel, so that a checkpoint has some KB; compute as they did."""
    monkeypatch.setitem(encoders.NETWORKS, "narrow", lambda: encoders.tiny(1))
    # Version 0.1.0 did not record the number of threads; these runs had one.
    monkeypatch.setattr("contrapose.lab.training.threads.available_cores", lambda: 1)


def stored(folder: Path) -> Checkpoint:
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    return saved


def weights(folder: Path) -> str:
    """Return a hash of the weights and the state of the network and the loss, but not of the optimiser."""
    digest = hashlib.sha256()
    for name, tensor in sorted(stored(folder).tensors.items()):
        if name.startswith("state."):
            digest.update(name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def resume(folder: Path) -> str:
    """Train a run to its end, and return its weights."""
    messages: list[str] = []
    step = stored(folder).step
    Trainer(Run.load(folder / "run.json"), folder, log=messages.append, device=torch.device("cpu")).train()
    assert messages[0] == f"resuming after step {step}"
    return weights(folder)


@pytest.mark.parametrize("name", first(2, RUNS))
def test_it_resumes_bit_identically(name: str, tmp_path: Path, promise: Promise) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "run")
    shutil.copytree(FIXTURES / name, tmp_path / "rewritten")
    saved = stored(tmp_path / "rewritten")
    shutil.rmtree(tmp_path / "rewritten" / "checkpoints")
    checkpoint.save(tmp_path / "rewritten" / "checkpoints", saved)  # as this version writes it
    assert resume(tmp_path / "run") == resume(tmp_path / "rewritten")
    promise.case()
    expected: dict[str, Any] = json.loads((FIXTURES / name).with_name("expected.json").read_bytes())
    run = expected["runs"][Path(name).name]
    losses = [record["loss"] for record in read_records(tmp_path / "run")]
    assert losses == pytest.approx(run["losses"], rel=0.01)
    # Other kernels round differently, and steps amplify that.
    here = (torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability())
    if here == (expected["torch"], expected["machine"], expected["cpu"]):
        assert losses == run["losses"]
        assert weights(tmp_path / "run") == run["weights"]
        promise.case()


@pytest.mark.parametrize("name", first(1, RUNS))
def test_another_state_of_the_optimiser_gives_other_weights(name: str, tmp_path: Path) -> None:
    """Otherwise the test above could not notice that it is lost."""
    shutil.copytree(FIXTURES / name, tmp_path / "run")
    saved = stored(tmp_path / "run")
    changed = {key: t + 1 if key.startswith("optimiser.0.") else t for key, t in saved.tensors.items()}
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    checkpoint.save(tmp_path / "run" / "checkpoints", Checkpoint(saved.step, changed, saved.record))
    shutil.copytree(FIXTURES / name, tmp_path / "unchanged")
    assert resume(tmp_path / "run") != resume(tmp_path / "unchanged")


def test_kept_weights_are_read(tmp_path: Path, promise: Promise) -> None:
    paths = list(FIXTURES.glob("*/*/kept/epoch-*"))
    for path in paths:
        kept = read_kept(path.parents[1], int(path.name.removeprefix("epoch-")))
        assert {name.split(".")[2] for name in kept.tensors} == {"encoder", "projector"}
        promise.case()
    assert paths
