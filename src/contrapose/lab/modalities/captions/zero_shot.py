"""Zero-shot classification: the predicted class is the one whose prompt is most similar to the image (CLIP)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.source import Source
from contrapose.metrics.retrieval import check_finite, wrong_before_right
from contrapose.pairs import unit
from contrapose.validate import check_count, check_embeddings, check_index, check_values, check_width, nearest

# Prompts by name; {} stands for the class name.
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "photo": ("a photo of a {}.",),
    # The combination that CLIP's authors found best on ImageNet.
    "imagenet-7": (
        "itap of a {}.",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    ),
}
_WORDNET_ID = re.compile(r"n\d{8}")


def choose_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Replace names in `TEMPLATES` by their prompts, and keep other prompts unchanged; refuse a prompt without {}."""
    chosen: list[str] = []
    for template in templates:
        if template not in TEMPLATES and "{}" not in template:
            raise ValueError(
                f"templates: expected a prompt with {{}} for the name of the class, as in 'a photo of a {{}}.', or one of "
                f"{', '.join(TEMPLATES)}, got {template!r}{nearest(template, TEMPLATES)}"
            )
        chosen += TEMPLATES.get(template, (template,))
    if not chosen:
        raise ValueError("templates: expected at least one prompt, got none")
    return tuple(chosen)


def clean_name(name: str) -> str:
    """Return a class name as it is written in a text: aquarium_fish -> aquarium fish."""
    return " ".join(name.replace("_", " ").split())


def find_class_names(source: Source, names: str = "") -> tuple[str, ...]:
    """Return the name of each class in a labelled data set.

    `names` is empty (use the data set's class names), the name of a data set whose class names are built in, such as cifar10,
    or a text file with one name per line.
    """
    count = len(source.counts())
    if not names:
        if len(source.classes) != count:
            raise ValueError(
                f"class_names: {source.name} has {count} classes without names; give a text file with one name per line, in the "
                f"order of the labels, or one of {', '.join(CLASS_NAMES)} (--class-names)"
            )
        return source.classes
    found = CLASS_NAMES.get(names) or _read_names(Path(names))
    if len(found) != count:
        raise ValueError(
            f"class_names: expected {count} names, one for each class of {source.name}, but {names} has {len(found)}"
        )
    return found


def _read_names(path: Path) -> tuple[str, ...]:
    """Return the non-empty lines in a file."""
    if not path.is_file():
        known = ", ".join(CLASS_NAMES)
        raise ValueError(
            f"class_names: expected a text file with one name per line, or one of {known}, got {str(path)!r}"
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"class_names: {path} is not UTF-8 text: {error}") from error
    return tuple(line.strip() for line in lines if line.strip())


def class_name_notes(classes: Sequence[str]) -> list[str]:
    """Return notes on what may surprise a user about these class names, one sentence each."""
    notes = []
    ids = [name for name in classes if _WORDNET_ID.fullmatch(name)]
    if ids:
        notes.append(
            f"class_names: {len(ids)} of {len(classes)} are WordNet ids such as {ids[0]}, which a text encoder does not know; "
            "give their names with --class-names FILE"
        )
    repeated = [name for name, count in Counter(map(clean_name, classes)).items() if count > 1]
    if repeated:
        notes.append(
            f"class_names: {len(repeated)} name{'s belong' if len(repeated) > 1 else ' belongs'} to several classes, such as "
            f"{repeated[0]!r}; their images count as misses, since no text distinguishes these classes"
        )
    return notes


@torch.no_grad()
def class_embeddings(
    embed_texts: Callable[[list[str]], Tensor],
    classes: Sequence[str],
    templates: Sequence[str] = TEMPLATES["photo"],
) -> Tensor:
    """Return an embedding for each class, (C, d): the mean of its prompts' unit embeddings, scaled to unit length.

    embed_texts   function from t texts to embeddings (t, d)
    classes       class names, in which underscores become spaces
    templates     prompts with {} for the class name, or names in `TEMPLATES`
    """
    if not classes:
        raise ValueError("classes: expected at least one name, got none")
    templates = choose_templates(templates)
    # Not str.format: a class name, or the rest of a prompt, may contain braces too.
    prompts = [template.replace("{}", clean_name(name)) for name in classes for template in templates]
    embeddings = embed_texts(prompts)
    check_embeddings("embed_texts", embeddings, 2, shapes={2: "(t, d)"})
    if len(embeddings) != len(prompts):
        raise ValueError(f"embed_texts: expected {len(prompts)} embeddings, one for each text, got {len(embeddings)}")
    check_finite("embed_texts", embeddings)
    return unit(unit(embeddings).unflatten(0, (len(classes), len(templates))).mean(1))


@torch.no_grad()
def zero_shot_scores(image_embeddings: Tensor, labels: Tensor, class_embeddings: Tensor) -> dict[str, float]:
    """Return top-1 accuracy, top-5 accuracy with more than five classes, and the mean accuracy per class, in per cent.

    image_embeddings   embeddings (n, d)
    labels             class of each image, integers (n,)
    class_embeddings   embeddings (C, d) from `class_embeddings`

    The class with the largest cosine is predicted. At a tie, a wrong class is ranked before the correct class, so that a model
    that maps everything to one point has no hits. Classes without images are left out of the mean.

    >>> zero_shot_scores(torch.eye(3)[[0, 0, 0, 1]], torch.tensor([0, 0, 0, 2]), torch.eye(3))
    {'top1': 75.0, 'mean_per_class': 50.0}
    """
    for name, z in (("image_embeddings", image_embeddings), ("class_embeddings", class_embeddings)):
        check_embeddings(name, z, 2, shapes={2: "(n, d)"})
        check_finite(name, z)
    check_width("class_embeddings", class_embeddings, image_embeddings)
    classes = len(class_embeddings)
    check_index("labels", labels, len(image_embeddings))
    is_class = (labels >= 0) & (labels < classes)
    check_values(is_class, lambda: f"labels: expected classes from 0 to {classes - 1}, got {int(labels[~is_class][0])}")
    labels = labels.to(image_embeddings.device).long()
    number = torch.arange(classes, device=labels.device)
    wrong = wrong_before_right(image_embeddings, class_embeddings, lambda rows: labels[rows][:, None] == number)
    hit = (wrong < 1).double()
    images_of_class = labels.bincount(minlength=classes)
    accuracy = hit.new_zeros(classes).index_add_(0, labels, hit) / images_of_class
    scores = {"top1": 100 * float(hit.mean())}
    if classes > 5:
        scores["top5"] = 100 * float((wrong < 5).double().mean())
    return scores | {"mean_per_class": 100 * float(accuracy[images_of_class > 0].mean())}


def zero_shot_chance(classes: int) -> dict[str, float]:
    """Return the expected `zero_shot_scores` of random predictions, with the same keys.

    classes   number of classes

    >>> zero_shot_chance(10)
    {'top1': 10.0, 'top5': 50.0, 'mean_per_class': 10.0}
    """
    check_count("classes", classes, least=1)
    top5 = {"top5": 500 / classes} if classes > 5 else {}
    return {"top1": 100 / classes} | top5 | {"mean_per_class": 100 / classes}
