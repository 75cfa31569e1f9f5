"""Transfer of sentence embeddings to classification: accuracy of logistic regression on frozen embeddings.

The protocol is SentEval's (Conneau & Kiela, 2018), implemented from its description. It depends on the splits of a task:

split all               nested cross-validation with 10 folds (MR, CR, SUBJ, MPQA)
splits train and test   the penalty is chosen by cross-validation with 10 folds on train (TREC, MRPC)
in addition split dev   the penalty is chosen on dev (SST2)
two texts               features |u - v| and u · v of the two embeddings (MRPC)

Early stopping uses the accuracy on the rows on which the penalty is chosen and, for the final classifier, on 5 % of its
training rows. The grid of penalties is SentEval's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.text.evaluation.classifier import LogisticRegression, held_out_accuracy
from contrapose.lab.modalities.text.evaluation.tables import read_table

COLUMNS = ("task", "split", "label", "text", "text2")
TRANSFER_TASKS = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
FOLDS = 10
_LEAST_ROWS = 12  # rows per class: enough for one row in each inner fold after an outer fold is removed
_SPLITS = ({"all"}, {"train", "test"}, {"train", "dev", "test"})


class TransferText(NamedTuple):
    """A text, or a pair of texts, with its class."""

    task: str
    split: str
    label: str
    text: str
    text2: str = ""


def read_transfer(path: Path) -> list[TransferText]:
    """Read texts from a tab-separated file with the columns task, split, label, text and text2.

    text2 is empty unless the task classifies pairs.
    """
    texts: list[TransferText] = []
    has_pairs: dict[str, bool] = {}
    for place, (task, split, label, text, text2) in read_table(path, COLUMNS, option="transfer"):
        if not task or not label:
            raise ValueError(f"transfer: {place}: expected a task and a label, got {task!r} and {label!r}")
        if has_pairs.setdefault(task, bool(text2)) != bool(text2):
            expected = "two texts" if has_pairs[task] else "one text"
            raise ValueError(f"transfer: {place}: expected {expected}, as in the first row of {task}")
        texts.append(TransferText(task, split, label, text, text2))
    for task in has_pairs:
        _check_task(task, [text for text in texts if text.task == task])
    return texts


def _check_task(task: str, texts: Sequence[TransferText]) -> None:
    """Check that a task has the splits of one of the protocols, and enough rows per class for the folds."""
    splits = {text.split for text in texts}
    if splits not in _SPLITS:
        raise ValueError(
            f"transfer: {task}: expected split all, or train and test, or train, dev and test; got {', '.join(sorted(splits))}"
        )
    counts = Counter(text.label for text in texts if text.split in ("all", "train"))
    if len(counts) < 2:
        raise ValueError(f"transfer: {task}: expected at least two classes to train on, got {len(counts)}")
    for label, count in counts.items():
        if count < _LEAST_ROWS:
            raise ValueError(
                f"transfer: {task}: class {label!r} has {count} training texts; {FOLDS} folds need at least {_LEAST_ROWS}"
            )
    unknown = sorted({text.label for text in texts} - set(counts))
    if unknown:
        raise ValueError(f"transfer: {task}: class {unknown[0]!r} has no training texts")


def evaluate_transfer(
    encode: Callable[[Sequence[str]], Tensor],
    texts: Iterable[TransferText],
    *,
    classifier: LogisticRegression | None = None,
    device: torch.device | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Return the accuracy in per cent on each task, keyed by name, and the mean accuracy.

    encode   function from n texts to embeddings (n, d)
    seed     random seed of the folds and of the order of rows

    transfer_mean is the mean over the seven `TRANSFER_TASKS`; it is missing if one of these tasks is missing.
    """
    texts_of: dict[str, list[TransferText]] = {}
    for text in texts:
        texts_of.setdefault(text.task.lower(), []).append(text)
    protocol = _Protocol(classifier or LogisticRegression(), seed)
    # All tasks are encoded before the first task is classified: a terminal can show only one progress bar at a time.
    features = {task: _features(encode, rows) for task, rows in texts_of.items()}
    scores = {}
    with progress_bar("classify", len(texts_of)) as advance:
        for task, rows in texts_of.items():
            scores[task] = 100 * protocol.accuracy(features[task].to(device), rows)
            advance()
    if all(task in scores for task in TRANSFER_TASKS):
        scores["transfer_mean"] = sum(scores[task] for task in TRANSFER_TASKS) / len(TRANSFER_TASKS)
    return scores


def _features(encode: Callable[[Sequence[str]], Tensor], rows: Sequence[TransferText]) -> Tensor:
    """Return the embeddings of single texts (n, d), or |u - v| and u · v of pairs (n, 2d).

    An empty text is encoded as ".", as in SentEval's examples: without it, a tokenizer that adds no special tokens would leave
    nothing to pool.
    """
    u = encode([row.text if row.text.strip() else "." for row in rows])
    if not rows[0].text2:
        return u
    v = encode([row.text2 for row in rows])
    return torch.cat([(u - v).abs(), u * v], dim=1)


class _Protocol(NamedTuple):
    classifier: LogisticRegression
    seed: int

    def accuracy(self, features: Tensor, rows: Sequence[TransferText]) -> float:
        """Return the test accuracy on a task, as a fraction."""
        names = sorted({row.label for row in rows})
        labels = torch.tensor([names.index(row.label) for row in rows], device=features.device)
        split = {name: _mask([row.split == name for row in rows], features) for name in {row.split for row in rows}}
        if "all" in split:
            test = _folds(split["all"], labels, self.seed)
            return self._test(features, labels, train=~test, test=test)
        if "dev" not in split:
            return self._test(features, labels, train=split["train"][None], test=split["test"][None])
        grid = features.new_tensor([PENALTIES])
        fitted = self.classifier.fit(
            features, labels, train=split["train"][None], held_out=split["dev"][None], penalty=grid, seed=self.seed
        )
        weights = fitted.select(fitted.accuracy.argmax(1))
        return float(held_out_accuracy(weights, features, labels, split["test"][None]))

    def _test(self, features: Tensor, labels: Tensor, *, train: Tensor, test: Tensor) -> float:
        """Return the mean test accuracy over F divisions into training and test rows, each bool (F, n)."""
        inner = torch.stack([_folds(rows, labels, self.seed + 1) for rows in train])  # (F, 10, n)
        inner_train = (train[:, None] & ~inner).flatten(0, 1)
        grid = features.new_tensor([PENALTIES])
        fit = self.classifier.fit
        tried = fit(
            features,
            labels,
            train=inner_train,
            held_out=inner.flatten(0, 1),
            penalty=grid.expand(len(inner_train), -1),
            seed=self.seed,
        )
        chosen = tried.accuracy.view(len(train), FOLDS, -1).mean(1).argmax(1)
        stop = torch.stack([_share(rows, self.seed + 2) for rows in train])
        final = fit(
            features, labels, train=train & ~stop, held_out=stop, penalty=grid[0, chosen][:, None], seed=self.seed
        )
        return float(held_out_accuracy(final.weights, features, labels, test).mean())


def _mask(values: Sequence[bool], features: Tensor) -> Tensor:
    return torch.tensor(values, device=features.device)


def _share(rows: Tensor, seed: int, share: float = 0.05) -> Tensor:
    """Return a random share of the rows, bool (n,); at least one row."""
    index = rows.nonzero()[:, 0]
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed)).to(index.device)
    chosen = torch.zeros_like(rows)
    chosen[index[order[: max(1, round(share * len(index)))]]] = True
    return chosen


def _folds(rows: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Divide the rows (n,) into 10 folds, stratified by class; return the rows in each fold, bool (10, n)."""
    with needs_extra("cross-validation", "text", TEXT_PACKAGES):
        from sklearn.model_selection import StratifiedKFold
    index = rows.nonzero()[:, 0]
    folds = torch.zeros(FOLDS, len(rows), dtype=torch.bool, device=rows.device)
    divisions = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(index.cpu(), labels[index].cpu())
    for fold, (_, held_out) in enumerate(divisions):
        folds[fold, index[torch.from_numpy(held_out).to(index.device)]] = True
    return folds
