"""Accuracies of classifiers on a run's encoder: linear probes, nearest neighbours, SVMs and fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from contrapose.lab.evaluation import FINE_TUNING, KNN, PROBES, few_shot
from contrapose.lab.evaluation.feature_scores import score_features, scored_sources
from contrapose.lab.modalities import AUGMENTATIONS, Split
from contrapose.lab.studies.files import data_name
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words, hits_as_text
from contrapose.lab.training import Model, Run
from contrapose.lab.training.initial_model import start
from contrapose.lab.training.records.extra_metrics import PROBE_SCORES, recorded_measures

SMOKE_PROBE_EPOCHS = 5  # few, since probes encode augmented images again in each epoch, which is slow on a CPU
_VOTES = {
    "softmax": "votes weighted by similarity",
    "uniform": "majority vote",
    "distance": "votes weighted by distance",
}
_ACCURACY = {1: "accuracy", 5: "top-5 accuracy"}


@dataclass(frozen=True)
class LinearProbe(Evaluation):
    """Accuracy of a linear probe after its last epoch, or after its best one."""

    probe: str  # a key of PROBES
    best: bool = False
    top: int = 1  # 1 or 5, for top-1 or top-5 accuracy
    epochs: int = 0  # 0: the probe's default

    @property
    def key(self) -> str:
        """Return linear:PROBE, with optional suffixes _best and _top5 before the colon, and optional :EPOCHS at the end."""
        kind = PROBE_SCORES[f"{'best_' if self.best else ''}top{self.top}"]
        return f"{kind}:{self.probe}{f':{self.epochs}' if self.epochs else ''}"

    def describe(self, run: Run) -> Words:
        """Describe the accuracy, the images, the probe's training, and how often a run records the accuracy."""
        probe = replace(PROBES[self.probe], best=self.best)
        probe = probe.shortened(self.epochs) if self.epochs else probe
        recorded = [
            measure.every
            for measure in recorded_measures(run.extra_metrics, run.kind.recorded)
            if measure.probe == self.probe
        ]
        every = f", every {recorded[0]} epochs of training" if recorded else ""
        of = f" of a linear probe of the encoder's output on {_bank(run)}: {probe.describe()}{every}"
        return Words(_ACCURACY[self.top], of)

    def at_smoke_scale(self) -> LinearProbe:
        """Return a shorter probe."""
        return replace(self, epochs=SMOKE_PROBE_EPOCHS)

    def older_keys(self, sample: str) -> dict[str, str]:
        """Return the probe on unaugmented images, which older runs have instead of a probe on augmented images."""
        plain, _, augment = self.probe.rpartition("-")
        older = replace(self, probe=plain, best=False)
        return {older.key: "a probe of images without augmentation, last epoch"} if augment in AUGMENTATIONS else {}

    def in_record(self, record: Mapping[str, Any]) -> float | None:
        """Return the accuracy; a probe with fewer epochs, as recorded at the smoke scale, counts too."""
        keys = (self.key, replace(self, epochs=SMOKE_PROBE_EPOCHS).key)
        return next((record[key] for key in keys if record.get(key) is not None), None)

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return all accuracies of the probe."""
        return context.model.probe_scores(context.split, self.probe, epochs=self.epochs)


@dataclass(frozen=True)
class NearestNeighbours(Evaluation):
    """Accuracy of k nearest neighbours among all training images."""

    k: int
    votes: str  # softmax, uniform or distance
    top: int = 1  # 1 or 5

    @property
    def key(self) -> str:
        """Return knn:K:VOTES or knn_top5:K:VOTES."""
        return f"{'knn' if self.top == 1 else 'knn_top5'}:{self.k}:{self.votes}"

    def describe(self, run: Run) -> Words:
        """Describe the accuracy, the votes and the images."""
        of = f" of the encoder's output, {_VOTES[self.votes]}, neighbours from {_bank(run)}"
        return Words(f"{self.k}-NN {_ACCURACY[self.top]}", of)

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return top-1 and top-5 accuracy; top-5 is None with at most five classes."""
        train, *rest = _labelled_features(context.model, context.split)
        # Smoke-scale data can have fewer training images than the paper has neighbours.
        scores = KNN(min(self.k, len(train)), self.votes)(train, *rest)
        return {replace(self, top=1).key: scores["top1"], replace(self, top=5).key: scores.get("top5")}


@dataclass(frozen=True)
class KNNHits(Evaluation):
    """A digit for each test image: 1 if kNN, as used for the records, predicts its class, else 0."""

    kind = "knn_hits"
    summary = Words("which test images kNN classifies correctly")
    is_number = False

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the digits as a text."""
        hits = KNN(context.model.run.knn).hits(*_labelled_features(context.model, context.split))[:, 0]
        return {self.key: hits_as_text(hits)}


@dataclass(frozen=True)
class References(Evaluation):
    """Scores without training: of pixels (kNN accuracy) or tf-idf (recall), and of the initial encoders."""

    kind = "references"
    summary = Words("scores without training")
    is_number = False

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the scores of pixels or words, of the untrained encoder and, if --init is given, of the encoder in that file."""
        model, split = context.model, context.split
        sources = scored_sources(split)
        if sources is None:
            raise ValueError(f"{model.run.data} has no labelled samples and no held-out pairs to score with")
        scores: dict[str, dict[str, float]] = {}
        if model.kind.baseline:
            inputs = dict(zip(sources, model.kind.baseline_features(sources, model.reader), strict=True))
            name = "words" if split.retrieval else "pixels"
            scores[name] = score_features(inputs.__getitem__, split, model.run.knn)
        scores["untrained"] = start(model, split, untrained=True).evaluate(split)
        if model.run.init:
            scores["init"] = start(model, split).evaluate(split)
        return {self.key: {name: next(iter(values.values())) for name, values in scores.items()}}


@dataclass(frozen=True)
class LinearSVM(Evaluation):
    """Class-mean accuracy of a linear SVM, by the protocol of Kukleva et al."""

    images: str  # "few_shot": each class reduced to the size of the smallest; "long_tail": all training images

    def describe(self, run: Run) -> Words:
        """Return the images."""
        images = {
            "few_shot": "as many images of each class as the smallest has",
            "long_tail": "the long-tailed training set",
        }
        return Words(f"class-mean accuracy of a linear SVM on {images[self.images]}")

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return both accuracies."""
        return few_shot(*_labelled_features(context.model, context.split), seed=context.model.run.seed)


@dataclass(frozen=True)
class FineTuning(Evaluation):
    """Top-1 accuracy after fine-tuning, by the recipe of CACR's Table 18 for the encoder."""

    kind = "fine_tune"

    def describe(self, run: Run) -> Words:
        """Return the recipe."""
        recipe = FINE_TUNING[_recipe(run)].describe()
        return Words(f"accuracy after fine-tuning on all training images: {recipe}")

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the accuracy; fine-tuning does not change the run's own encoder."""
        model, split = context.model, context.split
        if split.probe is None or split.test is None:
            raise ValueError(f"{model.run.data} has no labelled training and test images to fine-tune on")
        with model.evaluation_context():
            scores = FINE_TUNING[_recipe(model.run)](
                model.encoder,
                split.probe,
                split.test,
                views=model.views,
                device=model.device,
                seed=model.run.seed,
                workers=model.reader.workers,
                timeout=model.reader.timeout,
            )
        return {self.key: scores["top1"]}


def _recipe(run: Run) -> str:
    """Return the key in FINE_TUNING of CACR's recipe for a run's encoder."""
    return "vit" if "vit" in run.encoder else "cacr-resnet50"


def _bank(run: Run) -> str:
    """Return the images that classifiers learn from, in words."""
    if run.probe == "train":
        return "the images trained on"
    return f"all training images{f' of {data_name(run.eval_data)}' if run.eval_data else ''}"


def _labelled_features(model: Model, split: Split) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training features and labels, then test features and labels."""
    labelled = model.labelled_features(split)
    if labelled is None:
        raise ValueError(f"{model.run.data} has no labelled training and test images to score with")
    return labelled
