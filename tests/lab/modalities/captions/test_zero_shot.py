"""Zero-shot classification: prompts, class embeddings, scores of plain loops, names of classes, and bad input."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contrapose.lab.evaluation import TEMPLATES, class_embeddings, zero_shot_chance, zero_shot_scores
from contrapose.lab.modalities.captions.zero_shot import choose_templates, class_name_notes, find_class_names
from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.images.images import Images


def letters(texts: list[str]) -> Tensor:
    """An embedding of a text: how often each letter occurs, and a coordinate that no text lacks."""
    counts = [[float(text.count(chr(97 + i))) for i in range(26)] + [0.5] for text in texts]
    return torch.tensor(counts, dtype=torch.float64)


def unit_row(row: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def test_a_class_is_the_mean_of_its_prompts() -> None:
    classes, templates = ["aquarium_fish", "dog"], ["a {}.", "the big {} and a {}"]
    expected = []
    for name in ("aquarium fish", "dog"):
        rows = [unit_row(row) for row in letters([f"a {name}.", f"the big {name} and a {name}"]).tolist()]
        expected.append(unit_row([(a + b) / 2 for a, b in zip(*rows, strict=True)]))
    embeddings = class_embeddings(letters, classes, templates)
    torch.testing.assert_close(embeddings, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert torch.equal(class_embeddings(letters, classes), class_embeddings(letters, classes, ["photo"]))


def test_braces_in_names_and_prompts_stay() -> None:
    seen: list[str] = []

    def embed(texts: list[str]) -> Tensor:
        seen.extend(texts)
        return letters(texts)

    class_embeddings(embed, ["{x}"], ["{a} {} {b}"])
    assert seen == ["{a} {x} {b}"]


def test_templates_by_name() -> None:
    assert choose_templates(["photo"]) == ("a photo of a {}.",)
    assert len(set(choose_templates(["imagenet-7", "a drawing of a {}"]))) == 8
    assert all(template.count("{}") == 1 for templates in TEMPLATES.values() for template in templates)
    with pytest.raises(ValueError, match=re.escape("expected a prompt with {} for the name of the class")):
        choose_templates(["a photo of a dog"])
    with pytest.raises(ValueError, match="did you mean 'imagenet-7'"):
        choose_templates(["imagenet-70"])
    with pytest.raises(ValueError, match="expected at least one prompt"):
        choose_templates([])


@pytest.mark.parametrize("classes", [3, 8])
def test_scores_equal_plain_loops(classes: int) -> None:
    images, texts = torch.randn(40, 5, dtype=torch.float64), 3 * torch.randn(classes, 5, dtype=torch.float64)
    labels = torch.randint(classes - 1, (40,))  # the last class has no image
    hits: dict[int, list[bool]] = {}
    top5 = []
    for image, label in zip(images.tolist(), labels.tolist(), strict=True):
        cosines = [sum(a * b for a, b in zip(unit_row(image), unit_row(text), strict=True)) for text in texts.tolist()]
        ranking = sorted(range(classes), key=lambda c: -cosines[c])
        hits.setdefault(label, []).append(ranking[0] == label)
        top5.append(label in ranking[:5])
    expected = {"top1": 100 * sum(map(sum, hits.values())) / 40}
    expected |= {"top5": 100 * sum(top5) / 40} if classes > 5 else {}
    expected["mean_per_class"] = 100 * sum(sum(hit) / len(hit) for hit in hits.values()) / len(hits)
    assert zero_shot_scores(images, labels, texts) == pytest.approx(expected)


def test_random_embeddings_score_chance_and_a_collapsed_model_nothing() -> None:
    labels = torch.arange(4000) % 10
    scores = zero_shot_scores(torch.randn(4000, 32), labels, torch.randn(10, 32))
    for name, chance in zero_shot_chance(10).items():
        assert abs(scores[name] - chance) < 5, name
    assert set(zero_shot_scores(torch.ones(4000, 32), labels, torch.ones(10, 32)).values()) == {0.0}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"labels": torch.tensor([0, 3])}, "labels: expected classes from 0 to 2, got 3"),
    ({"labels": torch.tensor([0])}, "labels: expected one integer per image, shape (2,), got (1,)"),
    ({"class_embeddings": torch.eye(4)}, "class_embeddings: expected rows of the embeddings' width 3"),
    ({"image_embeddings": torch.full((2, 3), torch.nan)}, "image_embeddings: the embedding of row 0 is not finite"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_messages(arguments: dict[str, Any], message: str) -> None:
    defaults = {"image_embeddings": torch.eye(3)[:2], "labels": torch.arange(2), "class_embeddings": torch.eye(3)}
    with pytest.raises(ValueError, match=re.escape(message)):
        zero_shot_scores(**(defaults | arguments))


def test_wrong_numbers_of_embeddings_are_refused() -> None:
    with pytest.raises(ValueError, match="embed_texts: expected 2 embeddings, one for each text, got 1"):
        class_embeddings(lambda texts: letters(texts)[:1], ["a", "b"])
    with pytest.raises(ValueError, match="classes: expected at least one name"):
        class_embeddings(letters, [])


def labelled(classes: tuple[str, ...] = ()) -> Images:
    labels = torch.arange(10)
    return Images("set.npz (test)", torch.zeros(10, 3, 2, 2, dtype=torch.uint8), labels, classes)


def test_names_of_the_classes(tmp_path: Path) -> None:
    own = tuple("abcdefghij")
    assert find_class_names(labelled(own)) == own
    assert find_class_names(labelled(own), "cifar10") == CLASS_NAMES["cifar10"]
    file = tmp_path / "names.txt"
    file.write_text("\ufeffgolden retriever\n\n" + "\n".join(own[1:]) + "\n", encoding="utf-8")
    assert find_class_names(labelled(), str(file)) == ("golden retriever", *own[1:])
    for source, names, message in [
        (labelled(), "", "set.npz (test) has 10 classes without names; give a text file with one name per line"),
        (labelled(), "cifar100", "expected 10 names, one for each class of set.npz (test), but cifar100 has 100"),
        (labelled(), str(tmp_path / "none.txt"), "expected a text file with one name per line, or one of digits"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            find_class_names(source, names)
    file.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        find_class_names(labelled(), str(file))


def test_notes_on_names() -> None:
    assert class_name_notes(CLASS_NAMES["cifar100"]) == []
    (note,) = class_name_notes(["n01440764", "n01443537", "dog"])
    assert "2 of 3 are WordNet ids such as n01440764" in note
    (note,) = class_name_notes(["sports_car", "sports car", "dog"])
    assert "1 name belongs to several classes, such as 'sports car'" in note
