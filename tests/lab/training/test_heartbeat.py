"""A process that counts no more is named; one that has left or is only busy has not failed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from processes import run_in_process_group, start_process_group

from contrapose.lab.training.heartbeat import Heartbeat, rank_failures
from contrapose.lab.training.stops import RankFailed

TIMEOUT = 3.0


def wait_for_a_killed_process(rank: int, world_size: int, out: str) -> None:
    heartbeat = Heartbeat.start(rank=rank, world_size=world_size, timeout=TIMEOUT)
    assert heartbeat is not None
    heartbeat.how_to_resume = lambda: "resume after step 7"
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankFailed) as caught, rank_failures():
        dist.barrier()
    Path(out).write_text(str(caught.value))
    os._exit(0)


@pytest.mark.thorough
def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    processes = start_process_group(wait_for_a_killed_process, 2, tmp_path / "message").processes
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    message = (tmp_path / "message").read_text()
    assert message.startswith("rank 1 (")
    assert f"process {processes[1].pid}) died; run the same command again to resume after step 7" in message


def leave_early(rank: int, world_size: int, out: str) -> None:
    heartbeat = Heartbeat.start(rank=rank, world_size=world_size, timeout=TIMEOUT)
    assert heartbeat is not None
    dist.barrier()
    if rank:
        heartbeat.leave()
    time.sleep(1.5 * TIMEOUT)
    Path(f"{out}.{rank}").touch()


@pytest.mark.thorough
def test_a_process_that_leaves_has_not_failed(tmp_path: Path) -> None:
    run_in_process_group(leave_early, 2, tmp_path / "left")
    assert len(list(tmp_path.iterdir())) == 2


def raise_another_error() -> None:
    with rank_failures():
        raise RuntimeError("connection of gloo")


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="connection of gloo"):
        raise_another_error()  # without a heartbeat there is one process
