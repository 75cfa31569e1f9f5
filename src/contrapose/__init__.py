"""Contrastive representation learning in which the loss is the subject.

>>> import torch
>>> from contrapose import cosine, nt_xent, two_views
>>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
>>> loss = nt_xent(two_views(z1, z2), temperature=cosine(0.07, 0.2))

Losses, pairs, temperatures and negatives need torch alone. `load` and `explain` need more, and are imported when they are used.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from contrapose.extras import nearest

__version__ = "0.1.0"

if TYPE_CHECKING:  # what an editor and a type checker see; at run time a name is imported when it is first used
    from contrapose.distributed import gather
    from contrapose.embeddings import Assignments, Embeddings
    from contrapose.gradient_cache import large_batch
    from contrapose.losses import (
        CATALOGUE,
        Loss,
        align_uniform,
        arb,
        balanced,
        barlow_twins,
        byol,
        cacr,
        cacr_moco_v3,
        clip,
        cmc,
        dcl,
        dclw,
        dino,
        fnc,
        generalized_nt_xent,
        hard_negative,
        isogclr,
        macl,
        moco_v3,
        nt_xent,
        siglip,
        simple,
        simsiam,
        sogclr,
        supcon,
        swav,
        tau,
        triplet,
        vicreg,
        w_mse,
        zero_cl,
    )
    from contrapose.metrics import penalties
    from contrapose.pairs import (
        Pairs,
        bank,
        batch_rows,
        cross,
        from_similarities,
        guided,
        hardest,
        other_views,
        queue,
        same_view,
        stored_rows,
        two_views,
        unit,
        views,
    )
    from contrapose.report.loss import explain
    from contrapose.temperature import (
        CosineDecay,
        CosineSchedule,
        LinearWarmup,
        PerSample,
        Profile,
        cosine,
        exponential,
        learned,
        learned_number,
        linear,
        monotonic_cosine,
    )
    from contrapose.training.exported import load

_MODULES = {
    "distributed": ("gather",),
    "embeddings": ("Assignments", "Embeddings"),
    "gradient_cache": ("large_batch",),
    "losses": (
        "CATALOGUE", "Loss", "align_uniform", "arb", "balanced", "barlow_twins", "byol", "cacr", "cacr_moco_v3", "clip", "cmc",
        "dcl", "dclw", "dino", "fnc", "generalized_nt_xent", "hard_negative", "isogclr", "macl", "moco_v3", "nt_xent",
        "siglip", "simple", "simsiam", "sogclr", "supcon", "swav", "tau", "triplet", "vicreg", "w_mse", "zero_cl",
    ),
    "metrics": ("penalties",),
    "report.loss": ("explain",),
    "pairs": (
        "Pairs", "bank", "batch_rows", "cross", "from_similarities", "guided", "hardest", "other_views", "queue", "same_view",
        "stored_rows", "two_views", "unit", "views",
    ),
    "temperature": (
        "CosineDecay", "CosineSchedule", "LinearWarmup", "PerSample", "Profile", "cosine", "exponential", "learned",
        "learned_number", "linear", "monotonic_cosine",
    ),
    "training.exported": ("load",),
}  # fmt: skip
_HOMES = {name: f"contrapose.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "CATALOGUE",
    "Assignments",
    "CosineDecay",
    "CosineSchedule",
    "Embeddings",
    "LinearWarmup",
    "Loss",
    "Pairs",
    "PerSample",
    "Profile",
    "align_uniform",
    "arb",
    "balanced",
    "bank",
    "barlow_twins",
    "batch_rows",
    "byol",
    "cacr",
    "cacr_moco_v3",
    "clip",
    "cmc",
    "cosine",
    "cross",
    "dcl",
    "dclw",
    "dino",
    "explain",
    "exponential",
    "fnc",
    "from_similarities",
    "gather",
    "generalized_nt_xent",
    "guided",
    "hard_negative",
    "hardest",
    "isogclr",
    "large_batch",
    "learned",
    "learned_number",
    "linear",
    "load",
    "macl",
    "moco_v3",
    "monotonic_cosine",
    "nt_xent",
    "other_views",
    "penalties",
    "queue",
    "same_view",
    "siglip",
    "simple",
    "simsiam",
    "sogclr",
    "stored_rows",
    "supcon",
    "swav",
    "tau",
    "triplet",
    "two_views",
    "unit",
    "vicreg",
    "views",
    "w_mse",
    "zero_cl",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'contrapose' has no attribute {name!r}{nearest(name, _HOMES)}")
    if "torch" not in sys.modules:
        with warnings.catch_warnings():
            # torch warns at its first import where NumPy is missing, but no loss needs NumPy.
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            import_module("torch")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
