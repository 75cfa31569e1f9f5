"""Compiled losses over several processes have the gradients of eager ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_in_process_group
from torch import Tensor

from contrapose import compiled_collectives, gather, nt_xent, two_views
from contrapose.distributed import average_gradient, sum_over_ranks


@pytest.fixture
def single_process() -> Iterator[None]:
    """A group of this process alone, in which collectives change nothing."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def test_the_operators_are_registered_in_full(single_process: None) -> None:
    """Shapes without values, and derivatives, are those of the operators themselves."""
    x = torch.randn(4, 3, requires_grad=True)
    torch.library.opcheck(compiled_collectives.sum_over_ranks, (x, ""))
    torch.library.opcheck(compiled_collectives.gather_rows, (x, "", 1))
    torch.library.opcheck(compiled_collectives.own_rows_of_sum, (x.detach(), "", 4))


def compare(rank: int, world_size: int, out: str) -> None:
    """Compare values and gradients of compiled functions with those of the functions themselves."""
    some: Any = dist.new_group(list(range(world_size)))
    functions: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda z1, z2: nt_xent(two_views(gather(z1), gather(z2)), temperature=0.5),
        lambda z1, z2: (gather(z1, group=some) * gather(z2)).square().sum(),
        lambda z1, z2: (gather(z1[None], 1) ** 2).sum() + (sum_over_ranks(z1, some) * z2).square().sum(),
        lambda z1, z2: (sum_over_ranks(z1 * z2) * average_gradient(z2)).sum() * (1 + rank),
    ]
    torch.manual_seed(rank)
    values = torch.randn(2, 8, 4, dtype=torch.float64)
    for backend in ("eager", "aot_eager"):
        for function in functions:
            results = []
            for called in (function, torch.compile(function, backend=backend)):
                z1, z2 = (value.clone().requires_grad_() for value in values)
                loss = called(z1, z2)
                loss.backward()
                results.append((loss.detach(), z1.grad, z2.grad))
            torch.testing.assert_close(*results)
    Path(out).with_suffix(f".{rank}").touch()


def gradient(rank: int, world_size: int, out: str) -> None:
    """Write whether the gradient of compiled code is that of the function, and whether the code came from the disk."""

    def function(z: Tensor) -> Tensor:
        return (gather(z).sin() * torch.arange(1.0, 9.0)[:, None]).square().sum()

    gradients = list[Any]()
    for called in (function, torch.compile(function)):
        torch.manual_seed(rank)
        z = torch.randn(4, 3, requires_grad=True)
        called(z).backward()
        gradients.append(z.grad)
    known = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
    Path(f"{out}.{rank}").write_text(f"{torch.allclose(gradients[0], gradients[1], rtol=1e-4)} {known}")


@pytest.mark.thorough
def test_processes_that_share_compiled_code_on_disk_have_their_own_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    for start in ("first", "second"):
        run_in_process_group(gradient, 2, tmp_path / start)
    found = [(tmp_path / f"{start}.{rank}").read_text().split() for start in ("first", "second") for rank in (0, 1)]
    assert [equal for equal, _ in found] == ["True"] * 4
    assert "0" not in (found[2][1], found[3][1])  # the second start read what the first one wrote


@pytest.mark.thorough
def test_compiled_losses_of_two_processes_have_the_gradients_of_eager_ones(tmp_path: Path) -> None:
    run_in_process_group(compare, 2, tmp_path / "done")
    assert len(list(tmp_path.iterdir())) == 2
