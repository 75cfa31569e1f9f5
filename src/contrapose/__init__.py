"""Contrastive representation learning in which the loss is the subject.

>>> import torch
>>> from contrapose import cosine, nt_xent, two_views
>>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
>>> loss = nt_xent(two_views(z1, z2), temperature=cosine(0.07, 0.2))

Losses, pairs, temperatures and negatives need only torch. `load` and `explain` need further packages, which are imported on
first use.
"""

from __future__ import annotations

import warnings

from contrapose.lazy import lazy_names
from contrapose.moved import find_moved_modules

__version__ = "0.2.0"
__all__, __getattr__ = lazy_names(__name__, __file__)
find_moved_modules()
# torch warns at its first import where NumPy is not installed, but no loss needs NumPy. The warning about a NumPy that is
# installed and does not work stays.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy: No module named 'numpy'", category=UserWarning)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
