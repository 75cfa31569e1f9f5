"""`contrapose evaluate`: scores of a run's encoder, or of a model of sentences or of images and texts from elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from tyro.conf import Positional

from contrapose.lab.cli.image_text import CLIP_PREFIX, ImageTextOptions, towers_of
from contrapose.lab.cli.sentences import PREFIX, SentenceOptions
from contrapose.lab.evaluation import FINE_TUNING, PROBES, FewShot, FineTune, Measures, Probe, few_shot
from contrapose.lab.modalities import Source, Split
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.modalities.text.evaluation import embed_once
from contrapose.lab.training import Model, prepare_other
from contrapose.lab.training.collapse import MEANING, collapsed_outputs
from contrapose.lab.training.model import load_any
from contrapose.lab.training.sources import find_data, load_own_data
from contrapose.validate import check_known


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a run's encoder: kNN accuracy and, on request, a linear probe, fine-tuning, few-shot SVMs and metrics.

    A run on pairs of texts has recall@k of the pairs that are held out, and --sts and --transfer evaluate it on other tasks.
    `contrapose evaluate hf:PATH --sts FILE` evaluates a sentence encoder in a local Hugging Face folder, and
    `contrapose evaluate clip:PATH --zero-shot DATA` a model of images and texts.
    """

    run: Positional[Path]
    """Directory of the run; or hf: and the folder of a sentence encoder, as in hf:models/minilm; or clip: and that of a model of
    images and texts."""
    data: str = ""
    """Another data set to evaluate on: a name, a folder or an .npz file, with labelled training and test images; or a file of
    pairs of texts, whose recall is that among all of its pairs."""
    columns: tuple[str, ...] = ()
    """Columns of --data or --captions, as in `train`."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""
    knn: int = 0
    """Number of neighbours; 0: as in the run."""
    linear: str = ""
    """Linear probe to train on features of plain images: wang-liu, cacr, cacr-imagenet, moco-v3, moco-v3-vit,
    dystress-imagenet, balanced-cifar or balanced-imagenet. The paper's own, on augmented images: wang-liu-flips (CIFAR),
    wang-liu-colours (SVHN), wang-liu-crops (ImageNet), and the other names with -crops."""
    augment: str = ""
    """Augment the probe's training images anew in each epoch: crops (with flips), flips or colours; empty: as the name of the
    probe says."""
    best: bool = False
    """Report the accuracy of the probe's best epoch too, under a name of its own."""
    finetune: int = 0
    """Epochs for which the encoder and a classifier are fine-tuned; 0: those of --recipe, or no fine-tuning without it."""
    recipe: str = ""
    """Fine-tune as a paper does: dystress-multiclass, dystress-binary, cacr-resnet50 or vit; empty: a recipe of our own."""
    shots: int = 0
    """Train on this many images of each class: a linear probe, or with --finetune the encoder too; 0: on all images. By
    ELEVATER's protocol, learning rate and weight decay are chosen on the last of them, and the score is the mean of three
    samples."""
    metrics: bool = False
    """Compute metrics on all test images: uniformity, tolerance, separation, signs of collapse (feature_std, effective_rank) and
    others of the projector's output and, as encoder_NAME, those of the encoder's features that need no augmentation."""
    few_shot: bool = False
    """Train linear SVMs on a class-balanced subset and on all images (long-tail protocol of Kukleva et al.)."""
    skip_broken: bool = False
    """Leave out files of a folder that cannot be read; the default if the run was trained so."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""
    sentences: SentenceOptions = field(default_factory=SentenceOptions)
    image_text: ImageTextOptions = field(default_factory=ImageTextOptions)

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print the scores as JSON."""
        name = str(self.run)
        self._check_options(name)
        if name.startswith(PREFIX):
            self.sentences.evaluate(Path(name.removeprefix(PREFIX)).expanduser())
        elif name.startswith(CLIP_PREFIX):
            path = Path(name.removeprefix(CLIP_PREFIX)).expanduser()
            self.image_text.evaluate(path, columns=self.columns, root=self.data_root, skip_broken=self.skip_broken)
        else:
            self._evaluate_run()

    def _check_options(self, name: str) -> None:
        """Refuse options that would have no effect: those of a run, of a sentence encoder, or of a model of images and texts."""
        if name.startswith(PREFIX):
            _refuse(_given(self, "run"), "runs trained here", "a sentence encoder takes --sts or --transfer")
            _refuse(_given(self.image_text), f"{CLIP_PREFIX}FOLDER", "a sentence encoder takes --sts or --transfer")
        elif name.startswith(CLIP_PREFIX):
            takes = "a model of images and texts takes --zero-shot or --captions"
            _refuse(_given(self, "run", "columns", "data_root", "skip_broken"), "runs trained here", takes)
            _refuse(_given(self.sentences), "sentence encoders", takes)
        else:
            rest = f"{name} is the directory of a run, which has its own"
            _refuse(_given(self.sentences, "sts", "transfer", "seed"), f"{PREFIX}FOLDER", rest)
        if self.columns and not self.data and self.image_text.captions is None:
            raise ValueError("columns: they are those of --data or --captions, and neither is given")

    def _evaluate_run(self) -> None:
        tasks = self.sentences.read() if self.sentences.name_tasks else None
        model = load_any(self.run, epoch=self.epoch or None)
        if len(model.towers) > 1:
            self._evaluate_towers(model)
            return
        _refuse(
            _given(self.image_text),
            f"models of images and texts, as in {CLIP_PREFIX}FOLDER",
            f"{self.run} was trained on {model.run.kind.noun}",
        )
        scores = {}
        if tasks is not None:
            if model.run.modality != "text":
                option = "sts" if self.sentences.sts else "transfer"
                raise ValueError(
                    f"{option}: --{option} is for sentence encoders, and {self.run} was trained on {model.run.kind.noun}"
                )
            scores = tasks.score(partial(embed_once, model.tower), model.device)
        if tasks is None or _given(self, "run", "epoch", "data_root", "skip_broken"):
            scores |= self._evaluate_on_data(model)
        print(json.dumps({"step": model.step, **scores}))

    def _evaluate_towers(self, model: Model) -> None:
        """Score a run on images with captions: on its own test images unless other data is given."""
        takes = f"{self.run} was trained on images with captions and takes --zero-shot, --captions or --sheet"
        others = _given(self, "run", "epoch", "columns", "data_root", "skip_broken") + _given(self.sentences)
        _refuse(others, "runs on images or on text", takes)
        options = self.image_text
        if options.captions is None and (options.sheet is not None or not options.zero_shot):
            path = next(iter(find_data(model.run, self.run)), model.run.data)
            options = replace(options, captions=Path(path))
        columns = self.columns or model.run.columns
        tasks = options.read(columns=columns, root=self.data_root, skip_broken=self.skip_broken)
        print(json.dumps({"step": model.step, **tasks.score(towers_of(model))}))

    def _evaluate_on_data(self, model: Model) -> dict[str, float]:
        probe = self._probe()
        if self.recipe:
            check_known("recipe", self.recipe, FINE_TUNING)
        if self.recipe and self.shots:
            raise ValueError("recipe: --shots chooses the learning rate itself; omit --recipe or --shots")
        few_shot_training = FewShot(self.shots) if self.shots else None  # a wrong number is refused before data is read
        fine_tune = bool(self.finetune or self.recipe)
        # Features need each image once, or once per epoch, so that other data can stay on disk; fine-tuning reads it in each
        # epoch.
        stream = model.run.stream or bool(self.shots) or not fine_tune
        split = load_data(
            model,
            self.run,
            self.data,
            self.data_root,
            columns=self.columns,
            skip_broken=self.skip_broken,
            stream=stream,
        )
        scores = model.evaluate(split, self.knn or None)
        if self.metrics:
            scores |= model.measure_outputs(split.held_out, Measures(images=0, drawn=1000))
            for line in (MEANING, *collapsed_outputs(scores, model.run)):
                print(line, file=sys.stderr)  # stdout may be for other programs to read
        if "knn_top1" not in scores and (probe is not None or not scores):
            _labelled_features(model, split)  # raises an error that says what the data lacks
        if probe is not None:
            kind = f"linear_{probe.augment}" if probe.augment else "linear"
            scores |= {f"{kind}_{name}": score for name, score in model.linear_probe(split, probe).items()}
        if few_shot_training is not None:
            scores |= self._score_shots(model, split, few_shot_training)
        elif fine_tune:
            scores |= self._fine_tune(model, split)
        if self.few_shot:
            scores |= few_shot(*_labelled_features(model, split))
        return scores

    def _probe(self) -> Probe | None:
        """Return the linear probe to train; None if there is none."""
        if not self.linear:
            if self.augment:
                raise ValueError("augment: there is no linear probe to augment images for; choose one with --linear")
            return None
        check_known("linear", self.linear, PROBES)
        probe = replace(PROBES[self.linear], best=self.best)
        return replace(probe, augment=self.augment) if self.augment else probe

    def _fine_tune(self, model: Model, split: Split) -> dict[str, float]:
        train, test = _labelled(split, "finetune")
        recipe = FINE_TUNING[self.recipe] if self.recipe else FineTune()
        recipe = replace(recipe, epochs=self.finetune or recipe.epochs)
        scores = recipe(model.encoder, train, test, views=model.views, device=model.device)
        return {f"finetune_{name}": score for name, score in scores.items()}

    def _score_shots(self, model: Model, split: Split, few_shot: FewShot) -> dict[str, float]:
        train, test = _labelled(split, "shots")
        if self.finetune:
            few_shot = replace(few_shot, training=replace(few_shot.training, epochs=self.finetune))
        fine_tune = bool(self.finetune)
        result = few_shot(model.encoder, train, test, views=model.views, fine_tune=fine_tune, device=model.device)
        return {f"{'finetune' if fine_tune else 'linear'}_{self.shots}_shot": result.mean}


def _given(options: Any, *without: str) -> list[str]:
    """Return the names of options that are not at their defaults, as they are typed, except for some and for nested ones."""
    plain = (option for option in fields(options) if option.default_factory is MISSING)
    changed = (option for option in plain if getattr(options, option.name) != option.default)
    return [option.name.replace("_", "-") for option in changed if option.name not in without]


def _refuse(names: Sequence[str], purpose: str, instead: str) -> None:
    """Raise ValueError if there are options that are for something else than what is evaluated."""
    for name in names:
        raise ValueError(f"{name}: --{name} is for {purpose}; {instead}")


def print_notes(split: Split) -> None:
    """Print the notes on some data to stderr, since stdout may be for other programs to read."""
    for note in split.notes:
        print(note, file=sys.stderr)


def load_data(
    model: Model,
    folder: Path,
    data: str,
    root: Path,
    *,
    columns: tuple[str, ...] = (),
    skip_broken: bool = False,
    stream: bool = False,
) -> Split:
    """Load `data` or, if that is empty, what the run in `folder` was trained on; print its notes to stderr."""
    run = replace(model.run, skip_broken=model.run.skip_broken or skip_broken)
    if data:
        split = prepare_other(run, data, root, folder=folder, stream=stream, columns=columns)
    else:
        split = load_own_data(run, folder, root, lambda text: print(f"contrapose: {text}", file=sys.stderr))
    print_notes(split)
    return split


def _labelled(split: Split, option: str) -> tuple[Source, Source]:
    """Return the labelled training and test samples."""
    if split.probe is None or split.test is None:
        raise ValueError(f"{option}: expected labelled training and test images, but the data has none")
    return split.probe, split.test


def _labelled_features(model: Model, split: Split) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training features and labels, then test features and labels."""
    features = model.labelled_features(split)
    if features is None:
        name = split.train.name.removesuffix(" (train)")
        raise ValueError(f"data: {name} {model.kind.unscored}")
    return features
