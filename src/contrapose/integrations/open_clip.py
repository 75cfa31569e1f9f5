"""Any objective in the shape of open_clip's losses: `loss(image_features, text_features, logit_scale)`.

>>> import torch
>>> from contrapose.integrations.open_clip import ClipLoss
>>> loss = ClipLoss()(torch.randn(8, 16), torch.randn(8, 16), torch.tensor(14.3))
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from contrapose import distributed
from contrapose.distributed import gather
from contrapose.integrations.criterion import Objective, check_guide, make_criterion, takes_setting, takes_tensor
from contrapose.losses import clip, siglip
from contrapose.pairs import Pairs, cross, guide_targets


class _TwoTowers(nn.Module):
    """Compares image and text features from all processes; subclasses define how."""

    def __init__(
        self,
        objective: Objective,
        settings: dict[str, Any],
        temperature: Any,
        rank: int,
        world_size: int,
        *,
        provided: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.criterion = make_criterion(
            objective, settings, temperature=temperature, batch_temperature=True, provided=provided
        )
        self.rank, self.world_size = rank, world_size

    def _gathered(self, rows: Tensor) -> Tensor:
        """Return the rows from all processes; as in open_clip, only if the loss was created with `world_size`."""
        if self.world_size == 1:
            return rows
        if distributed.world_size() != self.world_size:
            raise ValueError(
                f"world_size: expected the number of processes, {distributed.world_size()}, got {self.world_size}"
            )
        return gather(rows)

    def _compare(self, images: Tensor, texts: Tensor, ids: Tensor | None, *, symmetric: bool) -> Pairs:
        """Compare the features from all processes; each process reduces its share of the anchors."""
        ids = None if ids is None else self._gathered(ids)
        pairs = cross(self._gathered(images), self._gathered(texts), symmetric=symmetric, ids=ids)
        return pairs.sharded() if self.world_size > 1 else pairs

    def _from_logits(self, **values: Tensor | float | None) -> dict[str, Any]:
        """Return the settings that come with the batch, except those that the user or the method has set for the objective."""
        taken, own = self.criterion.objective, {*self.criterion.settings}
        own |= {"bias"} if "relative_bias" in own else set()  # which it replaces
        return {
            name: value.reshape(()) if isinstance(value, Tensor) else value
            for name, value in values.items()
            if value is not None and name not in own and takes_setting(taken, name) and takes_tensor(taken, name)
        }


class ClipLoss(_TwoTowers):
    """`open_clip.loss.ClipLoss` with any objective, temperature and choice of negatives; open_clip is not needed.

    The loss is the mean of both directions, image to text and text to image. The temperature is 1 / `logit_scale`, and
    `logit_scale` gets a gradient, unless `temperature` or the objective sets another temperature; "macl" and "moco_v3" keep their
    own, which must be a number. Of a sum, this holds for the first part: write the temperature of the others into the text, as
    in "clip + 0.5*dcl(temperature=0.1)". `logit_bias` is used by "siglip" only.

    objective   a function of pairs, a method of `CATALOGUE`, or text such as "dystress"; "soft_nt_xent" takes the similarities of
                a teacher's features as soft targets, with the arguments of open_clip's DistillClipLoss
    guide_temperature   of the softmax that makes soft targets from a teacher's similarities; default: 1 / `dist_logit_scale`
    settings    further settings of the objective: negatives=hardest(256)

    With `world_size` > 1, features from all processes are gathered with exact gradients, as in open_clip with
    `gather_with_grad` and without `local_loss`. Regardless of these two options, the gradient after DistributedDataParallel
    equals that of one process with the whole batch, and the work is divided between processes. Features are normalised, which
    changes nothing for open_clip's models, whose features have length 1. `cache_labels` has no effect.
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        objective: Objective = clip,
        temperature: Any = None,
        guide_temperature: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(objective, settings, temperature, rank, world_size, provided=("targets",))
        self.guide_temperature = guide_temperature
        if use_horovod:
            raise ValueError("use_horovod: expected False; features are gathered by torch.distributed")
        # open_clip's own code and users read these; they change nothing here.
        self.local_loss, self.gather_with_grad, self.cache_labels = local_loss, gather_with_grad, cache_labels
        self.use_horovod = use_horovod

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        *,
        ids: Tensor | None = None,
        dist_image_features: Tensor | None = None,
        dist_text_features: Tensor | None = None,
        dist_logit_scale: Tensor | float | None = None,
        dist_logit_bias: Tensor | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """Return the loss, or a dictionary of it; pairs with equal `ids` (m,) are never negatives of each other.

        With an objective of soft targets, `dist_image_features` and `dist_text_features` are a teacher's features, of any width.
        """
        pairs = self._compare(image_features, text_features, ids, symmetric=True)
        settings = self._from_logits(temperature=1 / logit_scale, bias=logit_bias)
        for name, features in (
            ("dist_image_features", dist_image_features),
            ("dist_text_features", dist_text_features),
        ):
            check_guide(self.criterion, features, name=name)
        if dist_image_features is not None and dist_text_features is not None:
            teacher = self._compare(dist_image_features, dist_text_features, ids, symmetric=True)
            settings["targets"] = guide_targets(teacher, temperature=self._guide_temperature(dist_logit_scale))
        loss = self.criterion(pairs, **settings)
        return _result(_keep_in_graph(loss, logit_scale, logit_bias), output_dict)

    def _guide_temperature(self, logit_scale: Tensor | float | None) -> float:
        if self.guide_temperature is not None:
            return self.guide_temperature
        if logit_scale is None:
            raise ValueError("guide_temperature: expected a number, since there is no dist_logit_scale, got None")
        return 1 / float(logit_scale)  # waits for the device, which a guide_temperature does not


class SigLipLoss(_TwoTowers):
    """`open_clip.loss.SigLipLoss`; the temperature is 1 / `logit_scale` and the bias is `logit_bias`, both with gradient.

    With `world_size` > 1, features from all processes are gathered with exact gradients, in one exchange whatever `dist_impl`
    is. The m × m matrix is reduced block by block and never stored, so memory does not grow with m².
    `objective` and `settings` are those of `ClipLoss`; the objective is applied to one direction, image to text.
    """

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
        *,
        objective: Objective = siglip,
        temperature: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(objective, settings, temperature, rank, world_size)
        self.cache_labels, self.dist_impl = cache_labels, dist_impl or "bidir"  # read by users; open_clip's default

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
        *,
        ids: Tensor | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """Return the loss, or a dictionary of it; pairs with equal `ids` (m,) are never negatives of each other."""
        pairs = self._compare(image_features, text_features, ids, symmetric=False)
        # open_clip's loss without a bias has none, whereas the bias of `siglip` is -10 unless it is given.
        settings = self._from_logits(temperature=1 / logit_scale, bias=0.0 if logit_bias is None else logit_bias)
        loss = self.criterion(pairs, **settings)
        return _result(_keep_in_graph(loss, logit_scale, logit_bias), output_dict)


def _keep_in_graph(loss: Tensor, *unused: Tensor | float | None) -> Tensor:
    """Return the loss with zero gradients for parameters that it may not use: DistributedDataParallel waits for them."""
    for parameter in unused:
        if isinstance(parameter, Tensor) and parameter.requires_grad:
            loss = loss + 0 * parameter.sum()
    return loss


def _result(loss: Tensor, output_dict: bool) -> Tensor | dict[str, Tensor]:
    return {"contrastive_loss": loss} if output_dict else loss
