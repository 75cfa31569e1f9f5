"""`nested`: a loss of several prefixes of the embeddings at once, so that each prefix can be used alone (Matryoshka)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Signature, signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from contrapose.embeddings import Embeddings
from contrapose.losses.catalogue import Method
from contrapose.losses.objective import Traits, batch_of, replace_first, traits_of
from contrapose.pairs.prefix import prefixes, width_of
from contrapose.validate import check_count, check_number


@dataclass(frozen=True, eq=False, repr=False)
class Nested:
    """An objective of several prefixes of the embeddings; made by `nested`. It has the signature of the objective of one."""

    base: partial[Tensor]
    dims: tuple[int, ...]
    weights: tuple[float, ...]

    def __call__(self, batch: Any, *more: Any, **settings: Any) -> Tensor:
        """Return Σ_d w_d L(z[:d])."""
        whole = batch_of(self.base.func, batch, *more)
        _check_width(self.dims, whole.z.shape[-1] if isinstance(whole, Embeddings) else width_of(whole))
        parts = _embeddings(whole, self.dims) if isinstance(whole, Embeddings) else prefixes(whole, self.dims)
        values = [weight * self.base(part, **settings) for weight, part in zip(self.weights, parts, strict=True)]
        return torch.stack(values).sum(0)

    @property
    def traits(self) -> Traits:
        """The traits of the objective of one prefix."""
        return traits_of(self.base.func)

    @property
    def __signature__(self) -> Signature:
        return signature(self.base.func)

    @property
    def __name__(self) -> str:
        return f"nested({self.base.func.__name__}, dims={self.dims})"

    def __repr__(self) -> str:
        return self.__name__


def nested(
    objective: Callable[..., Tensor] | Method | str, *, dims: Sequence[int], weights: Sequence[float] | None = None
) -> partial[Tensor]:
    """Return the objective Σ_d w_d L(z[:d]): the loss of each prefix of the embeddings, normalised on its own (Matryoshka).

    The encoder then learns embeddings whose first coordinates can be used alone: an index of 64 of 768 numbers takes a twelfth
    of the memory. The result is called like the objective, and takes the same settings, which all prefixes share.

        criterion = Loss(nested(nt_xent, dims=(64, 128, 256, 768)), temperature=0.05)

    Every objective of pairs or of embeddings can be nested, except those that keep a state per sample. Each prefix is a
    pass of its own over the similarities, of its own width. What is added to a loss in text, such as a regulariser, sees the
    whole embeddings.

    objective   `nt_xent` or another objective, a method, `CATALOGUE["dystress"]`, or either as text
    dims        widths of the prefixes, ascending; include the full width if it is used too
    weights     w, one for each width; default: 1 each

    >>> from contrapose import nt_xent, two_views
    >>> z1, z2 = torch.randn(2, 8, 16)
    >>> both = nested(nt_xent, dims=(4, 16), weights=(0.5, 1.0))(two_views(z1, z2), temperature=0.1)
    >>> short, full = (nt_xent(two_views(z1[:, :d], z2[:, :d]), temperature=0.1) for d in (4, 16))
    >>> torch.testing.assert_close(both, 0.5 * short + full)
    """
    base = _partial(objective)
    traits, widths = traits_of(base.func), _check_dims(dims)
    needs = {
        "prototypes": traits.takes == "assignments",
        "what it keeps between steps": traits.make_state is not None,
        "support views, which have all coordinates": "support" in traits.provided,
    }
    for what, is_needed in needs.items():
        if is_needed:
            raise ValueError(
                f"objective: expected a loss of embeddings or pairs alone, got {base.func.__name__}, which also needs {what}"
            )
    # The settings of a method stay visible, so that `Loss` shows them and registers learned ones.
    own = partial(Nested(partial(base.func), widths, _check_weights(weights, widths)), **base.keywords)
    return replace_first(base, own)


def _partial(objective: Callable[..., Tensor] | Method | str) -> partial[Tensor]:
    if isinstance(objective, str):
        from contrapose.losses.parse import parse  # imported here, because the parser needs all objectives

        return parse(objective)
    if isinstance(objective, Method):
        return objective()
    return objective if isinstance(objective, partial) else partial(objective)


def _embeddings(batch: Embeddings, widths: tuple[int, ...]) -> Iterator[Embeddings]:
    for width in widths:
        target = None if batch.target is None else batch.target[..., :width]
        yield replace(batch, z=batch.z[..., :width], target=target)


def _check_dims(dims: Sequence[int]) -> tuple[int, ...]:
    widths = tuple(dims)
    for width in widths:
        check_count("dims", width, least=1)
    if not widths or any(one >= two for one, two in pairwise(widths)):
        raise ValueError(f"dims: expected ascending widths such as (64, 128, 256), got {widths}")
    return widths


def _check_weights(weights: Sequence[float] | None, dims: tuple[int, ...]) -> tuple[float, ...]:
    shares = (1.0,) * len(dims) if weights is None else tuple(weights)
    if len(shares) != len(dims):
        raise ValueError(f"weights: expected one for each of {len(dims)} widths, got {len(shares)}")
    for share in shares:
        check_number("weights", share, above=0.0)
    return shares


def _check_width(dims: tuple[int, ...], width: int) -> None:
    if dims[-1] > width:
        raise ValueError(f"dims: expected widths up to {width}, that of the embeddings, got {dims[-1]}")
