"""`contrapose train`, `evaluate` and `presets`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from tyro.conf import Positional, arg

from contrapose.cli.display import training_display
from contrapose.cli.progress import format_duration
from contrapose.cli.sentences import PREFIX, SentenceOptions
from contrapose.evaluation import FINE_TUNING, PROBES, FewShot, FineTune, Measures, Probe, few_shot
from contrapose.modalities import Source, Split
from contrapose.modalities.progress import allow_progress_bars
from contrapose.modalities.text.load import is_text
from contrapose.training import PRESETS, Model, Run, Trainer, load, prepare_other, preset, resolve
from contrapose.training.collapse import MEANING, collapsed_outputs, describe_collapse
from contrapose.training.kept import best_epoch
from contrapose.training.locks import lock_directory
from contrapose.training.method_settings import TEXT_SETTINGS, describe_settings, settings_for_loss
from contrapose.training.processes import leave_process_group, own_device
from contrapose.training.records import read_records
from contrapose.training.sources import check_init, load_own_data
from contrapose.training.stops import ignore_closed_output
from contrapose.validate import check_directory, check_known
from contrapose.workers import TIMEOUT


@dataclass(frozen=True)
class Train:
    """Train an encoder, by default on the built-in digits. Run the same command again to resume an interrupted training.

    `--preset NAME` starts from the settings of a paper, such as dystress/cifar10, behaviour/cifar10, cacr/cifar10-k4,
    balanced/cifar10 or byol/cifar10 (`contrapose presets` lists all). Other options override those of the preset. `--loss`
    chooses the framework and the head that it needs, unless these are given.
    """

    run: Annotated[Run, arg(name="")]
    out: Path | None = None
    """Directory of the run; if omitted, a name derived from the settings, in runs/."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets; missing ones are downloaded to it."""
    workers: int = 2
    """Processes that decode images, with --stream. They change the speed, but not the results."""
    worker_timeout: float = TIMEOUT
    """Seconds to wait for a batch from the workers before the training fails. Increase it for very slow disks."""
    extend: bool = False
    """Continue the run in --out to more --epochs than it was started with. A cosine learning rate then follows the schedule
    over all epochs from the current step on."""

    def __call__(self) -> None:
        """Train, with a progress bar on a terminal."""
        with training_display(silent=_rank() > 0) as display, ExitStack() as stack:
            watch, say = ignore_closed_output(display.show_step), ignore_closed_output(display.print_line)
            # Refuse an unknown name before a directory or lock is created.
            self.run.kind.check_data(self.run.data)
            if self.run.probe_data:
                self.run.kind.check_data(self.run.probe_data, "probe_data")
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            run = resolve(self.run, own_device(), say=say, folder=self.out, world_size=world_size)
            folder = self.out or Path("runs") / run.name
            check_init(run, folder)
            check_directory("out", folder)
            if self.extend and not (folder / "run.json").exists():
                raise ValueError(f"extend: {folder} holds no run; give the directory of the run to extend with --out")
            # One lock for all processes of torchrun: a lock of their own would be refused.
            if not _rank() and not stack.enter_context(lock_directory(folder)):
                raise ValueError(
                    f"out: another process is training in {folder}; wait for it to end, or use another --out"
                )
            with allow_progress_bars():
                trainer = Trainer(
                    run,
                    folder,
                    watch=watch,
                    say=say,
                    on_evaluation=ignore_closed_output(display.show_evaluation),
                    data_root=self.data_root,
                    workers=self.workers,
                    worker_timeout=self.worker_timeout,
                    extend=self.extend,
                )
            for note in trainer.split.notes:
                say(note)
            say(
                f"{len(trainer.split.train):,} {run.kind.noun} of {trainer.split.train.name} on {trainer.device}, into {folder}"
            )
            if trainer.device.type == "cpu":
                display.on_estimate = lambda seconds: say(_how_to_shorten(run, seconds))
            scores = trainer.train()
            for name, score in scores.items():
                how = f"last epoch, {run.knn} neighbours" if name.startswith("knn") else "last epoch"
                say(f"{name:10} {score:6.2f} %   ({how})")
            if not scores and run.modality == "images":
                say("no score: the data has no labelled training and test images (see `contrapose data check PATH`)")
            best = best_epoch(read_records(folder), run.keep_best)
            if best is not None:
                say(
                    f"{run.keep_best:10} {best[1]:6.2f}     (best epoch, {best[0]}, whose weights are kept: --epoch {best[0]})"
                )
            say(f"run        {folder}")
            collapse = describe_collapse(trainer.run, read_records(folder))
            if collapse:  # last, so that the scores are not taken for a success
                say(collapse)
        leave_process_group()


def _rank() -> int:
    """Return the rank of this process under torchrun, else 0. Only rank 0 prints and holds the lock."""
    return int(os.environ.get("RANK", "0"))


def _how_to_shorten(run: Run, seconds: float) -> str:
    """Return how long the training takes, with options that shorten it if that is long."""
    text = f"the training takes about {format_duration(seconds)} on this CPU"
    if seconds < 120:
        return text
    options = [f"--epochs {max(1, run.epochs // 3)}", *(["--size 32"] if run.size > 32 else [])]
    return f"{text}; to shorten it: {' or '.join(options)}"


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a run's encoder: kNN accuracy and, on request, a linear probe, fine-tuning, few-shot SVMs and metrics.

    `contrapose evaluate hf:PATH --sts FILE` evaluates a sentence encoder in a local Hugging Face folder instead.
    """

    run: Positional[Path]
    """Directory of the run; or hf: and the folder of a sentence encoder, as in hf:models/minilm."""
    data: str = ""
    """Another data set to evaluate on: a name, a folder or an .npz file, with labelled training and test images."""
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

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print the scores as JSON."""
        sentence_encoder = str(self.run).startswith(PREFIX)
        self._check_options(sentence_encoder)
        if sentence_encoder:
            self.sentences.evaluate(Path(str(self.run).removeprefix(PREFIX)).expanduser())
        else:
            self._evaluate_run()

    def _check_options(self, sentence_encoder: bool) -> None:
        """Refuse options that would have no effect: those for runs with a sentence encoder, and the other way round."""
        options = self if sentence_encoder else self.sentences
        for option in fields(options):
            if option.name in ("run", "sentences") or getattr(options, option.name) == option.default:
                continue
            name = option.name.replace("_", "-")
            if sentence_encoder:
                raise ValueError(
                    f"{name}: --{name} is for runs trained here; a sentence encoder takes --sts or --transfer"
                )
            raise ValueError(
                f"{name}: --{name} is for sentence encoders; expected {PREFIX}FOLDER, got {str(self.run)!r}"
            )

    def _evaluate_run(self) -> None:
        probe = self._probe()
        if self.recipe:
            check_known("recipe", self.recipe, FINE_TUNING)
        if self.recipe and self.shots:
            raise ValueError("recipe: --shots chooses the learning rate itself; omit --recipe or --shots")
        few_shot_training = FewShot(self.shots) if self.shots else None  # a wrong number is refused before data is read
        fine_tune = bool(self.finetune or self.recipe)
        model = load(self.run, epoch=self.epoch or None)
        # Features need each image once, or once per epoch, so that other data can stay on disk; fine-tuning reads it in each
        # epoch.
        stream = model.run.stream or bool(self.shots) or not fine_tune
        split = load_data(model, self.run, self.data, self.data_root, skip_broken=self.skip_broken, stream=stream)
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
        print(json.dumps({"step": model.step, **scores}))

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


def print_notes(split: Split) -> None:
    """Print the notes on some data to stderr, since stdout may be for other programs to read."""
    for note in split.notes:
        print(note, file=sys.stderr)


def load_data(
    model: Model, folder: Path, data: str, root: Path, *, skip_broken: bool = False, stream: bool = False
) -> Split:
    """Load `data` or, if that is empty, what the run in `folder` was trained on; print its notes to stderr."""
    run = replace(model.run, skip_broken=model.run.skip_broken or skip_broken)
    if data:
        split = prepare_other(run, data, root, folder=folder, stream=stream)
    else:
        split = load_own_data(run, folder, root, lambda text: print(f"contrapose: {text}", file=sys.stderr))
    print_notes(split)
    return split


def _labelled(split: Split, option: str) -> tuple[Source, Source]:
    """Return the labelled training and test images."""
    if split.probe is None or split.test is None:
        raise ValueError(f"{option}: expected labelled training and test images, but the data has none")
    return split.probe, split.test


def _labelled_features(model: Model, split: Split) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training features and labels, then test features and labels."""
    features = model.labelled_features(split)
    if features is None:
        name = split.train.name.removesuffix(" (train)")
        raise ValueError(f"data: {name} has no labelled training and test images to evaluate with")
    return features


@dataclass(frozen=True)
class Presets:
    """List the presets: the papers' training settings, for `train --preset`."""

    def __call__(self) -> None:
        """Print one line per preset, with its main settings."""
        for name, settings in PRESETS.items():
            summary = " ".join(
                f"{key}={settings[key]}" for key in ("encoder", "loss", "optimiser", "lr", "batch", "epochs")
            )
            print(f"{name:32} {summary}")


def expand_preset(arguments: list[str]) -> list[str]:
    """Replace `--preset NAME` by the options of the preset."""
    for position, argument in enumerate(arguments):
        name = argument.removeprefix("--preset=") if argument.startswith("--preset=") else None
        end = position + 1
        if argument == "--preset":
            if end == len(arguments):
                raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got nothing")
            name, end = arguments[end], end + 1
        if name is not None:
            preset(name)  # raises if it is unknown
            options = [text for key, value in PRESETS[name].items() for text in _as_arguments(key, value)]
            # The last occurrence of an option counts, so those of the preset come first wherever --preset stands.
            return [arguments[0], *options, *arguments[1:position], *arguments[end:]]
    return arguments


def choose_modality(arguments: list[str]) -> list[str]:
    """Insert the settings of texts if `--data` is a file of texts, without those that the user or the preset gives."""
    given = given_options(arguments)
    settings = {**PRESETS.get(given.get("preset", ""), {}), **given}
    if "modality" in settings or not is_text(str(settings.get("data", ""))):
        return arguments
    chosen = {name: value for name, value in TEXT_SETTINGS.items() if name not in settings}
    return [
        arguments[0],
        *(text for key, value in chosen.items() for text in _as_arguments(key, value)),
        *arguments[1:],
    ]


def given_options(arguments: list[str]) -> dict[str, str]:
    """Return the options of a command line by name of the setting, with what follows each."""
    following = [*arguments[1:], ""]
    pairs = zip((argument.partition("=") for argument in arguments), following, strict=True)
    return {
        option[2:].replace("-", "_"): value if equals else next_one
        for (option, equals, value), next_one in pairs
        if option.startswith("--")
    }


def choose_framework(arguments: list[str]) -> list[str]:
    """Insert the options that suit `--loss`, without those that the user or the preset gives, and say which in one line."""
    given = given_options(arguments)
    settings = {**PRESETS.get(given.get("preset", ""), {}), **given}
    if "loss" not in given or {"-h", "--help"} & set(arguments):
        return arguments
    chosen = settings_for_loss(given["loss"], framework=str(settings.get("framework", "")), given=settings)
    if not chosen:
        return arguments
    if not _rank():
        say = ignore_closed_output(print)
        say(f"for --loss {given['loss']}: {describe_settings(chosen)}; each can be set (contrapose train --help)")
    return [
        arguments[0],
        *(text for key, value in chosen.items() for text in _as_arguments(key, value)),
        *arguments[1:],
    ]


def _as_arguments(key: str, value: Any) -> list[str]:
    option = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *(str(v) for v in (value if isinstance(value, tuple) else (value,)))]
