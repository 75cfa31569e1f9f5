"""`train --ring`: embeddings travel between processes, and the run is the one in which they are gathered."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from captioned import run_of, write_folder
from processes import run_in_process_group
from run_files import records

from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.processes import check_world_size
from contrapose.pairs.ring import RingPairs

RUN = Run(limit=96, batch=32, epochs=2, knn_every=2, knn=5, metrics=0, threads=1)
LOSSES: dict[str, dict[str, Any]] = {
    "simclr": {"loss": "nt_xent(temperature=learned(0.2))", "view_count": 3},
    "dystress": {"loss": "dystress"},
    "hardest": {"loss": "dcl(temperature=0.1, negatives=hardest(0.25))"},
    "simcse": {"loss": "nt_xent(temperature=0.1)", "framework": "simcse"},
    "grad_cache": {"batch": 16, "accumulate": 2, "grad_cache": True, "loss": "cacr"},
}


def train(rank: int, world_size: int, out: str) -> None:
    """Train every run with and without a ring, in the folder `out`; check that a ring is used."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    runs: dict[str, Run] = {name: Run(**{**vars(RUN), **changes}) for name, changes in LOSSES.items()}
    runs["captions"] = run_of(Path(out) / "data", epochs=2, batch=4, knn_every=2)
    for name, run in runs.items():
        for ring in (False, True):
            trainer = Trainer(Run(**{**vars(run), "ring": ring}), Path(out) / f"{name}-{ring}", log=lambda text: None)
            trainer.train()
            latest = trainer.context.latest
            assert latest is not None
            assert isinstance(latest.pairs, RingPairs) == ring
            assert latest.z.shape[1] == (run.batch // world_size if ring else run.batch) * (
                run.accumulate if run.grad_cache else 1
            )


@pytest.mark.thorough
def test_a_ring_trains_as_gathered_embeddings_do(tmp_path: Path) -> None:
    write_folder(tmp_path / "data")
    run_in_process_group(train, 2, tmp_path)
    for name in (*LOSSES, "captions"):
        gathered, ring = (
            [float(str(r["loss"])) for r in records(tmp_path / f"{name}-{ring}")] for ring in (False, True)
        )
        assert ring == pytest.approx(gathered, rel=2e-4), name


def test_one_process_has_no_ring(tmp_path: Path) -> None:
    losses = []
    for ring in (False, True):
        trainer = Trainer(Run(**{**vars(RUN), "ring": ring}), tmp_path / str(ring), log=lambda text: None)
        trainer.train()
        losses.append([record["loss"] for record in records(tmp_path / str(ring))])
    assert losses[0] == losses[1]
    first, second = ([{*record} for record in records(tmp_path / str(ring))] for ring in (False, True))
    assert first == second  # with the penalties of the loss


@pytest.mark.parametrize(
    "changes",
    [{"loss": "isogclr"}, {"loss": "supcon"}, {"loss": "vicreg"}, {"loss": "simclr + 0.1*koleo()"}, {"loss": "tau"}],
    ids=lambda changes: changes["loss"].split("(")[0],
)
def test_losses_that_need_all_embeddings_are_refused(changes: dict[str, Any]) -> None:
    make = partial(Run, **{**vars(RUN), **changes})
    make(ring=False)
    with pytest.raises(ValueError, match=r"ring: .* do not travel in a ring"):
        make(ring=True)


def test_negatives_that_cannot_travel_are_refused() -> None:
    for negatives in ("hardest(3)", "self_guided()", "(same_view(), hardest(3))"):
        Run(**{**vars(RUN), "loss": f"nt_xent(negatives={negatives})", "ring": True})
    with pytest.raises(ValueError, match=r"ring: hardest\(3\) needs the similarities to all candidates at once"):
        Run(**{**vars(RUN), "loss": "nt_xent(negatives=(hardest(3), other_views()))", "ring": True})


def test_distances_are_refused() -> None:
    """Each process measures them from the mean of its own embeddings."""
    Run(**{**vars(RUN), "ring": True, "similarity": "dot"})
    with pytest.raises(ValueError, match="ring: --similarity neg_euclid cannot be used in a ring"):
        Run(**{**vars(RUN), "ring": True, "similarity": "neg_euclid"})


def test_one_sample_in_each_process_is_refused() -> None:
    run = Run(**{**vars(RUN), "batch": 4, "ring": True})
    check_world_size(run, 2)
    with pytest.raises(ValueError, match=r"batch: with --ring, each process needs two samples or more, got 4 for 4"):
        check_world_size(run, 4)


def test_frameworks_with_a_queue_have_no_ring() -> None:
    with pytest.raises(ValueError, match=r"ring: it is for simclr, simcse, two_towers; the framework is moco"):
        Run(**{**vars(RUN), "framework": "moco", "queue": 64, "ring": True})
    assert torch.distributed.is_available()
