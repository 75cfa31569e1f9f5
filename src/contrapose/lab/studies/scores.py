"""The scores by which `compare` compares losses: kNN accuracy for labelled images, recall for pairs of texts, or STS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contrapose.lab.modalities import Split
from contrapose.lab.studies.measures import (
    Evaluation,
    JointHits,
    JointReferences,
    KNNHits,
    RecallHits,
    RecordedKNN,
    RecordedMetric,
    RecordEntry,
    References,
    caption_recall,
)
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import Quantity, Study
from contrapose.lab.training import Run
from contrapose.lab.training.records.extra_metrics import recorded_measures

PIXELS, WORDS = "raw pixels", "tf-idf"  # rows of the table
UNTRAINED, INIT = "untrained encoder", "encoder that all losses start from"
_REFERENCES = References()
_UNIFORMITY = Quantity(name="-U", measure=RecordedMetric("uniformity"), unit="", negated=True)
_UNIFORMITY_DEFINITION = (
    "U, uniformity: the logarithm of the mean of exp(-2 · squared distance) over all pairs of embeddings; -U is larger if they"
    " are spread more evenly."
)


@dataclass(frozen=True)
class Score:
    """A number between 0 and 100 by which encoders are compared, and how a report writes about it."""

    quantities: tuple[Quantity, ...]  # columns of the table; the first one is the score
    title: str
    words: str  # the score's name in a sentence
    short: str  # the score's short name in later sentences, such as "accuracy"
    headings: tuple[str, ...]  # of the columns
    training_samples: str
    test_samples: str
    definitions: tuple[str, ...]
    hits: Evaluation | None = None  # a digit per test sample, 1 for a hit; if None, differences are not tested
    references: Mapping[str, str] = field(
        default_factory=dict
    )  # names of rows without training, keyed by name in the evaluation
    baseline: str = ""  # the first reference's name in a sentence
    reference_scores: Evaluation = _REFERENCES  # computes the references
    held_out: str = ""  # what the test set is counted in, if it is not `test_samples`

    @property
    def name(self) -> str:
        """Name of the quantity."""
        return self.quantities[0].name

    @property
    def counted_samples(self) -> str:
        """What the test set is counted in, such as "held-out images", of which each may have several captions."""
        return self.held_out or self.test_samples

    @property
    def measures(self) -> tuple[Evaluation, ...]:
        """Evaluations for the first run of a comparison; the other runs are evaluated without the references."""
        return (self.hits, self.reference_scores) if self.hits else ()


KNN = Score(
    quantities=(
        Quantity(name="kNN", measure=RecordedKNN()),
        _UNIFORMITY,
        Quantity(name="T", measure=RecordedMetric("tolerance"), unit=""),
    ),
    title="Accuracy, uniformity and tolerance",
    words="kNN accuracy",
    short="accuracy",
    headings=("kNN, %", "-U (spread out)", "T (classes together)"),
    training_samples="training images",
    test_samples="test images",
    definitions=(
        _UNIFORMITY_DEFINITION,
        "T, tolerance: the mean cosine similarity of two embeddings of one class; it is larger if classes stay together.",
        "Embeddings are the projector's output on a sample of test images; kNN uses the encoder's output on all of them.",
    ),
    hits=KNNHits(),
    references={"pixels": PIXELS, "untrained": UNTRAINED, "init": INIT},
    baseline="on raw pixels",
)
RECALL = Score(
    quantities=(
        Quantity(name="recall@1", measure=RecordEntry("recall@1")),
        Quantity(name="recall@10", measure=RecordEntry("recall@10")),
        _UNIFORMITY,
    ),
    title="Recall and uniformity",
    words="recall@1",
    short="recall@1",
    headings=("recall@1, %", "recall@10, %", "-U (spread out)"),
    training_samples="training pairs",
    test_samples="held-out pairs",
    definitions=(
        "recall@k: the share of held-out pairs whose second text is among the k nearest to the first, of the second texts of all"
        " held-out pairs, by the encoder's output.",
        f"{_UNIFORMITY_DEFINITION} Embeddings are the projector's output on a sample of first texts.",
    ),
    hits=RecallHits(),
    references={"words": WORDS, "untrained": "encoder before training", "init": INIT},
    baseline="with tf-idf",
)

JOINT = Score(
    quantities=(
        Quantity(name="text→image recall@1", measure=caption_recall("text_to_image", 1)),
        Quantity(name="text→image recall@10", measure=caption_recall("text_to_image", 10)),
        Quantity(name="image→text recall@1", measure=caption_recall("image_to_text", 1)),
        Quantity(name="modality gap", measure=RecordEntry("modality_gap"), unit=""),
    ),
    title="Recall and modality gap",
    words="text-to-image recall@1",
    short="recall@1",
    headings=("text→image recall@1, %", "text→image recall@10, %", "image→text recall@1, %", "modality gap"),
    training_samples="training images with captions",
    test_samples="held-out captions",
    definitions=(
        "text→image recall@k: the share of captions of held-out images whose image is among the k nearest to the caption, of all"
        " held-out images; image→text: the share of images with one of their captions among the k nearest.",
        "modality gap: the distance between the mean embedding of images and that of captions, 0 to 2.",
    ),
    hits=JointHits(),
    references={"chance": "random ranking", "untrained": "encoders before training", "init": INIT},
    baseline="with a random ranking",
    reference_scores=JointReferences(),
    held_out="held-out images",
)


def sts_score(task: str) -> Score:
    """Return the score for sentences: a task's correlation with human scores, as a run records it."""
    return Score(
        quantities=(Quantity(name=task, measure=RecordEntry(task), unit=""), _UNIFORMITY),
        title="Semantic similarity and uniformity",
        words=task,
        short=task,
        headings=(task, "-U (spread out)"),
        training_samples="training sentences",
        test_samples="scored pairs",
        definitions=(
            f"{task}: 100 × Spearman's correlation of cosine similarity with the human scores, after the last epoch.",
            f"{_UNIFORMITY_DEFINITION} Embeddings are the projector's output on a sample of training sentences.",
        ),
    )


def choose_score(run: Run, split: Split) -> Score:
    """Return the score that the data allows; raise a ValueError that says what is missing if it allows none."""
    if run.kind.joint_evaluation is not None and split.test is not None:
        return JOINT
    if split.retrieval is not None:
        return RECALL
    if split.probe is not None and split.test is not None:
        return KNN
    own = run.kind.recorded
    for measure in recorded_measures(run.extra_metrics, own):
        if measure.own and (task := own[measure.own].score(measure.argument)):
            return sts_score(task)
    raise ValueError(f"data: {run.data} {run.kind.unscored}")


def score_of(study: Study) -> Score:
    """Return the score of a comparison, by its first quantity."""
    if not study.quantities:
        return KNN
    name = study.quantities[0].name
    return next((score for score in (KNN, RECALL, JOINT) if score.name == name), None) or sts_score(name)


def hits_of(results: Results, rows: Sequence[str], score: Score) -> dict[str, Tensor]:
    """Return whether each test sample was a hit, as numbers (seeds, samples), for losses with at least two seeds.

    A sample with several queries, such as an image with several captions, has one number: its queries are not independent. The
    mean of the numbers is the share of queries that are hits.
    """
    assert score.hits is not None
    key = score.hits.key
    found = {row: results.evaluations[row, results.sets[0]] for row in rows}
    digits = {row: [_words(one[key]) for one in evaluations if key in one] for row, evaluations in found.items()}
    lengths = sorted({len(words) for runs in digits.values() for words in runs})
    if len(lengths) > 1:
        raise ValueError(
            f"data: the runs were tested on {lengths[0]:,} to {lengths[-1]:,} {score.test_samples}, so the test set has changed "
            "between them; use another --runs-dir to start over"
        )
    return {row: torch.stack([_shares(words) for words in runs]) for row, runs in digits.items() if len(runs) > 1}


def _words(text: str) -> Sequence[str]:
    """Return the digits of each test sample."""
    return text.split() if " " in text else text


def _shares(words: Sequence[str]) -> Tensor:
    hits, queries = (torch.tensor([count(word) for word in words]).double() for count in (_ones, len))
    return hits * len(words) / queries.sum()


def _ones(word: str) -> int:
    return word.count("1")
