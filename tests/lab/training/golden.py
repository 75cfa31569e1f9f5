"""Golden losses of 20 steps for every framework, with three losses or with its own.

`PYTHONPATH=tests python tests/lab/training/golden.py` rewrites them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from framework_cases import FRAMEWORK_CASES
from torch import Tensor, nn

from contrapose.embeddings import Embeddings
from contrapose.lab.frameworks import Framework
from contrapose.lab.training import Progress, Run, Trainer

PATH = Path(__file__).with_name("golden.json")
LOSSES = ("nt_xent(temperature=0.2)", "dystress", "cacr")
STEPS = (1, 2, 5, 10, 20)


class InDouble(nn.Module):
    """Compute the network in float64, on views that are made in float64 too.

    Twenty steps amplify a rounding error by a million, and views in float32 differ in the last bit between processors.
    """

    def __init__(self, network: Framework, pixels: Tensor) -> None:
        super().__init__()
        self.network, self.images = network, pixels.double() / 255 - 0.5

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        first = self.images[index]
        embeddings: Embeddings = self.network([torch.stack([first, 0.8 * first.roll((2, 3), (2, 3)) + 0.1])], index)
        return embeddings


def cases() -> list[tuple[str, str]]:
    """Return frameworks and losses: a framework whose preset names a loss is trained with that one."""
    own = {name: [case["loss"]] if "loss" in case else LOSSES for name, case in FRAMEWORK_CASES.items()}
    return [(framework, loss) for framework, losses in own.items() for loss in losses]


def losses(framework: str, loss: str) -> list[float]:
    own = dict(FRAMEWORK_CASES[framework]) if "loss" in FRAMEWORK_CASES[framework] else {}
    own.pop("norm_views", None)  # recorded before it was a setting
    settings: dict[str, Any] = {
        **{
            "data": "digits",
            "limit": 160,
            "batch": 32,
            "epochs": 4,
            "knn": 5,
            "metrics": 0,
            "optimiser": "sgd",
            "lr": 0.03,
        },
        **own,
        **{"framework": framework, "loss": loss, "queue": 128},
    }
    run = Run(**settings)
    losses_by_step: dict[int, float] = {}

    def on_step(progress: Progress) -> None:
        losses_by_step[progress.step] = progress.loss

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, Path(folder) / "run", on_step, lambda text: None, device=torch.device("cpu"))
        context = trainer.context
        assert context.reader.resident is not None
        context.network.double()
        context.learner = InDouble(context.network, context.reader.resident)
        trainer.evaluate = dict  # type: ignore[method-assign]
        trainer.train()
    return [losses_by_step[step] for step in STEPS]


if __name__ == "__main__":
    table = {f"{framework} {loss}": losses(framework, loss) for framework, loss in cases()}
    PATH.write_text(json.dumps(table, indent=1) + "\n")
