"""`contrapose evaluate`: score a run's encoder, or a text or image-text model that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor
from tyro.conf import Positional

from contrapose.lab.cli.printed_scores import print_metrics, print_scores
from contrapose.lab.cli.run_data import choose_neighbours, load_data, print_error, warn_if_unfinished
from contrapose.lab.devices import DeviceOption
from contrapose.lab.evaluation import FINE_TUNING, PROBES, FewShot, FineTune, Measures, Probe, few_shot
from contrapose.lab.modalities import MODALITIES, Source, Split, modality, trained_elsewhere
from contrapose.lab.modalities.modality import CommonOptions
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.training import Model
from contrapose.lab.training.collapse import MEANING, collapsed_outputs
from contrapose.lab.training.feature_cache import FeatureCache
from contrapose.lab.training.model import load_any
from contrapose.lab.training.prefixes import evaluate_with_prefixes
from contrapose.lab.training.score_baselines import BASELINE_CHOICES, describe_no_gain, flatten, score_baselines
from contrapose.validate import NotFinite, check_count, check_known


class EvaluationOptions(Protocol):
    """The options of `evaluate` for one modality: the dataclass named in the modality's `evaluation_options`."""

    purpose: ClassVar[str]  # what these options are for; used in messages
    takes: ClassVar[str]  # which options a model of this modality takes; used in messages
    shared: ClassVar[tuple[str, ...]]  # general options of `evaluate` that also apply to a model trained elsewhere
    for_folders: ClassVar[tuple[str, ...]]  # options that apply only to a model trained elsewhere, not to a run
    replaces: ClassVar[bool]  # whether the modality's scores replace the general ones, such as kNN accuracy

    @property
    def has_columns(self) -> bool:
        """Whether the options name data with columns."""

    def evaluate_folder(self, folder: Path, common: CommonOptions) -> dict[str, Any]:
        """Return the scores of a model that was trained elsewhere, and a description of the model."""

    def score(self, model: Model, run: Path, common: CommonOptions) -> dict[str, float] | None:
        """Return the scores of a run; None if no option requests any score."""


@dataclass(frozen=True)
class _Evaluate(DeviceOption):
    """Evaluate a run's encoder: kNN accuracy and, on request, a linear probe, fine-tuning, few-shot SVMs and metrics.

    A run on text pairs is scored by recall@k on its held-out pairs; --sts and --transfer evaluate the run on other tasks.
    Of a run with --dims, kNN, recall and --sts are also scored for each prefix of the embedding, as dims_64_NAME.
    `contrapose evaluate hf:PATH --sts FILE` evaluates a sentence encoder in a local Hugging Face folder, and
    `contrapose evaluate clip:PATH --zero-shot DATA` evaluates an image-text model.
    """

    common: ClassVar[Mapping[str, str]] = {
        "data": "Another data set to evaluate on",
        "knn": "Number of neighbours for kNN",
        "linear": "Linear probe to train, such as wang-liu",
        "finetune": "Epochs of fine-tuning with a classifier",
        "shots": "Train on this many images per class",
        "metrics": "Uniformity, tolerance, signs of collapse, …",
        "sts": "File of scored sentence pairs",
        "zero_shot": "Data set to classify by its class names",
        "epoch": "Use the weights kept after this epoch",
        "device": "cpu, cuda or one GPU, such as cuda:1",
    }
    run: Positional[Path]
    """Directory of the run; or hf:FOLDER for a sentence encoder, as in hf:models/bert, or minilm; or clip:FOLDER for an
    image-text model."""
    data: str = ""
    """Another data set to evaluate on: a name, a folder or an .npz file, with labelled training and test images; or a file of
    text pairs, on which recall is computed among all pairs in the file."""
    columns: tuple[str, ...] = ()
    """Columns to read from the --data or --captions file, as in `train`."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""
    knn: int = 0
    """Number of neighbours for kNN; 0: the run's setting, or all training samples of --data if they are fewer."""
    linear: str = ""
    """Linear probe to train on features of plain images: wang-liu, cacr, cacr-imagenet, moco-v3, moco-v3-vit,
    dystress-imagenet, balanced-cifar or balanced-imagenet. On augmented images, as in the papers: wang-liu-flips (CIFAR),
    wang-liu-colours (SVHN), wang-liu-jittered (ImageNet), and the names with -crops."""
    augment: str = ""
    """Augment the probe's training images, differently in each epoch: crops (with flips), jittered (crops with changed colours),
    flips or colours; empty: as the probe's name says."""
    best: bool = False
    """Also report the accuracy in the probe's best epoch, under a separate name."""
    finetune: int = 0
    """Number of epochs for which to fine-tune the encoder with a classifier; 0: the number in --recipe, or no fine-tuning if
    there is no --recipe."""
    recipe: str = ""
    """Fine-tune with a paper's recipe: dystress-multiclass, dystress-binary, cacr-resnet50 or vit; empty: our own recipe."""
    shots: int = 0
    """Train a linear probe (with --finetune, the encoder too) on this many images per class; 0: on all images. As in ELEVATER's
    protocol, the last of these images are used to choose learning rate and weight decay, and the score is the mean over three
    random samples of images."""
    metrics: bool = False
    """Compute metrics of the projector's output on all test images: uniformity, tolerance, separation, signs of collapse
    (feature_std, effective_rank) and others. Metrics that need no augmentation are also computed on the encoder's features, as
    encoder_NAME."""
    few_shot: bool = False
    """Train linear SVMs on a class-balanced subset and on all images (the long-tail protocol of Kukleva et al.)."""
    baselines: str = "auto"
    """Scores without training to report beside the run's scores, as NAME_SCORE. For kNN, recall and --sts: raw_pixels_ or
    tfidf_, and untrained_encoder_ (encoder_before_training_ if it was pretrained), each in the time of one evaluation. For
    all accuracies: chance_. auto: all of them for up to 100,000 labelled samples, and chance for more; all; none."""
    skip_broken: bool = False
    """Skip files in a folder that cannot be read; the default if the run was trained with --skip-broken."""
    feature_cache: bool = True
    """Keep the features of images that are read from disk, not of data in memory, in features/ in the run's directory, for the
    next evaluation, and for the same one if it is interrupted."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print the scores as JSON."""
        elsewhere = trained_elsewhere(str(self.run))
        if elsewhere is None:
            print_scores(self._evaluate_run())
            return
        kind, folder = elsewhere
        name = next((name for name in OPTIONS if modality(name) is kind), "")
        if not name:
            raise ValueError(f"run: models of {kind.noun} are evaluated as runs; expected a directory, got {self.run}")
        options = self._options(name)
        _refuse(_given(self, "run", *options.shared), "runs that contrapose trained", options.takes)
        self._refuse_others(name, options.takes)
        self._check_columns(name)
        print_scores(options.evaluate_folder(folder, self._common))

    @property
    def _common(self) -> CommonOptions:
        return CommonOptions(
            columns=self.columns,
            root=self.data_root,
            skip_broken=self.skip_broken,
            baselines=self.baselines != "none",
        )

    def _options(self, name: str) -> EvaluationOptions:
        """Return the options of a modality."""
        options: EvaluationOptions = getattr(self, name)
        return options

    def _refuse_others(self, name: str, instead: str) -> None:
        """Raise ValueError for options of other modalities, which would have no effect."""
        for other in OPTIONS:
            if other != name:
                _refuse(_given(self._options(other)), self._options(other).purpose, instead)

    def _check_columns(self, name: str) -> None:
        if self.columns and not self.data and not (name in OPTIONS and self._options(name).has_columns):
            raise ValueError("columns: --columns needs --data or --captions, and neither is given")

    def _evaluate_run(self) -> dict[str, Any]:
        """Return the scores of a run: the modality's own scores if requested, and the scores that any encoder has."""
        check_known("baselines", self.baselines, BASELINE_CHOICES)
        check_count("knn", self.knn, least=0)
        check_count("finetune", self.finetune, least=0)
        for name in OPTIONS:
            options, prefix = self._options(name), modality(name).prefix
            only_folders = [option for option in _given(options) if option in options.for_folders]
            _refuse(only_folders, f"{prefix}FOLDER", f"{self.run} is the directory of a run, which has its own")
        model = load_any(self.run, epoch=self.epoch or None)
        # Weights that the user has chosen by their epoch are complete.
        step: dict[str, Any] = {"step": model.step}
        if not self.epoch and warn_if_unfinished(model, self.run):
            step["finished"] = False
        name, noun = model.run.modality, model.kind.noun
        self._refuse_others(name, f"{self.run} was trained on {noun}")
        self._check_columns(name)
        if name not in OPTIONS:
            return {**step, **self._evaluate_on_data(model)}
        options = self._options(name)
        if options.replaces:
            others = _given(self, "run", "epoch", "columns", "data_root", "skip_broken")
            _refuse(others, "runs with one encoder", f"{self.run} was trained on {noun}, and {options.takes}")
        scores = options.score(model, self.run, self._common)
        if scores is None or (
            not options.replaces
            and _given(self, "run", "epoch", "data_root", "skip_broken", "baselines", "feature_cache")
        ):
            scores = {**(scores or {}), **self._evaluate_on_data(model)}
        return {**step, **scores}

    def _evaluate_on_data(self, model: Model) -> dict[str, float]:
        probe = self._probe()
        if self.recipe:
            check_known("recipe", self.recipe, FINE_TUNING)
        if self.recipe and self.shots:
            raise ValueError("recipe: --shots chooses the learning rate itself; omit --recipe or --shots")
        few_shot_training = FewShot(self.shots) if self.shots else None  # rejects an invalid number before data is read
        fine_tune = bool(self.finetune or self.recipe)
        # Features need each image only once, or once per epoch of an augmented probe, so --data can stay on disk. Fine-tuning
        # reads every image in each epoch.
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
        neighbours = choose_neighbours(model, split, self.knn)
        self._check_recipe(split)
        if self.feature_cache and len(model.towers) == 1:
            model.tower.kept_features = FeatureCache(model.tower, self.run / "features", print_error)
        scores = evaluate_with_prefixes(model, split, neighbours)
        if self.metrics:
            scores |= _measure(model, split)
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
        return scores | self._baselines(model, split, scores, neighbours)

    def _baselines(self, model: Model, split: Split, scores: dict[str, float], neighbours: int) -> dict[str, float]:
        """Return the scores without training, as NAME_SCORE; print to stderr if training has gained nothing."""
        baselines = score_baselines(model, split, scores, choice=self.baselines, neighbours=neighbours, log=print_error)
        nothing = describe_no_gain(model, split, scores, baselines)
        if nothing:
            print_error(nothing)
        return flatten(baselines)

    def _probe(self) -> Probe | None:
        """Return the linear probe to train; None if no probe was requested."""
        if not self.linear:
            if self.augment:
                raise ValueError("augment: there is no linear probe to augment images for; choose one with --linear")
            if self.best:
                raise ValueError("best: there is no linear probe to report an epoch of; choose one with --linear")
            return None
        check_known("linear", self.linear, PROBES)
        probe = replace(PROBES[self.linear], best=self.best)
        return replace(probe, augment=self.augment) if self.augment else probe

    def _check_recipe(self, split: Split) -> None:
        """Raise ValueError if the recipe of fine-tuning is for two classes and the data has more."""
        labels = None if split.probe is None else split.probe.labels
        if not self.recipe or FINE_TUNING[self.recipe].pos_weight is None or labels is None or labels.ndim > 1:
            return
        classes = 1 + int(labels.max())
        if classes != 2:
            raise ValueError(f"recipe: expected two classes for {self.recipe}, got {classes}; use another recipe")

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
    """Return the class of evaluation options for each modality that has one."""
    paths = {name: modality(name).evaluation_options.partition(":") for name in MODALITIES}
    return {name: getattr(import_module(module), attribute) for name, (module, _, attribute) in paths.items() if module}


OPTIONS = _load_options()
# One group of options per modality.
Evaluate = make_dataclass(
    "Evaluate",
    [(name, options, field(default_factory=options)) for name, options in OPTIONS.items()],
    bases=(_Evaluate,),
    frozen=True,
)
Evaluate.__doc__ = _Evaluate.__doc__


def _given(options: Any, *without: str) -> list[str]:
    """Return the options that differ from their defaults, as typed on the command line, except `without` and nested groups.

    --device is left out too, because every evaluation takes it.
    """
    plain = (option for option in fields(options) if option.default_factory is MISSING)
    changed = (option for option in plain if getattr(options, option.name) != option.default)
    return [option.name.replace("_", "-") for option in changed if option.name not in (*without, "device")]


def _refuse(names: Sequence[str], purpose: str, instead: str) -> None:
    """Raise ValueError if `names` lists any option that does not apply to the evaluated model."""
    for name in names:
        raise ValueError(f"{name}: --{name} is for {purpose}; {instead}")


def refuse_for_elsewhere(**given: int) -> None:
    """Raise ValueError for an option that a model which was trained elsewhere does not have."""
    for name, value in given.items():
        if value:
            raise ValueError(f"{name}: --{name} works only with runs that contrapose trained")


def _measure(model: Model, split: Split) -> dict[str, float]:
    """Return the metrics of a model's outputs and print them; of too few samples, print why there are none."""
    try:
        metrics = model.measure_outputs(split.held_out, Measures(images=0, drawn=1000))
    except NotFinite:
        raise
    except ValueError as error:  # the scores that were already computed still count
        print_error(f"no metrics: {error}")
        return {}
    print_metrics(metrics)
    for line in (MEANING, *collapsed_outputs(metrics, model.run)):
        print_error(line)
    return metrics


def _labelled(split: Split, option: str) -> tuple[Source, Source]:
    """Return the labelled training and test samples."""
    if split.probe is None or split.test is None:
        raise ValueError(f"{option}: expected labelled training and test samples, but the data has none")
    return split.probe, split.test


def _labelled_features(model: Model, split: Split) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training features and labels, then test features and labels."""
    features = model.labelled_features(split)
    if features is None:
        name = split.train.name.removesuffix(" (train)")
        raise ValueError(f"data: {name} {model.kind.unscored}")
    return features
