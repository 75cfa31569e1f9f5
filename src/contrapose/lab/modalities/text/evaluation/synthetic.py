"""Small substitutes for STS and SentEval, generated from a run's own texts, for trials."""

from __future__ import annotations

from collections.abc import Sequence

from contrapose.lab.modalities.text.evaluation.classifier import LogisticRegression
from contrapose.lab.modalities.text.evaluation.sts import STS_TASKS, SentencePair
from contrapose.lab.modalities.text.evaluation.transfer import TRANSFER_TASKS, TransferText

TRIAL_TEXTS = 26  # just enough for the folds of cross-validation
TRIAL_CLASSIFIER = LogisticRegression(
    max_evaluations=1
)  # takes seconds on a CPU, but is too short for a good classifier
_SPLITS = {"sst2": ("train", "dev", "test"), "trec": ("train", "test"), "mrpc": ("train", "test")}


def synthetic_pairs(texts: Sequence[str]) -> list[SentencePair]:
    """Return pairs for each STS task: a text and its first words, scored from 0 to 5 by the share of words that are kept."""
    pairs = [
        SentencePair(task, "made", "test", _kept(number), text, _first_words(text, _kept(number)))
        for task in STS_TASKS
        for number, text in enumerate(texts)
    ]
    dev = [pair._replace(split="dev") for pair in pairs if pair.dataset == "stsb"]
    return pairs + dev


def _kept(number: int) -> float:
    return 5.0 - number % 5


def _first_words(text: str, score: float) -> str:
    words = text.split()
    return " ".join(words[: max(1, round(len(words) * score / 5))])


def synthetic_tasks(texts: Sequence[str]) -> list[TransferText]:
    """Return texts for each transfer task; a text's class says whether the text is in the longer half."""
    ordered = sorted(texts, key=lambda text: (len(text), text))
    labels = {text: "long" if place >= len(ordered) // 2 else "short" for place, text in enumerate(ordered)}
    return [
        TransferText(task, split, labels[text], text, text[::-1] if task == "mrpc" else "")
        for task in TRANSFER_TASKS
        for split in _SPLITS.get(task, ("all",))
        for text in texts
    ]
