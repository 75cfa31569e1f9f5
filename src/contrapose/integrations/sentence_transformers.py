"""Any objective as a sentence-transformers loss, with or without sentence-transformers' gradient cache.

loss = ContrastiveLoss(model)                                        MultipleNegativesRankingLoss(model)
loss = ContrastiveLoss(model, temperature=cosine(0.03, 0.05))        a temperature that depends on the similarity
loss = CachedContrastiveLoss(model, "dcl", mini_batch_size=32)       another objective, with a batch of any size
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sentence_transformers
import torch
from packaging.version import Version
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.losses.merged_forward import embed_columns
from torch import Tensor, nn
from torch.func import functional_call

from contrapose.distributed import average_gradient, gather, world_size
from contrapose.integrations.criterion import Objective, is_of_method, make_criterion
from contrapose.integrations.duplicates import group_ids, text_ids
from contrapose.integrations.guide import Guide
from contrapose.pairs import Pairs, cross, guide_targets, guided, other_views
from contrapose.pairs.negatives import steps
from contrapose.temperature import Learned
from contrapose.validate import check_choice, check_count, check_known

if Version(sentence_transformers.__version__) < Version("6.2"):
    # An older trainer would not clear the gradient of a learned temperature after each step.
    raise ImportError(
        f"sentence-transformers: expected version 6.2 or newer, got {sentence_transformers.__version__}; "
        "run: pip install -U 'sentence-transformers[train]>=6.2'"
    )

Features = dict[str, Any]
DIRECTIONS = {
    "query_to_doc": "a_to_b",
    "query_to_query": "a_to_a",
    "doc_to_query": "b_to_a",
    "doc_to_doc": "b_to_b",
}


@dataclass(frozen=True)
class _Batch:
    """Information about a batch besides its embeddings; one tensor for each column."""

    texts: list[Tensor] | None = None  # (n,) hashes, equal for equal texts
    guide: list[Tensor] | None = None  # (n, d) embeddings of the guide


class ContrastiveLoss(nn.Module):
    """Compares queries with documents: columns (query, positive) or (query, positive, negative, …), without labels.

    objective        a function of pairs, a method of `CATALOGUE`, or text: "dystress", "nt_xent(negatives=hardest(64))"
    temperature      any contrapose temperature; default: the method's own temperature for text, or 0.05 if it has none.
                     `learned(0.05)` is a parameter of this loss, which the trainer optimises together with the model
    symmetric        whether to compare each positive with the queries as well, and average both directions
    directions       comparisons in the single sum over negatives, as in MultipleNegativesRankingLoss; not with `symmetric`
    guide            another model that filters negatives (GISTEmbed): a negative is left out unless, according to the guide,
                     it is less similar to the query than the positive by at least `guide_margin` (with
                     `guide_margin_strategy="relative"`: by `guide_margin` times the positive's similarity). The objective
                     "soft_nt_xent" takes the guide's similarities as soft targets instead, and leaves out nothing
    guide_temperature   of the softmax that makes soft targets from the guide's similarities; used by "soft_nt_xent" only
    deduplicate      whether equal texts, and documents of equal queries, are never negatives of each other
    gather_across_devices   whether negatives come from all processes, with the gradients of a single process
    settings         further settings of the objective: negatives=hardest(64), hardness=9.0

    With the default objective and a batch without duplicates, values and gradients equal those of
    `MultipleNegativesRankingLoss(model, scale=1 / temperature)`. There are two exceptions: with "doc_to_query" in `directions`
    MultipleNegativesRankingLoss has the positive twice in its denominator, whereas this loss has it once; and its hardness
    changes "query_to_doc" only, whereas `hardness` changes all comparisons. A batch with a
    single pair, or with only duplicates, has no negatives, and its loss is 0.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        objective: Objective = "nt_xent",
        *,
        temperature: Any = None,
        symmetric: bool = False,
        directions: Sequence[str] = ("query_to_doc",),
        guide: SentenceTransformer | None = None,
        guide_margin: float = 0.0,
        guide_margin_strategy: str = "absolute",
        guide_temperature: float = 0.05,
        deduplicate: bool = True,
        gather_across_devices: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.model = model
        if "loss" in settings:
            warnings.warn(
                "loss= is now objective=; the former name will not work in 1.0", DeprecationWarning, stacklevel=2
            )
            objective = settings.pop("loss")
        _refuse_scale(settings)
        self.criterion = make_criterion(
            objective,
            settings,
            temperature=temperature,
            default_temperature=0.05,
            data="simcse",
            provided=() if guide is None else ("targets",),
        )
        is_default = "negatives" not in settings and is_of_method(objective, "negatives")
        if is_default and self.criterion.settings.get("negatives") == other_views():
            del self.criterion.settings["negatives"]  # `directions` already implies the catalogue's other_views()
        _check_directions(directions, symmetric)
        self.symmetric, self.directions = symmetric, tuple(directions)
        check_choice("guide_margin_strategy", guide_margin_strategy, "absolute", "relative")
        if guide is None and guide_margin:
            raise ValueError(f"guide_margin: expected 0 without a guide, got {guide_margin!r}")
        if guide_margin and "targets" in self.criterion.traits.provided:
            raise ValueError(
                f"guide_margin: expected 0, since the guide gives soft targets and leaves out nothing, got {guide_margin!r}"
            )
        self.guide = None if guide is None else Guide(model, guide)
        self.guide_margin, self.guide_margin_strategy = guide_margin, guide_margin_strategy
        self.guide_temperature = guide_temperature
        self.deduplicate, self.gather_across_devices = deduplicate, gather_across_devices

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch; `labels` are not used."""
        columns = list(sentence_features)
        batch = self._describe(columns)
        return self._loss(embed_columns(self.model, columns), batch)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """Return the loss of embeddings, (n, d) for each column, whose texts are unknown."""
        if self.guide is not None:
            raise ValueError("guide: expected the inputs of the batch, which this method does not receive")
        return self._loss(embeddings, _Batch())

    def _describe(self, columns: list[Features]) -> _Batch:
        # Called before the model, which writes its outputs to the features and may change their attention mask.
        texts = [text_ids(features) for features in columns] if self.deduplicate else [None]
        known = [hashes for hashes in texts if hashes is not None]
        return _Batch(
            texts=known if len(known) == len(columns) else None,
            guide=None if self.guide is None else self.guide.embed(columns, getattr(self, "mini_batch_size", None)),
        )

    def _loss(self, embeddings: Sequence[Tensor], batch: _Batch) -> Tensor:
        if len(embeddings) < 2:
            raise ValueError(
                f"sentence_features: expected a query, a positive and any negatives, got {len(embeddings)}"
            )
        pairs, parameters = self._pairs(embeddings, batch.texts), self._parameters_with_average()
        if pairs is None:
            # The loss has zero gradients for all learned parameters, since other processes wait for these gradients.
            return torch.stack([z.sum() for z in (*embeddings, *parameters.values())]).sum() * 0.0
        settings: dict[str, Any] = {}
        if batch.guide is not None:
            reference = self._pairs(batch.guide, batch.texts)
            assert reference is not None
            settings = self._from_guide(reference)
        loss: Tensor = functional_call(self.criterion, parameters, (pairs,), settings)
        return loss

    def _from_guide(self, reference: Pairs) -> dict[str, Any]:
        """Return the guide's similarities as soft targets, if the objective takes them, or as a choice of negatives."""
        if "targets" in self.criterion.traits.provided:
            return {"targets": guide_targets(reference, temperature=self.guide_temperature)}
        chosen = steps(self.criterion.settings.get("negatives"))
        relative = self.guide_margin_strategy == "relative"
        return {"negatives": (guided(reference, margin=self.guide_margin, relative=relative), *chosen)}

    def _pairs(self, embeddings: Sequence[Tensor], texts: Sequence[Tensor] | None) -> Pairs | None:
        """Compare the columns; return None if there is nothing to compare with."""
        if self.gather_across_devices:
            embeddings = [gather(z) for z in embeddings]
            texts = None if texts is None else [gather(hashes) for hashes in texts]
        queries, positives, *negatives = embeddings
        ids, negative_ids = (None, None) if texts is None else _ids(*texts)
        if not _has_negatives(len(queries), ids, 0 if self.symmetric else len(negatives), negative_ids):
            return None
        pairs = cross(
            queries,
            positives,
            symmetric=self.symmetric,
            directions=[DIRECTIONS[direction] for direction in self.directions],
            negatives=torch.stack(negatives, dim=1) if negatives else None,
            negative_ids=negative_ids if negatives else None,
            ids=ids,
        )
        return pairs.sharded() if self.gather_across_devices else pairs

    def _parameters_with_average(self) -> dict[str, Tensor]:
        """Return the objective's parameters by name, with averaged gradients, since the trainer does not average them."""
        parameters = {name: value for name, value in self.criterion.named_parameters() if value.requires_grad}
        if not parameters or world_size() == 1:
            return {**parameters}
        for module in self.criterion.modules():
            if isinstance(module, Learned):
                module()  # returns to its bounds, which a copy of its parameter would not do
        # In one exchange, because processes may not reach several exchanges in the same order.
        together = average_gradient(torch.cat([value.flatten() for value in parameters.values()]))
        parts = together.split([value.numel() for value in parameters.values()])
        return {
            name: part.view_as(value).to(value.dtype)
            for (name, value), part in zip(parameters.items(), parts, strict=True)
        }

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        settings = {
            name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in self.criterion.settings.items()
        }
        return {
            "objective": self.criterion.objective.__name__,
            **settings,
            "symmetric": self.symmetric,
            "directions": self.directions,
            "guide": None if self.guide is None else self.guide.encoder,
            "guide_margin": self.guide_margin,
            "guide_margin_strategy": self.guide_margin_strategy,
            "guide_temperature": self.guide_temperature,
            "deduplicate": self.deduplicate,
            "gather_across_devices": self.gather_across_devices,
        }

    @property
    def citation(self) -> str:
        """The BibTeX entry for the model card."""
        return """
@software{contrapose,
    title={contrapose: contrastive representation learning in which the loss is the subject},
    author={{The contrapose developers}}
}
"""


class CachedContrastiveLoss(CachedLossMixin, ContrastiveLoss):  # type: ignore[misc]
    """`ContrastiveLoss` with sentence-transformers' gradient cache: a batch of any size in the memory of a mini-batch.

    The model encodes `mini_batch_size` texts at a time, twice, and the loss sees the whole batch. The matrix of similarities
    is reduced block by block. fp16 scaling, gradient accumulation and MatryoshkaLoss work as with
    CachedMultipleNegativesRankingLoss, even with a learned temperature.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        objective: Objective = "nt_xent",
        *,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
        **settings: Any,
    ) -> None:
        if has_static_embedding_input(model):
            raise ValueError(
                "model: expected one whose inputs can be split into mini-batches, got a StaticEmbedding; use ContrastiveLoss"
            )
        for name, value in (("mini_batch_size", mini_batch_size), ("mini_batch_num_tokens", mini_batch_num_tokens)):
            if value is not None:
                check_count(name, value, least=1)
        super().__init__(model, objective, **settings)
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar
        self._batch, self._gradients = _Batch(), dict[nn.Parameter, Tensor]()

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch; `labels` are not used."""
        columns = list(sentence_features)
        # Read by `calculate_loss`, which `forward_cached` calls.
        self._batch, self._gradients = self._describe(columns), {}
        loss: Tensor = CachedLossMixin.forward_cached(self, columns, labels)
        gradients, self._batch = self._gradients, _Batch()

        def add_gradients(factor: Tensor) -> None:
            # The trainer multiplies the loss by `factor`: the fp16 scale, 1 / accumulation steps.
            for parameter, gradient in gradients.items():
                gradient = (gradient * factor).to(parameter)
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

        if gradients:
            loss.register_hook(add_gradients)
        return loss

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of embeddings that come in mini-batches; `with_backward`, also write their gradients."""
        loss = self._loss([torch.cat(rows) for rows in reps], self._batch)
        if not with_backward:
            return loss
        rows, parameters = [z for column in reps for z in column], list(self.criterion.parameters())
        # Not backward(): parameters of the loss must wait for the factor of the outer backward pass.
        gradients = torch.autograd.grad(loss, [*rows, *parameters], allow_unused=True)
        for z, gradient in zip(rows, gradients, strict=False):
            z.grad = gradient
        weight = self._matryoshka_weight(reps[0][0].shape[1])
        for parameter, gradient in zip(parameters, gradients[len(rows) :], strict=True):
            if gradient is not None:
                self._gradients[parameter] = self._gradients.get(parameter, 0.0) + weight * gradient
        return loss.detach()

    def _matryoshka_weight(self, width: int) -> float:
        """Return the weight that MatryoshkaLoss, which replaces `calculate_loss`, gives to embeddings of this width."""
        dims = getattr(self.calculate_loss, "matryoshka_dims", ())
        weights = getattr(self.calculate_loss, "matryoshka_weights", ())
        return float(dict(zip(dims, weights, strict=True)).get(width, 1.0))

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        cached = {"mini_batch_size": self.mini_batch_size, "mini_batch_num_tokens": self.mini_batch_num_tokens}
        return super().get_config_dict() | cached


def _refuse_scale(settings: dict[str, Any]) -> None:
    """Raise ValueError for sentence-transformers' `scale`, with the temperature to write instead."""
    if "scale" in settings:
        scale = settings["scale"]
        instead = f"{1 / scale:g}" if isinstance(scale, int | float) and scale > 0 else "1 / scale"
        raise ValueError(
            f"scale: expected a temperature, which is 1 / scale: write temperature={instead}, got {scale!r}"
        )


def _check_directions(directions: Sequence[str], symmetric: bool) -> None:
    for direction in directions:
        check_known("directions", direction, DIRECTIONS)
    if "query_to_doc" not in directions:
        raise ValueError(
            f"directions: expected 'query_to_doc', which has the positives, to be included, got {directions!r}"
        )
    if symmetric and len(directions) > 1:
        raise ValueError(f"directions: expected only 'query_to_doc' with symmetric=True, got {directions!r}")


def _ids(queries: Tensor, positives: Tensor, *negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids of the pairs, (n,), and of their explicit negatives, (n, k)."""
    explicit = torch.stack(negatives, dim=1) if negatives else queries.new_empty((len(queries), 0))
    ids, negative_ids = group_ids(queries, positives, explicit.flatten())
    return ids, negative_ids.reshape(explicit.shape)


def _has_negatives(pairs: int, ids: Tensor | None, explicit: int, negative_ids: Tensor | None) -> bool:
    """Return whether any document is a negative: one from another pair, or from one of `explicit` columns of negatives."""
    if ids is None or negative_ids is None:
        return pairs > 1 or explicit > 0
    return bool((ids != ids[0]).any()) or (explicit > 0 and bool((negative_ids != ids[0]).any()))
