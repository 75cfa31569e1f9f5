"""Features of data on disk, kept in a run's directory: an evaluation that was killed, or the next one, does not repeat them.

RUN/features/KEY has one .safetensors file for each 20,000 samples or so. The key is a checksum of everything that determines the
features: the files' paths, sizes and times, the weights, the inputs, the device and the precision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from contrapose.lab.cached_files import CachedFile, entry
from contrapose.lab.evaluation.features import features
from contrapose.lab.modalities import Source
from contrapose.lab.modalities.file_stamps import stamp_files
from contrapose.lab.modalities.progress import progress_bar, without_progress_bars
from contrapose.lab.training.embedder import Embedder

_CHUNK = 20_000  # least number of samples in a file: an evaluation that is killed loses at most so many
_FORMAT = "contrapose features 1"


class FeatureCache:
    """Keeps the features that an embedder computes of data on disk.

    embedder   encoder whose weights do not change
    folder     directory of the kept features, such as RUN/features
    log        receives a line about each data set whose features are kept
    """

    def __init__(self, embedder: Embedder, folder: Path, log: Callable[[str], None]) -> None:
        self.embedder, self.folder, self.log = embedder, folder, log
        self._logged: set[str] = set()
        self._can_write = True

    def __call__(self, source: Source) -> Tensor | None:
        """Return the encoder's features of a data set (N, width): those that were kept are read, others computed and kept.

        Return None for data in memory, whose features are not kept.
        """
        embedder = self.embedder
        if not source.paths or embedder.reader(source).resident is not None:
            return None
        batch = embedder.views.evaluation_batch(embedder.device)
        # A multiple of the batch, so that batches, and so features, are those without a cache.
        size = -(-_CHUNK // batch) * batch
        key, noun = feature_key(embedder, source, _FORMAT, str(size)), embedder.kind.sample_noun(source)
        chunks, reused = list[Tensor](), 0
        with progress_bar(f"features of {noun}", len(source)) as advance:
            for number, first in enumerate(range(0, len(source), size)):
                count = min(size, len(source) - first)
                path = self.folder / key / f"{number:05d}.safetensors"
                file = CachedFile(path, f"{key} {number}", self.log)
                kept = file.read()
                if kept is None:
                    part = source.subset(torch.arange(first, first + count))
                    with without_progress_bars():
                        chunk = features(embedder.encode, _counted(embedder, part, advance))
                    if self._can_write:
                        self._write(file, chunk)
                else:
                    chunk = kept["features"]
                    reused += count
                    _repeat(advance, count)
                chunks.append(chunk.to(embedder.device))
        if key not in self._logged:
            self._logged.add(key)
            self.log(self._describe(f"features of {len(source):,} {noun} of {source.name}", reused, len(source), key))
        return torch.cat(chunks)

    def _describe(self, what: str, reused: int, count: int, key: str) -> str:
        """Return a line on how many features were read and where they are."""
        folder = self.folder / key
        if reused == count:
            return f"{what}: read from {folder}"
        files = [path.stat().st_size for path in folder.glob("*.safetensors")] if folder.is_dir() else []
        kept = f"kept in {folder}, {sum(files) / 1e6:,.1f} MB" if files else "not kept"
        return f"{what}: {reused:,} read and {count - reused:,} computed; {kept}"

    def _write(self, file: CachedFile, chunk: Tensor) -> None:
        try:
            file.write(entry("features", chunk))
        except OSError as error:  # a run on a full or read-only disk can still be evaluated
            self._can_write = False
            self.log(f"the next evaluation computes the remaining features again: {file.path}: {error.strerror}")


def _counted(embedder: Embedder, source: Source, advance: Callable[[], None]) -> Iterator[Tensor]:
    """Yield the evaluation inputs of a data set in batches, and count their samples."""
    # Not a reader that `embedder.reader` would keep for the whole command.
    settings = embedder.reader
    reader = source.reader(embedder.views, embedder.device, workers=settings.workers, timeout=settings.timeout)
    for batch in reader.plain():
        yield batch
        _repeat(advance, len(batch))


def _repeat(advance: Callable[[], None], count: int) -> None:
    for _ in range(count):
        advance()


def feature_key(embedder: Embedder, source: Source, *others: str) -> str:
    """Return a checksum of everything that determines the features of data on disk, and of other texts."""
    precision = embedder.precision if embedder.device.type == "cuda" else "fp32"
    inputs = json.dumps(embedder.kind.describe_input(embedder.views), sort_keys=True)
    settings = (
        f"{inputs} {embedder.device.type} {precision} {embedder.projects}{f' {embedder.dims}' if embedder.dims else ''}"
    )
    return stamp_files(source.paths, *others, settings, _hash_weights(embedder))


def _hash_weights(module: nn.Module) -> str:
    """Return a hash of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\0".encode())
        digest.update(values.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
