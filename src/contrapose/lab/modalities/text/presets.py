"""Settings of DySTreSS's Table 12, SimCSE with three losses: `contrapose train --preset simcse/wiki1m`.

Give your own files: `--data SENTENCES.txt --encoder hf:FOLDER --extra-metrics sts:PAIRS.tsv@1`. The papers start from
bert-base-uncased. Every 125 steps the weights are evaluated on STS-B's development pairs, and the best ones are kept. For n
sentences in place of wiki1m's million, set `--epoch-slices` and `--epochs` to n / 8000 to keep that interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrapose.lab.modalities.modality import Settings
from contrapose.lab.modalities.text.settings import TEXT_SETTINGS

# Lowest temperature, highest temperature and shift in each DySTreSS row.
_DYSTRESS_ROWS: tuple[tuple[float, float, float | None], ...] = (
    (0.03, 0.05, None), (0.03, 0.05, -0.2), (0.03, 0.05, -0.4), (0.03, 0.05, -0.6),
    (0.02, 0.05, -0.4), (0.05, 0.07, -0.4), (0.04, 0.05, -0.4),
)  # fmt: skip
# SimCSE's settings, which DySTreSS follows; its trainer clips gradients at 1, the default of Hugging Face. We use bf16 instead
# of fp16, because bf16 needs no loss scaling.
_SIMCSE: dict[str, Any] = {
    **TEXT_SETTINGS, "head": "simcse", "warmup": 0.0, "data": "wiki1m_for_simcse.txt", "encoder": "hf:bert-base-uncased",
    "views": "dropout", "size": 32,
    "optimiser": "adamw", "adam_beta2": 0.999, "lr": 3e-5, "weight_decay": 0.0, "grad_clip": 1.0, "batch": 64, "epochs": 125,
    "epoch_slices": 125, "knn_every": 125, "precision": "bf16", "extra_metrics": ("sts:sts.tsv@1",), "keep_best": "stsb_dev",
}  # fmt: skip


def _dystress_name(low: float, high: float, shift: float | None) -> str:
    """Return the name of a DySTreSS row's preset.

    >>> _dystress_name(0.03, 0.05, -0.4)
    'dystress/wiki1m-0.03-0.05-s-0.4'
    """
    return f"dystress/wiki1m-{low:g}-{high:g}" + ("" if shift is None else f"-s{shift:g}")


def _dystress_loss(low: float, high: float, shift: float | None) -> str:
    shifted = "" if shift is None else f", shift={shift:g}"
    return f"dystress(temperature=cosine({low:g}, {high:g}{shifted}))"


PRESETS: Mapping[str, Settings] = {
    "simcse/wiki1m": _SIMCSE | {"loss": "simclr(temperature=0.05)"},
    "macl/wiki1m": _SIMCSE | {"loss": "macl(temperature=0.05, alpha=2.0, center=0.8)"},
    **{_dystress_name(*row): _SIMCSE | {"loss": _dystress_loss(*row)} for row in _DYSTRESS_ROWS},
}
