"""`Model`: a run's networks and the preprocessing of their inputs, without the training data.

>>> import contrapose
>>> model = contrapose.load("runs/mine")  # doctest: +SKIP
>>> features = model.embed(images)  # doctest: +SKIP
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.devices import own_device
from contrapose.lab.evaluation import PROBES, Measures, Probe, features, probe_augmented
from contrapose.lab.evaluation.feature_scores import Labelled, labelled_features, score_features
from contrapose.lab.frameworks import Framework
from contrapose.lab.memory_budget import model_budget
from contrapose.lab.modalities import Source, Split
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.tower import encoder_of, projector_of, towers_of
from contrapose.lab.training.build import build_towers
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.kept import read_kept
from contrapose.lab.training.checks.dims import check_prefix
from contrapose.lab.training.embedder import Embedder, Readers
from contrapose.lab.training.records.extra_metrics import PROBE_SCORES, RecordedMeasure
from contrapose.lab.training.run import Run
from contrapose.lab.training.weights import difference
from contrapose.metrics import conditional_entropy
from contrapose.pairs import unit
from contrapose.randomness import permutation
from contrapose.validate import check_known


class Model(nn.Module):
    """The one or two towers of a run, and everything needed to evaluate them on any data of the run's modality.

    run         description of the run
    encoder     network: samples -> features (B, width); for two towers, a ModuleDict keyed by the kind of input
    projector   network: features -> the embedding (B, d) that the loss sees; for two towers, a ModuleDict
    device      device on which the networks run
    step        number of training steps that the weights have had
    bank        stored embeddings (N, d) of the training samples; only while training with a memory bank
    folder      directory of the run, if there is one
    dims        one of `run.dims`: `embed` and `features` return this prefix of the embedding, as unit vectors; 0: all

    `towers` has one `Embedder` per kind of input. With one tower, use the model itself: `model.embed(samples)`. With two towers,
    both embed into one space, and each is also an attribute: `model.images.embed(paths)`, `model.text.embed(texts)`.
    """

    def __init__(
        self,
        run: Run,
        encoder: nn.Module,
        projector: nn.Module,
        device: torch.device,
        *,
        step: int = 0,
        bank: Tensor | None = None,
        folder: Path | None = None,
        dims: int = 0,
    ) -> None:
        super().__init__()
        self.run, self.device, self.step, self.bank, self.folder, self.dims = run, device, step, bank, folder, dims
        self.kind, self.views = run.kind, run.view_maker(folder)
        towers = towers_of(encoder, projector, name=run.modality)
        self.towers: dict[str, Embedder] = {}
        for name, tower in towers.items():
            kind, views = self.kind.tower(name, self.views)
            self.towers[name] = Embedder(
                tower.encoder,
                views,
                kind,
                device,
                precision=run.precision,
                projector=tower.projector,
                projects=len(towers) > 1,
                dims=dims,
            )
            self.add_module(name, self.towers[name])
        # Training and evaluation of a single tower share one copy of the data on the device.
        self.reader = self.tower.reader if len(towers) == 1 else Readers(self.views, device)

    @property
    def tower(self) -> Embedder:
        """The only tower; raises ValueError if there are two."""
        if len(self.towers) > 1:
            sides = " and ".join(f"model.{name}" for name in self.towers)
            raise ValueError(
                f"run: {self.folder or self.run.data} was trained on {self.kind.noun} and has two encoders, but this is for runs "
                f"with one; in Python, use {sides}"
            )
        return next(iter(self.towers.values()))

    @property
    def encoder(self) -> Encoder:
        """The encoder of the only tower."""
        return self.tower.encoder

    @property
    def projector(self) -> nn.Module:
        """The projector of the only tower."""
        return self.tower.projector

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the encoder's features (B, width) for `inputs` from `views.plain`."""
        output: Tensor = self.tower(inputs)
        return output

    def embed(self, samples: Tensor | Sequence[Any]) -> Tensor:
        """Return the encoder's features of samples, (B, width) in float32.

        samples   a tensor, such as uint8 images (B, 3, H, W) of any size; or a list of paths, PIL images or texts
        """
        return self.tower.embed(samples)

    def features(self, source: Source) -> Tensor:
        """Return the encoder's features of a whole data set, (N, width), without augmentation.

        source   a data set, such as `prepare(run).test`
        """
        return self.tower.features(source)

    def arrays(self, source: Source) -> dict[str, Tensor | Sequence[str]]:
        """Return the features of a data set and, if its samples have texts, the texts, keyed by name.

        source   a data set, such as `prepare(run).test`
        """
        if self.kind.joint_evaluation is not None:
            return self.kind.joint_evaluation.arrays(self.towers, source)
        texts = self.kind.texts(source)
        return {"features": self.features(source)} | ({"texts": texts} if texts else {})

    @property
    def evaluation_context(self) -> Callable[[], AbstractContextManager[None]]:
        """A function that makes the context in which the networks run during evaluation."""
        return next(iter(self.towers.values())).evaluation_context

    def evaluate_in(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Run the networks inside a context during evaluation.

        context   function that makes the context, such as one that changes settings of the device
        """
        for tower in self.towers.values():
            tower.evaluation_context = context

    def use_workers(self, workers: int, *, timeout: float) -> None:
        """Decode data on disk in worker processes.

        workers   number of processes
        timeout   seconds to wait for a batch from them
        """
        for reader in (self.reader, *(tower.reader for tower in self.towers.values())):
            reader.workers, reader.timeout = workers, timeout

    def at_epoch(self, epoch: int) -> Model:
        """Return the model with the weights that the run kept after an epoch.

        epoch   one of `run.keep`
        """
        if self.folder is None:
            raise ValueError("epoch: kept weights are in the directory of a run, but this model has no directory")
        return load(self.folder, epoch=epoch, dims=self.dims, device=self.device)

    def project(self, inputs: Tensor) -> Tensor:
        """Return the embedding that the loss sees, (B, d) in float32, for `inputs` from `views.plain`."""
        output = self.tower.project(inputs).float()
        # TaU's last output is a certainty and not a coordinate.
        return output[..., :-1] if self.run.needs_score else output

    def labelled_features(self, split: Split) -> Labelled | None:
        """Return training features and labels, then test features and labels; None if there are no labels.

        split   data sets with labels, such as `prepare(run)`
        """
        return labelled_features(self.features, split)

    def evaluate(self, split: Split, neighbours: int | None = None) -> dict[str, float]:
        """Return the kNN accuracy of the encoder's features, or the recall on pairs, in per cent; empty without labels or pairs.

        Models with two towers have other scores, such as recall in both directions.

        split        data sets with labels, such as `prepare(run)`
        neighbours   number of neighbours; default: the run's setting
        """
        if self.kind.joint_evaluation is not None:
            return self.kind.joint_evaluation.scores(self.towers, split)
        return score_features(self.features, split, neighbours or self.run.knn)

    def linear_probe(self, split: Split, probe: Probe, *, seed: int = 0) -> dict[str, float]:
        """Train a linear probe on the encoder and return its accuracies in per cent; empty without labels.

        split   data sets with labels, such as `prepare(run)`: trained on `split.probe`, tested on `split.test`
        probe   settings, such as PROBES["cacr-crops"]; with `augment`, the encoder sees new views in each epoch
        seed    determines order, views and initial weights
        """
        if not probe.augment:
            labelled = self.labelled_features(split)
            return {} if labelled is None else probe(*labelled, seed=seed)
        source, test = split.probe, split.test
        if source is None or test is None or source.labels is None or test.labels is None:
            return {}
        self.eval()
        views = self.views.light(probe.augment, smallest=probe.smallest_crop)
        reader = self.reader(source)
        if reader.resident is None:  # a streaming reader makes its own views; resident samples are shared
            reader = source.reader(views, self.device, workers=self.reader.workers, timeout=self.reader.timeout)
        labels = source.labels.to(self.device), test.labels.to(self.device)
        return probe_augmented(
            probe, self.tower.encode, reader, labels[0], self.features(test), labels[1], views=views, seed=seed
        )

    def probe_scores(self, split: Split, name: str, *, epochs: int = 0) -> dict[str, float | None]:
        """Return a linear probe's accuracies, keyed by their names in the records; top-5 is None with at most five classes.

        split    data sets with labels, such as `prepare(run)`
        name     a name in `PROBES`
        epochs   number of epochs, which is then appended to the names; 0: the probe's own number
        """
        probe = replace(PROBES[name], best=True)
        scores = self.linear_probe(split, probe.shortened(epochs) if epochs else probe, seed=self.run.seed)
        if not scores:
            raise ValueError(f"{self.run.data} has no labelled training and test samples to score with")
        suffix = f":{epochs}" if epochs else ""
        return {f"{kind}:{name}{suffix}": scores.get(score) for score, kind in PROBE_SCORES.items()}

    def take(self, measure: RecordedMeasure, split: Split) -> dict[str, float]:
        """Compute one of `Run.extra_metrics` for the current weights; return its values, keyed by their names in the records.

        measure   one of `recorded_measures(run.extra_metrics, run.kind.recorded)`
        split     data sets, such as `prepare(run)`
        """
        if measure.own:
            return self.kind.recorded[measure.own](self.tower, measure.argument)
        if not measure.probe:
            return self._entropy(split.held_out, measure.t_neg, measure.batch or self.run.batch)
        scores = self.probe_scores(split, measure.probe, epochs=measure.probe_epochs)
        return {name: score for name, score in scores.items() if score is not None}

    def _entropy(self, source: Source, t_neg: float, batch: int) -> dict[str, float]:
        self.eval()
        z = unit(features(self.project, self.reader(source).plain()))
        # In random order, because a folder is sorted by class, and samples of one class are more similar than those in a batch.
        order = permutation(len(z), self.run.seed, device=z.device)
        entropy = conditional_entropy(z[order], t_neg=t_neg, batch=batch)
        return {"entropy": entropy, "entropy_deficit": math.log(batch - 1) - entropy}

    def measure(self, source: Source, how: Measures, *, space: str = "projector") -> dict[str, float]:
        """Return metrics of the projector's or encoder's output on a data set.

        source   a data set, such as `prepare(run).held_out`
        how      which metrics, on how many samples
        space    "projector": what the loss sees; "encoder": the features that classifiers get
        """
        check_known("space", space, ("encoder", "projector"))
        self.eval()
        return how(self.project if space == "projector" else self.tower.encode, source, self.views, self.device)

    def measure_outputs(self, source: Source, how: Measures) -> dict[str, float]:
        """Return metrics of the projector's output and, as `encoder_NAME`, of the encoder's (those that need no augmentation).

        source   a data set, such as `prepare(run).held_out`
        how      which metrics, on how many samples
        """
        if self.kind.joint_evaluation is not None:
            return self.kind.joint_evaluation.metrics(self.towers, how.subset(source))
        encoder_values = self.measure(source, replace(how, augmented=False), space="encoder")
        return self.measure(source, how) | {f"encoder_{name}": value for name, value in encoder_values.items()}

    def sample_embeddings(self, source: Source, count: int) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
        """Return unit embeddings, labels and class names of a random sample from a data set; the sample is always the same.

        With two towers, each sample has one embedding per tower, and the labels name the towers.

        source   a data set
        count    number of samples
        """
        self.eval()
        if self.kind.joint_evaluation is not None:
            subset = Measures(count).subset(source)
            z, nouns = self.kind.joint_evaluation.map(self.towers, subset)
            return unit(z.float()), torch.arange(len(nouns)).repeat_interleave(len(subset)), nouns
        sample = Measures(count).sample(source, self.views)
        reader = sample.reader(self.views, self.device, workers=0, timeout=self.reader.timeout)
        z = features(self.project, reader.plain())
        return unit(z), sample.labels, sample.classes


def _unfit_setting(run: Run, part: str, expected: dict[str, Tensor], weights: dict[str, Tensor]) -> str:
    """Return which setting, with its value, does not fit the weights of the encoder or the projector."""
    if part == "encoder":
        return f"encoder is {run.encoder!r}"
    outputs = [tensor.shape[:1] for tensor in expected.values() if tensor.ndim == 2][-1]
    resized = [name for name, tensor in expected.items() if name in weights and weights[name].shape != tensor.shape]
    # The width only affects the number of outputs of the last layer.
    if expected.keys() == weights.keys() and all(
        expected[name].shape[:1] == outputs and expected[name].shape[1:] == weights[name].shape[1:] for name in resized
    ):
        return f"width is {run.width}"
    return f"head is {run.head!r}"


def model_of(run: Run, network: Framework, device: torch.device, *, step: int = 0, folder: Path | None = None) -> Model:
    """Return a `Model` that shares a framework's networks."""
    return Model(run, network.encoder, network.projector, device, step=step, bank=network.bank, folder=folder)


def load(
    folder: str | Path, *, epoch: int | None = None, dims: int = 0, device: torch.device | str | None = None
) -> Model:
    """Load the networks of a run with one encoder from its newest readable checkpoint; the training data is not needed.

    folder   directory of the run
    epoch    an epoch whose weights were kept (`Run.keep`); default: the newest weights
    dims     one of the prefixes that the run trained (`Run.dims`); 0: the encoder's whole features
    device   device on which the networks run; default: a GPU if there is one, else the CPU
    """
    loaded = load_any(folder, epoch=epoch, dims=dims, device=device)
    _ = loaded.tower  # raises ValueError if there are two towers
    return loaded


def load_any(
    folder: str | Path, *, epoch: int | None = None, dims: int = 0, device: torch.device | str | None = None
) -> Model:
    """Load the trained networks of a run with one or two encoders. The arguments are those of `load`."""
    folder = Path(folder)
    path = folder / "run.json"
    if not path.exists():
        exported = (folder / "modules.json").is_file()
        hint = f'; it is an exported text encoder: SentenceTransformer("{folder}") loads it' if exported else ""
        raise ValueError(f"run: {folder} is not the directory of a run (it has no run.json){hint}")
    run = Run.load(path)
    check_prefix(run, folder, dims)
    if epoch is not None:
        saved: checkpoint.Checkpoint | None = read_kept(folder, epoch)
    else:
        saved = checkpoint.latest(folder / "checkpoints", lambda text: print(text, file=sys.stderr))
    if saved is None:
        raise ValueError(
            f"run: {folder} has no checkpoint that can be read; `contrapose train` with its settings trains it"
        )
    # The initial weights drawn here are replaced immediately, and must not affect the caller's random state.
    size = sum(tensor.nbytes for tensor in saved.tensors.values())
    try:
        with torch.random.fork_rng(devices=[]), model_budget(f"run: the network that {path} describes", size=size):
            # Without `init`, because the file of initial weights may no longer exist.
            towers = build_towers(replace(run, init=""), folder)
    except (RuntimeError, MemoryError) as error:  # a layer beyond the memory fails before its size is counted
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"run: the network that {path} describes cannot be built: {reason}") from error
    # The rest of a checkpoint (queue, bank, momentum encoder, optimiser) is only needed for training.
    encoder, projector = encoder_of(towers), projector_of(towers)
    for name, module in (("encoder", encoder), ("projector", projector)):
        prefix = f"state.network.{name}."
        weights = {key.removeprefix(prefix): tensor for key, tensor in saved.tensors.items() if key.startswith(prefix)}
        obstacle = difference(module.state_dict(), weights)
        if obstacle:
            setting = _unfit_setting(run, name, module.state_dict(), weights)
            raise ValueError(f"run: {path} does not fit the weights of step {saved.step}: {setting}: {obstacle}")
        module.load_state_dict(weights)
    target = torch.device(device) if device is not None else own_device()
    model = Model(run, encoder, projector, target, step=saved.step, folder=folder, dims=dims)
    run.kind.prepare(model.to(target))
    return model.eval()
