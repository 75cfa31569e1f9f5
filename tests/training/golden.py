"""The losses of 20 steps for every framework × three objectives, written down: `python tests/training/golden.py`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from torch import Tensor, nn

from contrapose.frameworks import Framework
from contrapose.pairs import Pairs
from contrapose.training import Progress, Run, Trainer

PATH = Path(__file__).with_name("golden.json")
FRAMEWORKS = ("simclr", "moco", "moco-v3", "memory-bank")
LOSSES = ("nt_xent(temperature=0.2)", "dystress", "cacr")
STEPS = (1, 2, 5, 10, 20)


class InDouble(nn.Module):
    def __init__(self, network: Framework) -> None:
        super().__init__()
        self.network = network

    def forward(self, views: list[Tensor], index: Tensor) -> Pairs:
        pairs: Pairs = self.network([view.double() for view in views], index)
        return pairs


def losses(framework: str, loss: str) -> list[float]:
    run = Run(
        limit=160,
        batch=32,
        epochs=4,
        framework=framework,
        loss=loss,
        queue=128,
        knn=5,
        optimiser="sgd",
        lr=0.03,
        metrics=0,
    )
    seen: dict[int, float] = {}

    def watch(progress: Progress) -> None:
        seen[progress.step] = progress.loss

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, Path(folder) / "run", watch, lambda text: None)
        # In float64 the number of threads and the CPU do not show; in float32 rounding grows with every step.
        trainer.network.double()
        trainer.learner = InDouble(trainer.network)
        trainer.evaluate = dict  # type: ignore[method-assign]
        trainer.train()
    return [seen[step] for step in STEPS]


if __name__ == "__main__":
    table = {f"{framework} {loss}": losses(framework, loss) for framework in FRAMEWORKS for loss in LOSSES}
    PATH.write_text(json.dumps(table, indent=1) + "\n")
