"""The model card of an exported encoder: its training, scores and inputs, and example code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contrapose import __version__
from contrapose.lab.modalities.input_files import as_text
from contrapose.lab.training.collapse import MEANING, collapse_in_words
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.model import Model
from contrapose.lab.training.records.files import last_evaluation, read_records
from contrapose.lab.training.records.past_run import PastRun, RunProgress, is_score

_METRICS = ("uniformity", "alignment", "tolerance", "effective_rank", "feature_std")
_SETTINGS = ("framework", "loss", "objective", "views", "batch", "epochs", "optimiser", "lr", "precision", "seed")


@dataclass(frozen=True)
class ExportedEncoder:
    """The encoder of one tower of a run, as it is written to a file: its metadata and its model card."""

    model: Model
    modality: str  # name of the tower

    @property
    def tower(self) -> Embedder:
        """The encoder and its inputs."""
        return self.model.towers[self.modality]

    @property
    def name(self) -> str:
        """The encoder's name in the run's settings."""
        return self.model.kind.encoder_name(self.model.run, self.modality)

    @property
    def dims(self) -> int:
        """The prefix of the embedding to which the output is cut; 0: the encoder's whole features."""
        return self.tower.dims

    @property
    def features(self) -> int:
        """Number of features in the output."""
        return self.dims or self.tower.encoder.width

    @property
    def metadata(self) -> dict[str, str]:
        """How the encoder was trained and how its inputs are prepared, as strings."""
        run = self.model.run
        return {
            "format": "contrapose encoder",
            "contrapose": __version__,
            "encoder": self.name,
            "features": str(self.features),
            **({"dims": str(self.dims)} if self.dims else {}),
            "modality": self.modality,
            **self.tower.kind.describe_input(self.tower.views),
            "loss": run.loss,
            # Without its parent folder, which is private and meaningless on other machines.
            "data": as_text(Path(run.data).name),
            "step": str(self.model.step),
        }

    @property
    def summary(self) -> str:
        """A sentence about the encoder."""
        run, labels = self.model.run, "with" if self.model.run.needs_labels else "without"
        return (
            f"A {self.name} encoder with {self.features} features, trained {labels} labels on "
            f"{as_text(Path(run.data).name)} by contrapose {__version__}."
        )

    def card(self, folder: Path, file: str) -> str:
        """Return the model card, in Markdown.

        folder   directory of the run, whose records contain the scores
        file     name of the exported file
        """
        run, kind, views = self.model.run, self.tower.kind, self.tower.views
        scores = _scores(last_evaluation(folder, self.model.step), PastRun.read(folder).baselines)
        collapse = collapse_in_words([record for record in read_records(folder) if record["step"] <= self.model.step])
        progress = RunProgress.read(folder, run.describe(), self.model.step)
        warning = [] if progress.finished else ["", f"**Trained for {progress}.**"]
        warning += ["", f"**The training {collapse}.**"] if collapse else []
        width = self.tower.encoder.width if self._cut(file) else self.features
        sections = {
            "Training": [
                f"- data: {as_text(Path(run.data).name)}",
                *(f"- {name}: {getattr(run, name)}" for name in _SETTINGS),
                f"- steps: {self.model.step}",
            ],
            "Scores": scores or ["The run has not been evaluated."],
            "Inputs": [f"- {name}: {value}" for name, value in kind.describe_input(views).items()],
            "Use": _code(kind.usage(self.name, width, views, file) + self._cut(file)) + _own_usage(file),
            "Licence": [
                "The licence of the training data may restrict the use of these weights; check it before you share them."
            ],
        }
        body = [line for title, lines in sections.items() for line in ("", f"## {title}", "", *lines)]
        return "\n".join([f"# {file}", "", self.summary, *warning, *body, ""])

    def _cut(self, file: str) -> str:
        """Return the line of code that cuts features to a prefix; empty for files whose network does it."""
        if not self.dims or not file.endswith(".safetensors"):
            return ""
        return f"features = torch.nn.functional.normalize(features[:, :{self.dims}], dim=1)\n"


def _scores(evaluation: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return one line per score in a record, with its baselines; a metric of embeddings says which output it measures."""
    lines = []
    for name, value in evaluation.items():
        metric = name.removeprefix("encoder_")
        output = "encoder's features" if metric != name else "projector's output"
        if metric in _METRICS:
            lines.append(f"- {metric} of the {output}: {value:.6g}")
        elif name in ("epoch", "loss") or is_score(name):
            others = [f"{other} {scores[name]:.6g}" for other, scores in baselines.items() if name in scores]
            lines.append(f"- {name}: {value:.6g}" + (f" (without training: {', '.join(others)})" if others else ""))
    return lines + (["", f"{MEANING}."] if "feature_std" in evaluation else [])


def _own_usage(file: str) -> list[str]:
    if not file.endswith(".safetensors"):
        return []
    code = f'import contrapose\n\nfeatures = contrapose.load({json.dumps(file)}).embed(["image.jpg"])'
    return ["", "Or with contrapose:", "", *_code(code)]


def _code(text: str) -> list[str]:
    return ["```python", text.rstrip(), "```"]
