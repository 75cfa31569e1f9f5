"""Transfer: the classifiers beside a plain training of each, the protocols of splits and folds, and wrong files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contrapose.lab.modalities.text.evaluation import TransferText, evaluate_transfer, read_transfer
from contrapose.lab.modalities.text.evaluation.classifier import LogisticRegression, held_out_accuracy
from contrapose.lab.modalities.text.evaluation.transfer import TRANSFER_TASKS

HEADER = "task\tsplit\tlabel\ttext\ttext2\n"
SHORT = LogisticRegression(passes=2, max_evaluations=9, patience=1, lr=0.05)


def train_alone(
    features: Tensor, labels: Tensor, *, train: list[int], held_out: list[int], penalty: float, keys: list[Tensor]
) -> tuple[Tensor, float]:
    """Train a linear layer with torch's Adam as `SHORT` does; `keys` are random numbers that order the rows of each pass.

    As in SentEval's fit(): evaluations without a better accuracy are counted from the beginning, and the one after the last
    that is allowed ends the training.
    """
    layer = torch.nn.Linear(features.shape[1], int(labels.max()) + 1, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimiser = torch.optim.Adam(layer.parameters(), lr=SHORT.lr, weight_decay=penalty)
    best, waited, kept, stop = -1.0, 0, torch.empty(0), False
    for evaluation in range(SHORT.max_evaluations):
        for key in keys[evaluation * SHORT.passes : (evaluation + 1) * SHORT.passes]:
            order = sorted(train, key=lambda row, key=key: float(key[row]))  # type: ignore[misc]
            for start in range(0, len(order), SHORT.batch_size):
                rows = order[start : start + SHORT.batch_size]
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(layer(features[rows]), labels[rows]).backward()
                optimiser.step()
        correct = [int(layer(features[row]).argmax()) == int(labels[row]) for row in held_out]
        accuracy = sum(correct) / len(correct)
        if accuracy > best:
            best = accuracy
            kept = torch.cat([layer.weight.detach().T, layer.bias.detach()[None]])
        else:
            stop = waited >= SHORT.patience
            waited += 1
        if stop:
            break
    return kept, best


def test_classifiers_side_by_side_equal_each_alone() -> None:
    """Three folds, one of them with fewer rows, two penalties and three classes; the training stops at different times."""
    generator = torch.Generator().manual_seed(3)
    count, width = 150, 5
    features = torch.randn(count, width, generator=generator, dtype=torch.float64)
    noisy = features[:, :3] + torch.randn(count, 3, generator=generator, dtype=torch.float64)
    labels = noisy.argmax(1)
    fold = torch.arange(count) % 5
    held_out = torch.stack([fold == k for k in range(3)])
    train = ~held_out
    train[2, :3] = False
    penalty = torch.tensor([[1e-3, 0.5]], dtype=torch.float64).expand(3, 2)
    fitted = SHORT.fit(features, labels, train=train, held_out=held_out, penalty=penalty, seed=7)
    orders = torch.Generator().manual_seed(7)
    keys = [torch.rand(3, count, generator=orders) for _ in range(SHORT.passes * SHORT.max_evaluations)]
    for f in range(3):
        for number in range(2):
            weights, best = train_alone(
                features,
                labels,
                train=train[f].nonzero()[:, 0].tolist(),
                held_out=held_out[f].nonzero()[:, 0].tolist(),
                penalty=float(penalty[f, number]),
                keys=[key[f] for key in keys],
            )
            torch.testing.assert_close(fitted.weights[f, number], weights, atol=1e-9, rtol=1e-7)
            assert float(fitted.accuracy[f, number]) == pytest.approx(best, abs=1e-6)
    kept = held_out_accuracy(fitted.weights, features, labels, held_out)
    torch.testing.assert_close(kept, fitted.accuracy)
    assert len(fitted.accuracy.unique()) > 2
    again = SHORT.fit(features, labels, train=train, held_out=held_out, penalty=penalty, seed=7)
    assert torch.equal(again.weights, fitted.weights)


def encode(texts: Sequence[str]) -> Tensor:
    """A text is a list of numbers."""
    return torch.tensor([[float(number) for number in text.split()] if text != "." else [9.0] * 4 for text in texts])


def sample(task: str, splits: dict[str, int], *, informative: bool, pairs: bool = False) -> list[TransferText]:
    """Texts whose first number, or for pairs whether both texts are alike, tells the class; or nothing does."""
    generator = torch.Generator().manual_seed(len(task))
    rows = []
    for split, count in splits.items():
        for i in range(count):
            u, v = torch.randn(2, 4, generator=generator)
            if informative and pairs:
                v = u + 0.1 * v if i % 2 else v
            elif informative:
                u[0] += 4 * (i % 2) - 2
            text, text2 = (" ".join(f"{float(number):.4f}" for number in vector) for vector in (u, v))
            rows.append(TransferText(task, split, "ab"[i % 2], text, text2 if pairs else ""))
    return rows


def test_each_protocol_finds_what_is_there_and_nothing_else() -> None:
    """A test row that reached the training would give random classes an accuracy above chance."""
    classifier = LogisticRegression(passes=1, max_evaluations=3, lr=0.05)
    folds, given, with_dev = {"all": 200}, {"train": 200, "test": 100}, {"train": 200, "dev": 50, "test": 100}
    texts = [
        *sample("FOLDS", folds, informative=True),
        *sample("Given", given, informative=True),
        *sample("dev", with_dev, informative=True),
        *sample("pairs", given, informative=True, pairs=True),
        *sample("nothing", folds, informative=False),
        *sample("nothing2", given, informative=False),
    ]
    scores = evaluate_transfer(encode, texts, classifier=classifier)
    assert list(scores) == ["folds", "given", "dev", "pairs", "nothing", "nothing2"]
    assert all(scores[name] > 90 for name in ("folds", "given", "dev"))
    assert scores["pairs"] > 80
    assert all(35 < scores[name] < 65 for name in ("nothing", "nothing2"))
    assert evaluate_transfer(encode, texts, classifier=classifier) == scores


def test_the_mean_needs_all_seven_tasks() -> None:
    classifier = LogisticRegression(passes=1, max_evaluations=1, lr=0.05)
    texts = [
        text for task in TRANSFER_TASKS for text in sample(task.upper(), {"train": 40, "test": 20}, informative=True)
    ]
    texts[0] = texts[0]._replace(text="")
    scores = evaluate_transfer(encode, texts, classifier=classifier)
    assert scores.pop("transfer_mean") == pytest.approx(sum(scores.values()) / 7)
    assert tuple(scores) == TRANSFER_TASKS
    fewer = [text for text in texts if text.task != "MR"]
    assert "transfer_mean" not in evaluate_transfer(encode, fewer, classifier=classifier)


def rows(task: str, split: str, label: str, count: int = 12, text: str = "x", text2: str = "") -> str:
    return "".join(f"{task}\t{split}\t{label}\t{text}\t{text2}\n" for _ in range(count))


def test_a_file_with_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "file.tsv").write_text(HEADER + rows("CR", "all", "0") + rows("CR", "all", "1", text=""))
    texts = read_transfer(tmp_path / "file.tsv")
    assert len(texts) == 24
    assert texts[-1] == TransferText("CR", "all", "1", "", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dataset\tsubset\n", "line 1: expected the columns task, split, label, text, text2"),
        (HEADER + rows("CR", "all", ""), "line 2: expected a task and a label"),
        (HEADER + rows("A", "train", "1") + rows("A", "train", "0", text2="y"), "line 14: expected one text, as in the first row of A"),
        (HEADER + rows("A", "train", "1"), "A: expected split all, or train and test, or train, dev and test; got train"),
        (HEADER + rows("A", "all", "1"), "A: expected at least two classes to train on, got 1"),
        (HEADER + rows("A", "all", "1") + rows("A", "all", "0", 11), "A: class '0' has 11 training texts; 10 folds need at least 12"),
        (
            HEADER + rows("A", "train", "1") + rows("A", "train", "0") + rows("A", "test", "2"),
            "A: class '2' has no training texts",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "file.tsv").write_text(content)
    with pytest.raises(ValueError, match=r"^transfer: ") as error:
        read_transfer(tmp_path / "file.tsv")
    assert message in str(error.value)
