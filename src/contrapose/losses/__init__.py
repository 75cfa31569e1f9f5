"""The family of losses: pure functions of `Pairs`, `Embeddings` or `Assignments`, and their named catalogue.

Each module lists its objectives in `__all__`. This package, the parser and `Loss` find them there, without a second list.

>>> import torch
>>> from contrapose.losses import nt_xent
>>> from contrapose.pairs import two_views
>>> loss = nt_xent(two_views(torch.randn(8, 16), torch.randn(8, 16)), temperature=0.5)
"""

from contrapose.losses.align_uniform import *  # noqa: F403
from contrapose.losses.assignments import *  # noqa: F403
from contrapose.losses.attraction import *  # noqa: F403
from contrapose.losses.cacr import *  # noqa: F403
from contrapose.losses.catalogue import CATALOGUE as CATALOGUE
from contrapose.losses.catalogue import Method as Method
from contrapose.losses.false_negatives import *  # noqa: F403
from contrapose.losses.module import Loss as Loss
from contrapose.losses.nested import nested as nested
from contrapose.losses.redundancy import *  # noqa: F403
from contrapose.losses.regularisers import *  # noqa: F403
from contrapose.losses.sigmoid import *  # noqa: F403
from contrapose.losses.similarity import *  # noqa: F403
from contrapose.losses.soft import *  # noqa: F403
from contrapose.losses.softmax import *  # noqa: F403
from contrapose.losses.sogclr import *  # noqa: F403
from contrapose.losses.supcon import *  # noqa: F403
