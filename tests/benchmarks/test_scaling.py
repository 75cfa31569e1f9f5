"""The prediction for many GPUs counts bytes as the real code exchanges them, and says what it assumes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import scaling
import torch
import torch.distributed as dist
from processes import run_in_process_group
from tiers import first
from torch import Tensor

from contrapose import around_ring, clip, cross, gather, nt_xent, siglip, two_views

SAMPLES, WIDTH = 32, 48
LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]] = {
    "nt_xent": (two_views, lambda pairs: nt_xent(pairs, temperature=0.2)),
    "clip": (lambda a, b: cross(a, b, symmetric=True), clip),
    "siglip": (cross, siglip),
}
# The tensors that each exchange sends, from its arguments.
SENDERS: dict[str, Callable[..., list[Tensor]]] = {
    "all_gather_into_tensor": lambda into, own, **_: [own],
    "reduce_scatter_tensor": lambda into, rows, **_: [rows],
    "batch_isend_irecv": lambda operations: [one.tensor for one in operations if one.op is dist.isend],
}


@contextmanager
def counted_bytes() -> Iterator[Counter[tuple[str, bool]]]:
    """Count the bytes given to each exchange: of embeddings, and of other tensors."""
    count: Counter[tuple[str, bool]] = Counter()
    originals = {name: getattr(dist, name) for name in SENDERS}

    def counting(name: str) -> Callable[..., Any]:
        def exchange(*arguments: Any, **options: Any) -> Any:
            for tensor in SENDERS[name](*arguments, **options):
                count[name, tensor.shape[-1] == WIDTH] += tensor.numel() * tensor.element_size()
            return originals[name](*arguments, **options)

        return exchange

    for name in SENDERS:
        setattr(dist, name, counting(name))
    try:
        yield count
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def count_step(rank: int, world: int, out: str) -> None:
    """Write the bytes of a step that has been seen before, by loss, way and type of the embeddings."""
    found = {}
    for loss, (make, objective) in LOSSES.items():
        for way in ("gather", "ring"):
            for dtype in (torch.bfloat16, torch.float64):
                for _ in range(2):  # shapes are exchanged in the first step only
                    z1, z2 = torch.randn(2, SAMPLES, WIDTH, dtype=dtype).requires_grad_()
                    with counted_bytes() as count:
                        pairs = around_ring(make(z1, z2)) if way == "ring" else make(gather(z1), gather(z2)).sharded()
                        objective(pairs).backward()
                found[loss, way, dtype.itemsize] = dict(count)
    everywhere: list[Any] = [None] * world
    dist.all_gather_object(everywhere, found)
    if rank == 0:
        torch.save(everywhere, out)


@pytest.mark.thorough
@pytest.mark.parametrize("world", first(1, [2, 4, 3]))
def test_processes_exchange_as_many_bytes_as_predicted(world: int, tmp_path: Path) -> None:
    run_in_process_group(count_step, world, tmp_path / "bytes")
    for found in torch.load(tmp_path / "bytes", weights_only=True):
        assert len(found) == 2 * 2 * len(LOSSES)
        for (loss, way, item), count in found.items():
            unit_item = max(item, scaling.FLOAT32)
            predicted = scaling.exchanged(
                way, loss, gpus=world, samples=SAMPLES, width=WIDTH, item=item, unit_item=unit_item
            )
            of_embeddings = [count.get((name, True), 0) for name in SENDERS]
            assert of_embeddings == list(asdict(predicted).values()), (loss, way, item)
            others = sum(size for (_, is_embedding), size in count.items() if not is_embedding)
            # A few numbers for each anchor of all processes, which the prediction leaves out.
            assert others <= 5 * unit_item * scaling.COMPARISONS[loss].anchors * SAMPLES * world, (loss, way, item)


def model(loss: str = "nt_xent", samples: int = 8192, width: int = 768, **assumptions: float) -> scaling.Model:
    assumed = replace(scaling.Assumptions(), **assumptions)  # type: ignore[arg-type]
    return scaling.Model(scaling.Measured.read(loss, width), samples, 2, assumed)


@pytest.mark.parametrize("loss", list(scaling.COMPARISONS))
def test_one_gpu_takes_the_measured_time(loss: str) -> None:
    rows = scaling.COMPARISONS[loss].rows
    lines = map(json.loads, (Path(scaling.__file__).parent / "wide-h200.jsonl").read_text().splitlines())
    wanted = {row["n"]: row for row in lines if (row.get("loss"), row.get("who"), row.get("d")) == (loss, "ours", 768)}
    for n in (256, 16384, 65536):
        for way in ("gather", "ring"):
            assert model(loss, n // rows).predict(way, 1).loss_ms == pytest.approx(wanted[n]["ms"])


@pytest.mark.parametrize(("width", "expected"), [(768, 1.0), (128, 1.25)])
def test_without_exchange_a_ring_takes_the_time_of_its_products(width: int, expected: float) -> None:
    """Both ways have the same kernels; at small widths the ring computes one product of four once more."""
    fast = model(samples=2**17, width=width, nvlink=1e12, network=1e12, hop=0.0)
    for gpus in (2, 8, 64):
        ratio = fast.predict("ring", gpus).loss_ms / fast.predict("gather", gpus).loss_ms
        assert ratio == pytest.approx(expected)


def test_slow_links_set_the_time() -> None:
    slow = model(nvlink=1e-3, hop=0.0)
    ring = scaling.exchanged("ring", "nt_xent", gpus=4, samples=8192, width=768, item=2)
    gathered = scaling.exchanged("gather", "nt_xent", gpus=4, samples=8192, width=768, item=2)
    assert slow.predict("ring", 4).loss_ms == pytest.approx(ring.sent / 1e6 / 1e-3, rel=0.01)
    assert slow.predict("gather", 4).loss_ms == pytest.approx(3 * 2 * gathered.all_gather / 1e6 / 1e-3, rel=0.01)


def test_a_ring_is_ahead_once_its_exchange_is_hidden_and_costs_less_than_that_of_the_gather() -> None:
    assert scaling.break_even(model())["the ring takes less time"] is None
    large = model(samples=2**15, nvlink=10.0, per_node=256)
    point = scaling.break_even(large)["the ring takes less time"]
    assert point is not None
    before, after = (
        large.predict("ring", gpus).loss_ms - large.predict("gather", gpus).loss_ms for gpus in (point - 1, point)
    )
    assert after <= 0 < before


@pytest.mark.parametrize("way", ["gather", "ring"])
@pytest.mark.parametrize("gpus", [1, 8, 256])
def test_the_largest_batch_fits_and_a_larger_one_does_not(way: str, gpus: int) -> None:
    of_all = model().most_samples(way, gpus)
    each = of_all // gpus
    assert each * gpus == of_all
    assert model().bytes_for(way, gpus, each) <= 139 * 2**30 < model().bytes_for(way, gpus, each + 1)


def test_the_table_says_that_it_predicts_and_what_it_assumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, figure = tmp_path / "scaling.jsonl", tmp_path / "scaling.png"
    scaling.main(["--loss", "clip", "--network", "200", "--out", str(records), "--plot", str(figure)])
    output = capsys.readouterr().out
    assert output.startswith("A prediction, not a measurement: the ring has not been timed on GPUs.")
    for value in ("450 GB/s", "200 Gb/s", "10 µs", "7 float32 copies", "64 bytes", "139 GiB"):
        assert value in output
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert rows[0]["assumed"] == {**asdict(scaling.Assumptions()), "network": 200.0}
    assert [row["gpus"] for row in rows[1:-1:2]] == list(scaling.GPUS)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_width_that_was_not_measured_is_refused() -> None:
    with pytest.raises(SystemExit, match="not measured for clip; expected one of the widths"):
        scaling.main(["--loss", "clip", "--width", "512"])
