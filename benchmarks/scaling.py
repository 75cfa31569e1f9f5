"""Predict loss time, images per second and memory on 1 to 256 GPUs, with gathered embeddings and in a ring.

    python benchmarks/scaling.py --loss nt_xent --width 768 --samples 8192 --out scaling.jsonl --plot scaling.png

This is a prediction: of the ring only the kernels of one GPU have been timed, and neither way on several GPUs. It is computed
from times that were measured on one H200 (wide-h200.jsonl, photos-h200.json), from the bytes that a process exchanges, which a
test counts in the real code, and from assumptions, which are printed and can be changed by options.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from contrapose.reduce.choose import MAX_FUSED_WIDTH

FOLDER = Path(__file__).parent
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST = 65536  # the measured batch whose time and memory are scaled
FLOAT32 = 4
# A similarity takes one matrix product in the forward pass, and three in the backward pass: itself again and two gradients.
FORWARD = 1 / 4
# Copies of a block that the backward pass of a ring holds at a time, in float32: the candidates and the next ones, the gradient
# that is sent, the one that arrives, that of this block before and after it is summed, and that of the anchors.
RING_COPIES = 7


@dataclass(frozen=True)
class Comparison:
    """How a loss of two embeddings per sample compares them."""

    rows: int  # of the measured n, per sample
    repeats: int  # how many times each similarity is computed once the work is divided, if one process alone computes it once
    anchors: int  # per sample
    travelling: int  # candidates per sample that travel around a ring


# On one GPU, NT-Xent computes half of its symmetric matrix, and both directions of CLIP share one. Divided, they do neither.
COMPARISONS = {
    "nt_xent": Comparison(rows=2, repeats=2, anchors=2, travelling=2),
    "clip": Comparison(rows=1, repeats=2, anchors=2, travelling=2),
    "siglip": Comparison(rows=1, repeats=1, anchors=1, travelling=1),
}


@dataclass(frozen=True)
class Assumptions:
    """What was not measured."""

    nvlink: float = 450.0  # GB/s of a GPU in one direction, within a node
    network: float = 400.0  # Gb/s of a GPU in one direction, between nodes
    hop: float = 10.0  # µs from the start of an exchange until its first byte arrives, for each process that it passes
    per_node: int = 8  # GPUs
    memory: float = 139.0  # GiB of a GPU, all of it for the loss
    anchor_bytes: int = (
        64  # for each anchor of all processes: ids, similarities to positives, statistics and their gradients
    )

    def collective_rate(self, gpus: int) -> float:
        """Return bytes per ms of each process in a collective: between nodes, every GPU's network link carries a part."""
        return 1e6 * (self.nvlink if gpus <= self.per_node else min(self.nvlink, self.per_node * self.network / 8))

    def ring_rate(self, gpus: int) -> float:
        """Return bytes per ms of the slowest link of a ring: between nodes, a whole block passes one GPU's network link."""
        return 1e6 * (self.nvlink if gpus <= self.per_node else min(self.nvlink, self.network / 8))

    def lines(self) -> list[str]:
        """Return the assumptions in words."""
        return [
            f"{self.nvlink:g} GB/s per direction within a node of {self.per_node} GPUs, {self.network:g} Gb/s per GPU between "
            f"nodes, fully used, and {self.hop:g} µs for each process that an exchange passes",
            "a collective uses every network link of a node; in a ring, a block passes one of them",
            "kernels take the measured time of a square batch with as many similarities, in proportion beyond 65,536; in a ring, "
            f"each block takes as long, or 5/4 of it at widths up to {MAX_FUSED_WIDTH}: 5 matrix products in place of 4",
            "the exchange of a ring overlaps the kernels fully; that of gathered embeddings and their gradients, nothing",
            "memory is as measured beyond the embeddings at 65,536, plus gathered embeddings and their gradient; "
            f"in a ring, {RING_COPIES} float32 copies of a block",
            f"{self.anchor_bytes} bytes of memory for each anchor of all processes; a GPU has {self.memory:g} GiB for the loss",
            "the encoder takes the time of a training step of ResNet-50, in proportion to samples; its own exchange is hidden",
        ]


@dataclass(frozen=True)
class Measured:
    """What was measured on one GPU."""

    loss: str
    width: int
    times: tuple[tuple[int, float], ...]  # similarities of a square batch, and ms of its forward and backward pass
    bytes_per_number: float  # memory beyond embeddings and their gradients, for each number of the embeddings
    images_per_second: float  # of a whole training step

    @classmethod
    def read(cls, loss: str, width: int) -> Measured:
        """Return the records of this folder for a loss and a width."""
        lines = map(json.loads, (FOLDER / "wide-h200.jsonl").read_text().splitlines())
        found = {
            row["n"]: row for row in lines if (row.get("loss"), row.get("who"), row.get("d")) == (loss, "ours", width)
        }
        if LARGEST not in found:
            raise SystemExit(
                f"--width {width}: not measured for {loss}; expected one of the widths in wide-h200.jsonl, such as 768"
            )
        embeddings = 2 * LARGEST // COMPARISONS[loss].rows
        return cls(
            loss,
            width,
            times=tuple((n * n, found[n]["ms"]) for n in sorted(found)),
            bytes_per_number=found[LARGEST]["mib"] * 2**20 / (embeddings * width),
            images_per_second=json.loads((FOLDER / "photos-h200.json").read_text())["resnet50"]["limit, compiled"],
        )

    def kernels(self, similarities: float) -> float:
        """Return the ms of the forward and backward pass of this many similarities, interpolated between measured batches."""
        after = bisect_left([size for size, _ in self.times], similarities)
        if after == 0:
            return self.times[0][1]  # so small that the host sets the time
        size, ms = self.times[after - 1]
        if after == len(self.times):
            return ms * similarities / size
        next_size, next_ms = self.times[after]
        return ms + (next_ms - ms) * (similarities - size) / (next_size - size)


@dataclass(frozen=True)
class Exchanged:
    """Bytes of embeddings that a process gives to each kind of exchange in one step."""

    all_gather: int = 0  # forward, in the type of the embeddings
    reduce_scatter: int = 0  # backward
    sent: int = 0  # forward and backward, unit vectors and their gradients


def exchanged(
    way: str, loss: str, *, gpus: int, samples: int, width: int, item: int, unit_item: int = FLOAT32
) -> Exchanged:
    """Return the bytes of a process; `item` and `unit_item` are those of a number of an embedding and of a unit vector."""
    if gpus == 1:
        return Exchanged()
    if way == "gather":
        own = 2 * samples * width * item
        return Exchanged(all_gather=own, reduce_scatter=own * gpus)
    block = COMPARISONS[loss].travelling * samples * width * unit_item
    # Candidates in both passes, all but the last step; their gradients once more, since they return home.
    return Exchanged(sent=(2 * (gpus - 1) + gpus) * block)


@dataclass(frozen=True)
class Prediction:
    """One way on a number of GPUs."""

    way: str
    gpus: int
    samples: int  # of all GPUs
    loss_ms: float
    memory_gib: float
    images_per_second: float


@dataclass(frozen=True)
class Model:
    """Predictions for one loss, width and number of samples per GPU."""

    measured: Measured
    samples: int
    item: int
    assumed: Assumptions

    def predict(self, way: str, gpus: int) -> Prediction:
        """Return time and memory of one way."""
        loss_ms = self._alone() if gpus == 1 else {"gather": self._gather_ms, "ring": self._ring_ms}[way](gpus)
        step_s = self.samples / self.measured.images_per_second + loss_ms / 1e3
        total = gpus * self.samples
        return Prediction(way, gpus, total, loss_ms, self.bytes_for(way, gpus, self.samples) / 2**30, total / step_s)

    @property
    def _rows(self) -> int:
        return COMPARISONS[self.measured.loss].rows * self.samples

    def _alone(self) -> float:
        return self.measured.kernels(self._rows**2)

    def _exchanged(self, way: str, gpus: int) -> Exchanged:
        measured = self.measured
        return exchanged(way, measured.loss, gpus=gpus, samples=self.samples, width=measured.width, item=self.item)

    def _gather_ms(self, gpus: int) -> float:
        exchange, rate = self._exchanged("gather", gpus), self.assumed.collective_rate(gpus)
        similarities = COMPARISONS[self.measured.loss].repeats * self._rows**2 * gpus
        received = exchange.all_gather * (gpus - 1)
        returned = exchange.reduce_scatter * (gpus - 1) / gpus
        hops = 2 * 2 * (gpus - 1) * self.assumed.hop / 1e3  # two embeddings, two passes
        return self.measured.kernels(similarities) + (received + returned) / rate + hops

    def _ring_ms(self, gpus: int) -> float:
        block = self._exchanged("ring", gpus).sent / (3 * gpus - 2) / self.assumed.ring_rate(gpus)
        hop = self.assumed.hop / 1e3
        of_block = self.measured.kernels(COMPARISONS[self.measured.loss].repeats * self._rows**2)
        forward = FORWARD * of_block
        # The fused kernels compute the similarities of a block once more before its gradients.
        backward = of_block if self.measured.width <= MAX_FUSED_WIDTH else of_block - forward
        forward_ms = (gpus - 1) * max(forward, hop + block) + forward
        # The first step sends candidates, the last one a gradient, those between them both; the last gradient goes home alone.
        backward_ms = 2 * max(backward, hop + block) + (gpus - 2) * max(backward, hop + 2 * block) + hop + block
        return forward_ms + backward_ms

    def bytes_for(self, way: str, gpus: int, samples: float) -> float:
        """Return the memory of a process with this many samples."""
        shape, width = COMPARISONS[self.measured.loss], self.measured.width
        anchors = self.assumed.anchor_bytes * shape.anchors * samples * gpus
        held = 2 * samples * width * (self.measured.bytes_per_number + 2 * self.item)
        if gpus == 1 or way == "gather":
            return anchors + held * gpus
        return anchors + held + RING_COPIES * FLOAT32 * shape.travelling * samples * width

    def most_samples(self, way: str, gpus: int) -> int:
        """Return the largest number of samples of all GPUs that fits into memory."""
        return gpus * int(self.assumed.memory * 2**30 / self.bytes_for(way, gpus, 1))

    def first(self, holds: Callable[[Prediction, Prediction], bool]) -> int | None:
        """Return the smallest number of GPUs, from 2 on, for which (gather, ring) meet a condition."""
        pairs = ((n, self.predict("gather", n), self.predict("ring", n)) for n in range(2, GPUS[-1] + 1))
        return next((n for n, gather, ring in pairs if holds(gather, ring)), None)


def break_even(model: Model) -> dict[str, int | None]:
    """Return from how many GPUs on a ring is ahead."""
    return {
        "the ring takes less time": model.first(lambda gather, ring: ring.loss_ms <= gather.loss_ms),
        "the ring needs less memory": model.first(lambda gather, ring: ring.memory_gib < gather.memory_gib),
        "gathered embeddings do not fit": model.first(lambda gather, _: gather.memory_gib > model.assumed.memory),
    }


def report(model: Model) -> list[str]:
    """Return the lines to print."""
    measured = model.measured
    lines = [
        "A prediction, not a measurement: the ring has not been timed on GPUs.",
        f"{measured.loss}, width {measured.width}, {model.samples:,} samples per GPU, {model.item} bytes per number",
        f"measured on one H200: {measured.times[-1][1]:.1f} ms and {measured.bytes_per_number:.1f} bytes of memory per number at "
        f"{LARGEST:,}, {measured.images_per_second:,.0f} images/s",
        *(f"assumed: {line}" for line in model.assumed.lines()),
        "",
        f"{'GPUs':>5}{'samples':>12}{'gather, ms':>12}{'ring, ms':>12}{'ratio':>7}{'gather, GiB':>13}{'ring, GiB':>11}"
        f"{'images/s':>12}{'in a ring':>12}{'most, gather':>15}{'most, ring':>15}",
    ]
    for gpus in GPUS:
        gather, ring = model.predict("gather", gpus), model.predict("ring", gpus)
        lines.append(
            f"{gpus:5}{gather.samples:12,}{gather.loss_ms:12.1f}{ring.loss_ms:12.1f}{ring.loss_ms / gather.loss_ms:7.2f}"
            f"{gather.memory_gib:13.1f}{ring.memory_gib:11.1f}{gather.images_per_second:12,.0f}{ring.images_per_second:12,.0f}"
            f"{model.most_samples('gather', gpus):15,}{model.most_samples('ring', gpus):15,}"
        )
    points = break_even(model).items()
    return [
        *lines,
        "",
        *(f"{what}: {f'from {n} GPUs on' if n else f'not up to {GPUS[-1]} GPUs'}" for what, n in points),
    ]


def records(model: Model) -> list[dict[str, object]]:
    """Return the same for JSON lines: what was measured and assumed first."""
    rows: list[dict[str, object]] = [{"prediction": True, **asdict(model)}]
    for gpus in GPUS:
        for way in ("gather", "ring"):
            rows.append({**asdict(model.predict(way, gpus)), "most_samples": model.most_samples(way, gpus)})
    return [*rows, {"break_even": break_even(model)}]


def plot(model: Model, path: Path) -> None:
    """Write a figure of time and memory by number of GPUs."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (of_time, of_memory) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for way, label in (("gather", "gathered embeddings"), ("ring", "ring")):
        predictions = [model.predict(way, gpus) for gpus in GPUS]
        of_time.loglog(GPUS, [one.loss_ms for one in predictions], marker="o", label=label)
        of_memory.loglog(GPUS, [one.memory_gib for one in predictions], marker="o", label=label)
    of_memory.axhline(model.assumed.memory, color="gray", linestyle="--", label=f"{model.assumed.memory:g} GiB")
    for axes, unit in ((of_time, "loss, ms"), (of_memory, "memory of the loss, GiB per GPU")):
        axes.set(xlabel="GPUs", ylabel=unit)
        axes.set_xticks(GPUS, labels=map(str, GPUS), minor=False)
        axes.minorticks_off()
        axes.legend()
    figure.suptitle(
        f"Predicted: {model.measured.loss}, width {model.measured.width}, {model.samples:,} samples per GPU"
    )
    figure.savefig(path)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; write records and a figure if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", choices=list(COMPARISONS), default="nt_xent")
    parser.add_argument("--width", type=int, default=768, help="of the embeddings")
    parser.add_argument("--samples", type=int, default=8192, help="per GPU, with two embeddings each")
    parser.add_argument("--item", type=int, default=2, help="bytes for a number of the embeddings: 2 for bf16")
    for name, value in asdict(Assumptions()).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(value), default=value, help="see the assumptions printed"
        )
    parser.add_argument("--out", type=Path, help="file for JSON lines")
    parser.add_argument("--plot", type=Path, help="file for the figure")
    options = parser.parse_args(arguments)
    assumed = Assumptions(**{name: getattr(options, name) for name in asdict(Assumptions())})
    model = Model(Measured.read(options.loss, options.width), options.samples, options.item, assumed)
    print("\n".join(report(model)))
    if options.out is not None:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in records(model)))
    if options.plot is not None:
        plot(model, options.plot)


if __name__ == "__main__":
    main()
