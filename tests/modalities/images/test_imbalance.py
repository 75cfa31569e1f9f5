from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contrapose.modalities.images import imbalance
from contrapose.modalities.images.images import Images


def labelled(counts: list[int]) -> Images:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return Images(
        "synthetic", torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8), labels, tuple("abcdefghij"[: len(counts)])
    )


def test_the_papers_counts() -> None:
    assert imbalance.exponential(10, 5000)[:3] == [5000, 2997, 1796]
    assert imbalance.exponential(10, 5000)[-2:] == [83, 50]
    assert sum(imbalance.exponential(10, 5000)) == 12406
    assert sum(imbalance.exponential(100, 500)) == 10847
    assert sum(imbalance.exponential(10, 4500)) == 11165
    assert sum(imbalance.exponential(100, 450)) == 9754
    assert imbalance.cacr_exponential(10, 5000) == [0, 1, 4, 12, 33, 91, 248, 676, 1839, 5000]
    assert sum(imbalance.cacr_linear(100, 500)) == 27500
    assert sum(imbalance.cacr_exponential(100, 500)) == 7870
    assert sum(imbalance.pareto()) == 115846


def test_thinning_keeps_the_counts_and_the_order() -> None:
    images = labelled([30, 30, 30])
    thinned = imbalance.thin(images, [30, 10, 0], seed=3)
    assert thinned.counts() == [30, 10, 0]
    assert thinned.labels is not None
    assert torch.equal(thinned.labels, thinned.labels.sort().values)
    with pytest.raises(ValueError, match="expected at most the 30 images of class 1, got 31"):
        imbalance.thin(images, [30, 31, 0])


def test_rules_by_name() -> None:
    images = labelled([50] * 10)
    assert imbalance.by_rule(images, "exponential:10").counts()[-1] == 5
    assert imbalance.by_rule(images, "cacr-linear").counts() == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    for invalid in ("exponential:x", "linear"):
        with pytest.raises(ValueError, match="imbalance: expected exponential:FACTOR"):
            imbalance.by_rule(images, invalid)


def test_a_published_list(tmp_path: Path) -> None:
    images = labelled([5, 5])
    np.save(tmp_path / "list.npy", np.array([9, 0, 3]))
    thinned = imbalance.by_rule(images, f"index:{tmp_path / 'list.npy'}")
    assert thinned.labels is not None
    assert thinned.labels.tolist() == [1, 0, 0]
    (tmp_path / "list.txt").write_text("1\n2\n")
    assert len(imbalance.by_rule(images, f"index:{tmp_path / 'list.txt'}")) == 2
    (tmp_path / "far.txt").write_text("1\n10\n")
    with pytest.raises(ValueError, match=r"expected indices from 0 to 9 in .*far.txt, got values from 1 to 10"):
        imbalance.by_rule(images, f"index:{tmp_path / 'far.txt'}")
    with pytest.raises(ValueError, match=r"expected a file of indices after 'index:', but nothing\.npy is not a file"):
        imbalance.by_rule(images, "index:nothing.npy")
