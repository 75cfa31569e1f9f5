"""Linear probes on augmented samples: in each epoch the frozen encoder sees new random views of the training set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from contrapose.lab.evaluation.features import check_part
from contrapose.lab.evaluation.linear import Probe
from contrapose.lab.modalities import Reader, ViewMaker
from contrapose.randomness import permutation
from contrapose.validate import NotFinite, check_index


def probe_augmented(
    probe: Probe,
    encode: Callable[[Tensor], Tensor],
    reader: Reader,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    views: ViewMaker,
    seed: int = 0,
) -> dict[str, float]:
    """Train a linear probe on views that are new in each epoch; return accuracies in per cent, as the probe itself does.

    probe          settings of the probe
    encode         frozen encoder in evaluation mode: inputs (B, …) -> features (B, width)
    reader         the training samples on the device; if samples are streamed, a reader that makes `views`
    train_labels   class numbers of the training samples, (n,)
    test           features (t, width) of test samples without augmentation
    test_labels    class numbers of the test samples, (t,)
    views          the augmentation: one view, a function of (seed, epoch, index)
    seed           determines views, order and initial weights
    """
    check_part("test", test, test_labels)
    check_index("train_labels", train_labels, len(train_labels))
    rows = _AugmentedRows(probe, encode, reader, train_labels, width=test.shape[1], views=views, seed=seed)
    scores = probe.fit(
        rows.features,
        rows.labels,
        rows.fill,
        classes=int(train_labels.max()) + 1,
        test=test,
        test_labels=test_labels,
        seed=seed,
    )
    if not bool(rows.finite):
        raise NotFinite(f"train: features of some images with augmentation ({probe.augment}) are not finite")
    return scores


class _AugmentedRows:
    """Features and labels of the next batches, in tensors with fixed addresses, from which the probe's CUDA graph reads.

    The encoder's batch is as large as is efficient on the device; its features last for several steps of the probe.
    """

    def __init__(
        self,
        probe: Probe,
        encode: Callable[[Tensor], Tensor],
        reader: Reader,
        labels: Tensor,
        *,
        width: int,
        views: ViewMaker,
        seed: int,
    ) -> None:
        self.encode, self.reader, self.views, self.seed = torch.no_grad()(encode), reader, views, seed
        self.all_labels, device = labels, labels.device
        self.encoder_batch = views.evaluation_batch(device)
        # A multiple of the probe's batch size, so that only the last step in an epoch may have fewer samples.
        count = probe.batch * max(1, self.encoder_batch // probe.batch)
        self.features, self.labels = torch.zeros(count, width, device=device), labels.new_zeros(count)
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def fill(self, epoch: int) -> Iterator[Tensor]:
        """Encode the samples of an epoch; yield row indices each time all rows have been replaced."""
        filled, rows = 0, torch.arange(len(self.features), device=self.features.device)
        for index, inputs in self._inputs(epoch):
            features = self.encode(inputs).float()
            self.features[filled : filled + len(index)] = features
            self.labels[filled : filled + len(index)] = self.all_labels[index]
            # Checked at the end: reading the result here would synchronise with the device.
            self.finite &= features.isfinite().all()
            filled += len(index)
            if filled == len(rows):
                yield rows
                filled = 0
        if filled:
            yield rows[:filled]

    def _inputs(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield indices of samples, in random order, and their augmented inputs."""
        device, resident = self.all_labels.device, self.reader.resident
        # For samples on the device, indices are drawn there: copying indices from the host would wait for the stream.
        order = permutation(len(self.all_labels), self.seed, epoch, device=device if resident is not None else None)
        parts = [part for rows in order.split(len(self.features)) for part in rows.split(self.encoder_batch)]
        if resident is not None:
            for index in parts:
                yield index, self.views.draw(resident[index], index, seed=self.seed, epoch=epoch)
            return
        batches = [part.tolist() for part in parts]
        for index, drawn in zip(parts, self.reader.train(batches, seed=self.seed, epoch=epoch), strict=True):
            yield index.to(device), drawn[0][0]
