"""Baselines of a run's scores: features without a network, the encoder before training, and chance."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contrapose.lab.evaluation import features
from contrapose.lab.evaluation.feature_scores import Features, chance_level, no_gain, score_features, scored_sources
from contrapose.lab.modalities import Source, Split
from contrapose.lab.modalities.file_stamps import stamp_files
from contrapose.lab.training.initial_model import initial_name, start
from contrapose.lab.training.model import Model
from contrapose.lab.training.records.files import read_json, write_json_atomically
from contrapose.validate import check_known

BASELINE_CHOICES = ("auto", "all", "none")
_FILE = "baselines.json"  # in a run's directory
_MOST_SAMPLES = 100_000  # samples up to which "auto" measures features; each baseline takes the time of one evaluation
# Scores in per cent, keyed by the name of the baseline and the name of the score.
Baselines = dict[str, dict[str, float]]


def score_baselines(
    model: Model,
    split: Split,
    scores: Iterable[str],
    *,
    choice: str = "auto",
    neighbours: int = 0,
    save: bool = False,
    log: Callable[[str], None],
) -> Baselines:
    """Return the scores that need no training: of kNN and recall, and the chance levels of all accuracies.

    A linear probe of raw pixels is not among them: the papers' learning rates do not suit pixels, and would make it look weak.

    scores       names of the run's scores, for their chance levels
    choice       one of `BASELINE_CHOICES`
    neighbours   number of neighbours for kNN; 0: the run's setting
    save         whether to save the scores in the run's directory, from which later calls read them
    log          called with a message if a baseline is not measured
    """
    check_known("baselines", choice, BASELINE_CHOICES)
    if choice == "none":
        return {}
    if model.kind.joint_evaluation is not None:
        chance = model.kind.joint_evaluation.chance(split)
        return {"chance": chance} if chance else {}
    sources = scored_sources(split)
    if sources is None:
        return {}
    chance = {name: level for name in scores if (level := chance_level(split, name)) is not None}
    samples = sum(map(len, sources))
    if choice == "auto" and samples > _MOST_SAMPLES:
        log(
            f"baselines: only chance is shown, since there are {samples:,} {model.kind.noun} to encode; --baselines all "
            "measures the others too"
        )
        return {"chance": chance}
    neighbours = neighbours or model.run.knn
    key = {"data": [_stamp(source) for source in sources], "knn": neighbours}
    baselines = _read(model.folder, key)
    if baselines is None:
        baselines = {
            name: score_features(found, split, neighbours)
            for name, found in _baseline_features(model, split, sources, log)
        }
        if save and model.folder is not None:
            content = {**key, "baselines": baselines}
            write_json_atomically(model.folder / _FILE, {**content, "checksum": _checksum(content)})
    return {**baselines, "chance": chance}


def _baseline_features(
    model: Model, split: Split, sources: tuple[Source, Source], log: Callable[[str], None]
) -> Iterator[tuple[str, Features]]:
    """Yield the name and the features of each baseline, one after the other, so that only one is in memory."""
    kind = model.kind
    for name in filter(None, (kind.baseline, initial_name(model))):
        try:
            if name == kind.baseline:
                found = kind.baseline_features(sources, model.reader)
            else:
                # The run's own reader, because a second one would hold a second copy of the data on the device.
                encode = start(model, split).tower.encode
                found = [features(encode, model.reader(source).plain()) for source in sources]
        # Such as pretrained weights that no longer exist: the run's own scores still count.
        except (ValueError, FileNotFoundError) as error:
            log(f"baselines: {name} is not measured: {error}")
            continue
        yield name, dict(zip(sources, found, strict=True)).__getitem__


def _stamp(source: Source) -> str:
    """Return a checksum of a source's files and labels: the same names may have other contents."""
    labels = b"" if source.labels is None else source.labels.cpu().numpy().tobytes()
    return stamp_files(source.paths, source.fingerprint, f"{zlib.crc32(labels):08x}")


def _checksum(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _read(folder: Path | None, key: Mapping[str, Any]) -> Baselines | None:
    """Return the baselines in a run's directory; None if there are none for this data and these scores."""
    if folder is None or not (folder / _FILE).exists():
        return None
    try:
        content = read_json(folder / _FILE)
    except (OSError, ValueError):  # damaged; it is measured and written again
        return None
    same = isinstance(content, dict) and all(content.get(name) == value for name, value in key.items())
    if not same or content.pop("checksum", None) != _checksum(content):
        return None
    baselines: Baselines = content["baselines"]
    return baselines


def flatten(baselines: Baselines) -> dict[str, float]:
    """Return the scores of all baselines, as NAME_SCORE.

    >>> flatten({"tf-idf": {"stsb": 69.3}, "untrained encoder": {"stsb": 50.2}})
    {'tfidf_stsb': 69.3, 'untrained_encoder_stsb': 50.2}
    """
    return {
        f"{baseline.replace(' ', '_').replace('-', '')}_{name}": score
        for baseline, scores in baselines.items()
        for name, score in scores.items()
    }


def describe_no_gain(model: Model, split: Split, scores: Mapping[str, float], baselines: Baselines) -> str:
    """Return a sentence if training has gained nothing beyond the uncertainty of the test set; else an empty text."""
    pairs = split.retrieval
    if pairs is not None:
        return no_gain(scores, baselines, count=len(pairs.queries), noun="pair")
    noun = model.kind.noun.partition(" ")[0].removesuffix("s")  # of images with captions: image
    return no_gain(scores, baselines, count=len(split.held_out), noun=f"test {noun}")
