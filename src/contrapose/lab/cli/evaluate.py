"""`contrapose evaluate`: scores of a run's encoder, or of a text or image-text model trained elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor
from tyro.conf import Positional

from contrapose.lab.evaluation import FINE_TUNING, PROBES, FewShot, FineTune, Measures, Probe, few_shot
from contrapose.lab.modalities import MODALITIES, Source, Split, modality, trained_elsewhere
from contrapose.lab.modalities.modality import CommonOptions
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.training import Model, prepare_other
from contrapose.lab.training.collapse import MEANING, collapsed_outputs
from contrapose.lab.training.model import load_any
from contrapose.lab.training.sources import load_own_data
from contrapose.validate import check_known


class EvaluationOptions(Protocol):
    """Options for data of one modality: a dataclass that its `evaluation_options` names."""

    purpose: ClassVar[str]  # what they are for, in messages
    takes: ClassVar[str]  # which options a model of this modality takes, in messages
    shared: ClassVar[tuple[str, ...]]  # options of `evaluate` itself that a model trained elsewhere takes too
    for_folders: ClassVar[tuple[str, ...]]  # its options that a run does not take
    replaces: ClassVar[bool]  # whether its scores take the place of those of any encoder

    @property
    def has_columns(self) -> bool:
        """Whether the options name data with columns."""

    def evaluate_folder(self, folder: Path, common: CommonOptions) -> dict[str, Any]:
        """Return the scores of a model that was trained elsewhere, and a description of it."""

    def score(self, model: Model, run: Path, common: CommonOptions) -> dict[str, float] | None:
        """Return the scores of a run; None if no option asks for any."""


@dataclass(frozen=True)
class _Evaluate:
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
    dystress-imagenet, balanced-cifar or balanced-imagenet. On augmented images, as in the papers: wang-liu-flips (CIFAR),
    wang-liu-colours (SVHN), wang-liu-crops (ImageNet), and the other names with -crops."""
    augment: str = ""
    """Augment the probe's training images, differently in each epoch: crops (with flips), flips or colours; empty: as in the
    probe's name."""
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

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print the scores as JSON."""
        elsewhere = trained_elsewhere(str(self.run))
        if elsewhere is None:
            print(json.dumps(self._evaluate_run()))
            return
        kind, folder = elsewhere
        name = next((name for name in OPTIONS if modality(name) is kind), "")
        if not name:
            raise ValueError(f"run: models of {kind.noun} are evaluated as runs; expected a directory, got {self.run}")
        options = self._options(name)
        _refuse(_given(self, "run", *options.shared), "runs trained here", options.takes)
        self._refuse_others(name, options.takes)
        self._check_columns(name)
        print(json.dumps(options.evaluate_folder(folder, self._common)))

    @property
    def _common(self) -> CommonOptions:
        return CommonOptions(columns=self.columns, root=self.data_root, skip_broken=self.skip_broken)

    def _options(self, name: str) -> EvaluationOptions:
        """Return the options of a modality."""
        options: EvaluationOptions = getattr(self, name)
        return options

    def _refuse_others(self, name: str, instead: str) -> None:
        """Refuse options of other modalities, which would have no effect."""
        for other in OPTIONS:
            if other != name:
                _refuse(_given(self._options(other)), self._options(other).purpose, instead)

    def _check_columns(self, name: str) -> None:
        if self.columns and not self.data and not (name in OPTIONS and self._options(name).has_columns):
            raise ValueError("columns: they are those of --data or --captions, and neither is given")

    def _evaluate_run(self) -> dict[str, Any]:
        """Return the scores of a run: those of its modality, if any are asked for, and those of any encoder."""
        for name in OPTIONS:
            options, prefix = self._options(name), modality(name).prefix
            only_folders = [option for option in _given(options) if option in options.for_folders]
            _refuse(only_folders, f"{prefix}FOLDER", f"{self.run} is the directory of a run, which has its own")
        model = load_any(self.run, epoch=self.epoch or None)
        name, noun = model.run.modality, model.kind.noun
        self._refuse_others(name, f"{self.run} was trained on {noun}")
        self._check_columns(name)
        if name not in OPTIONS:
            return {"step": model.step, **self._evaluate_on_data(model)}
        options = self._options(name)
        if options.replaces:
            others = _given(self, "run", "epoch", "columns", "data_root", "skip_broken")
            _refuse(others, "runs with one encoder", f"{self.run} was trained on {noun}, and {options.takes}")
        scores = options.score(model, self.run, self._common)
        if scores is None or (not options.replaces and _given(self, "run", "epoch", "data_root", "skip_broken")):
            scores = {**(scores or {}), **self._evaluate_on_data(model)}
        return {"step": model.step, **scores}

    def _evaluate_on_data(self, model: Model) -> dict[str, float]:
        probe = self._probe()
        if self.recipe:
            check_known("recipe", self.recipe, FINE_TUNING)
        if self.recipe and self.shots:
            raise ValueError("recipe: --shots chooses the learning rate itself; omit --recipe or --shots")
        few_shot_training = FewShot(self.shots) if self.shots else None  # refuses a wrong number before data is read
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
                print(line, file=sys.stderr)  # stdout may be read by other programs
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


def _load_options() -> dict[str, type]:
    """Return the classes of the options of each modality that has some."""
    paths = {name: modality(name).evaluation_options.partition(":") for name in MODALITIES}
    return {name: getattr(import_module(module), attribute) for name, (module, _, attribute) in paths.items() if module}


OPTIONS = _load_options()
# A group of options for each modality.
Evaluate = make_dataclass(
    "Evaluate",
    [(name, options, field(default_factory=options)) for name, options in OPTIONS.items()],
    bases=(_Evaluate,),
    frozen=True,
)
Evaluate.__doc__ = _Evaluate.__doc__


def _given(options: Any, *without: str) -> list[str]:
    """Return the names of options that are not at their defaults, as they are typed, except for some and for nested ones."""
    plain = (option for option in fields(options) if option.default_factory is MISSING)
    changed = (option for option in plain if getattr(options, option.name) != option.default)
    return [option.name.replace("_", "-") for option in changed if option.name not in without]


def _refuse(names: Sequence[str], purpose: str, instead: str) -> None:
    """Raise ValueError for options that do not apply to what is evaluated."""
    for name in names:
        raise ValueError(f"{name}: --{name} is for {purpose}; {instead}")


def print_notes(split: Split) -> None:
    """Print the notes on some data to stderr, since stdout may be read by other programs."""
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
    """Load `data` or, if that is empty, the data that the run in `folder` was trained on; print its notes to stderr."""
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
