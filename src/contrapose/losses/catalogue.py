"""The papers' methods by name: each is an objective with the paper's values for each data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from contrapose.losses.align_uniform import align_uniform
from contrapose.losses.assignments import dino, swav
from contrapose.losses.attraction import byol, simsiam
from contrapose.losses.cacr import cacr, cacr_moco_v3
from contrapose.losses.false_negatives import fnc
from contrapose.losses.redundancy import arb, barlow_twins, vicreg, w_mse, zero_cl
from contrapose.losses.sigmoid import siglip
from contrapose.losses.similarity import simple, triplet
from contrapose.losses.softmax import (
    balanced,
    clip,
    cmc,
    dcl,
    dclw,
    generalized_nt_xent,
    hard_negative,
    macl,
    moco_v3,
    nt_xent,
    tau,
)
from contrapose.losses.sogclr import fastclip, isogclr
from contrapose.losses.supcon import supcon
from contrapose.pairs.negatives import hardest, other_views, same_view
from contrapose.temperature import CosineSchedule, MovingAverage, PerSample, arctanh, cosine, learned, learned_number
from contrapose.validate import check_known, nearest

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A published method; calling it with the name of a data set returns its objective with the paper's values.

    >>> CATALOGUE["dystress"]("cifar10").keywords
    {'temperature': cosine(low=0.07, high=0.2)}
    >>> CATALOGUE["simclr"](temperature=0.2).keywords
    {'temperature': 0.2}
    """

    summary: str  # one line: what the method does and the paper that introduced it
    objective: Callable[..., Tensor]  # a function of pairs or embeddings
    values: Settings  # the default settings
    by_data: Mapping[str, Settings] = field(default_factory=dict)  # settings that differ on a data set
    state: Callable[..., PerSample | MovingAverage] | None = (
        None  # called with the number of images, for `Loss(…, state=…)`
    )

    def __call__(self, data: str | None = None, **overrides: Any) -> partial[Tensor]:
        """Return the objective, a function of pairs or embeddings; `overrides` replace the paper's values.

        data        name of a data set in `DATA`; default: the default values
        overrides   settings that replace the paper's
        """
        values = {**self.values, **self._settings_for(data)}
        # Learned settings are copied: two criteria made from one method must not train the same temperature.
        own = {name: deepcopy(value) if isinstance(value, nn.Module) else value for name, value in values.items()}
        return partial(self.objective, **{**own, **overrides})

    def _settings_for(self, data: str | None) -> Settings:
        """Return the settings that differ from the defaults on a data set."""
        if data is None:
            return {}
        check_known("data", data, DATA)
        return self.by_data.get(data, {})


class Catalogue(dict[str, Method]):
    """Methods by name; the error for an unknown name suggests the most similar one."""

    def __missing__(self, name: str) -> Method:
        raise KeyError(f"the catalogue has no method {name!r}{nearest(str(name), self)}")


# "-k4" marks settings for four positives per anchor, "-lt" long-tailed data sets.
DATA = (
    "cifar10", "cifar100", "svhn", "stl10", "imagenet100", "imagenet", "cifar10-lt", "cifar100-lt", "imagenet100-lt",
    "simcse", "cifar10-k4", "cifar100-k4", "stl10-k4",
)  # fmt: skip


def _on(settings: Settings, *names: str) -> dict[str, Settings]:
    """Return the same settings for several data sets."""
    return dict.fromkeys(names, settings)


_IMAGENET = ("imagenet", "imagenet100", "imagenet100-lt")
# SimCSE contrasts a sentence's first dropout pass only with the second passes of the other sentences.
_SIMCSE = {"negatives": other_views()}
_BANK = ("cifar10", "cifar100", "svhn", "imagenet100")  # Wang & Liu train on these data sets with a memory bank
_CACR = {
    "cifar10": {"t_neg": 2.0}, "cifar100": {"t_neg": 3.0}, "stl10": {"t_neg": 3.0},
    "cifar10-k4": {"t_neg": 0.9}, "cifar100-k4": {"t_neg": 2.0}, "stl10-k4": {"t_neg": 2.0},
}  # fmt: skip

_METHODS: dict[str, Method] = {
    "simclr": Method(
        "NT-Xent over both views of a batch (Chen et al.; Wang & Liu, Eq. 1)",
        nt_xent,
        {"temperature": 0.5},
        _on({"temperature": 0.1}, *_IMAGENET) | _on({"temperature": 0.05, **_SIMCSE}, "simcse"),
    ),
    "temperature_free": Method(
        "NT-Xent without a temperature: the exponent is 2 artanh(s) (Kim & Kim)",
        nt_xent,
        {"temperature": arctanh()},
    ),
    "contrastive": Method(
        "InfoNCE against a whole memory bank, at the temperature that did best (Wang & Liu, Eq. 1, supplement's Table 1)",
        nt_xent,
        {"temperature": 0.2},
        _on({"temperature": 0.3}, "cifar100", "svhn"),
    ),
    "dystress": Method(
        "temperature as a cosine of similarity, lowest at s = 0 (Manna et al., Alg. 1 and 3)",
        nt_xent,
        {"temperature": cosine(0.07, 0.2)},
        _on({"temperature": cosine(0.1, 0.2)}, *_IMAGENET)
        | _on({"temperature": cosine(0.03, 0.05), **_SIMCSE}, "simcse"),
    ),
    "dystress_shifted": Method(
        "DySTreSS with its minimum moved to s = -0.3 (Manna et al., Alg. 2, Table 15)",
        nt_xent,
        {"temperature": cosine(0.07, 0.2, shift=-0.4)},
        _on({"temperature": cosine(0.1, 0.2, shift=-0.4)}, *_IMAGENET)
        | _on({"temperature": cosine(0.03, 0.05, shift=-0.4), **_SIMCSE}, "simcse"),
    ),
    "dystress_dcl": Method(
        "DySTreSS's temperature in the decoupled loss, no gradient through τ (Manna et al., §5.1; Yeh et al., Eq. 6)",
        dcl,
        {"temperature": cosine(0.1, 0.2)},
    ),
    # The authors computed the paper's number with lightly's DCL of that time, which repels twice as strongly.
    "dystress_dcl_authors": Method(
        "DySTreSS + DCL as in the authors' code: own and other views apart, gradient through τ (Manna et al., §5.1)",
        dcl,
        {"temperature": cosine(0.1, 0.2, detach=False), "split_views": True},
    ),
    "dcl": Method("decoupled: the positive leaves the denominator (Yeh et al., Eq. 6)", dcl, {"temperature": 0.1}),
    "dhel": Method(
        "DCL with negatives of the anchor's own view only (Koromilas et al., DHEL)",
        dcl,
        {"temperature": 0.3, "negatives": same_view()},
    ),
    # The authors' code adds both views' energies to each pair's loss: -s⁺/τ + log Σ e^{s_1k/τ} + log Σ e^{s_2k/τ}.
    "dhel_authors": Method(
        "DHEL as in the authors' code, which repels twice as strongly (Koromilas et al.)",
        balanced,
        {"alpha": 1 / 0.3, "weight": 2.0, "scale_by_alpha": True, "negatives": same_view()},
    ),
    "dclw": Method("decoupled, hard positives weigh more (Yeh et al., DCLW)", dclw, {"temperature": 0.1, "sigma": 0.5}),
    "macl": Method(
        "temperature that follows the batch's alignment, reweighted gradient (Huang et al., MACL)",
        macl,
        {"temperature": 0.1, "alpha": 0.5, "center": 0.0},
        _on({"temperature": 0.05, "alpha": 2.0, "center": 0.8, **_SIMCSE}, "simcse"),
    ),
    "moco_v3": Method(
        "each view's queries against the other views' keys, scaled by 2τ (Chen et al., MoCo v3)",
        moco_v3,
        {"temperature": 1.0},
    ),
    "temperature_schedule": Method(
        "NT-Xent with a temperature that swings between 0.1 and 1 over the epochs (Kukleva et al.)",
        nt_xent,
        {"temperature": CosineSchedule(0.1, 1.0, 400)},
    ),
    "isogclr": Method(
        "one temperature per image, learned with a moving average (Qiu et al., iSogCLR); needs `state`",
        isogclr,
        {},
        state=PerSample,
    ),
    "fastclip": Method(
        "global contrastive loss whose one temperature is learned (Wei et al., FastCLIP v3); needs `state`",
        fastclip,
        {"temperature": learned(0.07, low=0.01), "rho": 8.0},
        state=MovingAverage,
    ),
    "tau": Method(
        "temperature as uncertainty, from the encoder (Zhang et al., TaU); needs `score`", tau, {"base": 0.1}
    ),
    "supcon": Method(
        "all samples of the anchor's class are positives (Khosla et al., SupCon, Eq. 2); needs `labels`",
        supcon,
        {"temperature": 0.1},
    ),
    "fnc": Method(
        "candidates that look like the anchor's sample are positives too (Huynh et al., FNC, attraction)",
        fnc,
        {"top": 10, "threshold": 0.7, "temperature": 0.1},
    ),
    "fnc_elimination": Method(
        "candidates that look like the anchor's sample are not negatives (Huynh et al., FNC, elimination)",
        fnc,
        {"form": "elimination", "top": 10, "threshold": 0.7, "temperature": 0.1},
    ),
    "simple": Method("all negatives weigh the same (Wang & Liu, Eq. 3)", simple, {}),
    "hard_contrastive": Method(
        "InfoNCE over each anchor's hardest negatives (Wang & Liu, Eq. 9)",
        nt_xent,
        # The paper's 4095 negatives as a fraction of CIFAR's 50,000 images, for a pool of any size.
        {"temperature": 0.5, "negatives": hardest(fraction=0.0819)},
        {
            data: {"temperature": temperature, "negatives": hardest(4095)}
            for data, temperature in zip(_BANK, (0.6, 0.7, 1.0, 0.4), strict=True)
        },
    ),
    "hard_simple": Method(
        "the simple loss over each anchor's hardest negatives (Wang & Liu, §5.5)",
        simple,
        {"negatives": hardest(fraction=0.0819)},
        _on({"negatives": hardest(4095)}, *_BANK),
    ),
    "triplet": Method("only the hardest negative counts, margin 0 (Wang & Liu, Eq. 6)", triplet, {"margin": 0.0}),
    "align_uniform": Method(
        "alignment of positives plus uniformity of each view (Wang & Isola; AU-CL)",
        align_uniform,
        {"alpha": 2.0, "t": 2.0, "align_weight": 1.0, "uniform_weight": 1.0},
        _on({"align_weight": 3.0, "t": 3.0}, *_IMAGENET),
    ),
    "hard_negative": Method(
        "hard negatives by importance weights, debiased (Robinson et al., HN-CL)",
        hard_negative,
        {"temperature": 0.5, "beta": 1.0, "tau_plus": 0.1},
        _on({"tau_plus": 0.05}, "cifar100", "cifar100-k4") | _on({"tau_plus": 0.01}, *_IMAGENET),
    ),
    "cmc": Method(
        "every pair of views contrasted on its own (Tian et al., CMC, Eq. 8)",
        cmc,
        {"temperature": 0.19},
        _on({"temperature": 0.07}, *_IMAGENET),
    ),
    "cacr": Method(
        "distant positives attract more, close negatives repel more (Zheng et al., Eq. 2-4)",
        cacr,
        {"t_pos": 1.0, "t_neg": 2.0},
        _CACR,
    ),
    "cacr_rbf": Method(
        "CACR with a Gaussian repulsion cost (Zheng et al., Eq. 14)",
        cacr,
        {"t_pos": 1.0, "t_neg": 2.0, "cost": "rbf", "t": 2.0},
        _CACR,
    ),
    "cacr_moco_v3": Method(
        "MoCo v3's loss with more weight for the queries far from a key (Zheng et al., the authors' MoCo v3 code)",
        cacr_moco_v3,
        {"temperature": 1.0},
    ),
    "uaur": Method(
        "uniform attraction, uniform repulsion: CACR without its weights (Zheng et al., Table 11)",
        cacr,
        {"attraction": "uniform", "repulsion": "uniform"},
    ),
    "balanced": Method(
        "attraction and repulsion balanced by λ, the positive not among the repelled (Lee, Eq. 17)",
        balanced,
        {"alpha": 4.0, "weight": 2.0},
        _on({"alpha": 2.0, "weight": 4.0}, "cifar10"),
    ),
    "generalized_nt_xent": Method(
        "NT-Xent with a weight λ on its repulsion (Lee, §6)",
        generalized_nt_xent,
        {"alpha": 2.0, "weight": 2.0},
    ),
    "clip": Method(
        "NT-Xent between two sides in both directions, temperature learned (Radford et al., CLIP)",
        clip,
        {"temperature": learned(0.07, low=0.01)},
    ),
    "siglip": Method(
        "each pair classified on its own by a sigmoid, temperature and bias learned (Zhai et al., SigLIP)",
        siglip,
        {"temperature": learned(0.1), "bias": learned_number(-10.0)},
    ),
    # b_rel = 1 with τ = 0.1 is SigLIP's start, a bias of -10.
    "siglip_relative": Method(
        "SigLIP whose learned bias is a similarity, b = -b_rel/τ (Bangachev et al., relative bias)",
        siglip,
        {"temperature": learned(0.1), "relative_bias": learned_number(1.0)},
    ),
    "barlow_twins": Method(
        "views agree in each feature, features are decorrelated (Zbontar et al., Barlow Twins)",
        barlow_twins,
        {"weight": 5e-3},
    ),
    "vicreg": Method(
        "views agree, features vary and are decorrelated (Bardes et al., VICReg)",
        vicreg,
        {"invariance_weight": 25.0, "variance_weight": 25.0, "covariance_weight": 1.0},
    ),
    "w_mse": Method(
        "views agree after each is whitened by a Cholesky factor (Ermolov et al., W-MSE)",
        w_mse,
        {"size": 128, "shrinkage": 0.0},
    ),
    "zero_cl": Method(
        "whitened features and whitened instances of two views agree (Zhang et al., Zero-CL)", zero_cl, {"ridge": 0.01}
    ),
    "zero_fcl": Method(
        "whitened features of two views agree (Zhang et al., Zero-FCL)", zero_cl, {"form": "feature", "ridge": 0.01}
    ),
    "zero_icl": Method(
        "whitened instances of two views agree (Zhang et al., Zero-ICL)", zero_cl, {"form": "instance", "ridge": 0.01}
    ),
    "arb": Method(
        "features are aligned with the other view's nearest orthonormal base (Zhang et al., ARB)", arb, {"ridge": 1e-5}
    ),
    "byol": Method("predictions approach a teacher's embeddings of other views (Grill et al., BYOL)", byol, {}),
    "simsiam": Method("predictions approach the other view's own embedding (Chen & He, SimSiam)", simsiam, {}),
    "swav": Method(
        "views predict each other's balanced assignment to prototypes (Caron et al., SwAV)",
        swav,
        {"temperature": 0.1, "epsilon": 0.05, "iterations": 3},
    ),
    "dino": Method(
        "views predict a teacher's centred assignment of other views to prototypes (Caron et al., DINO)",
        dino,
        {"temperature": 0.1, "teacher_temperature": 0.04},
    ),
    # The loss is NT-Xent; the pairs that the framework makes are the method.
    "nnclr": Method(
        "NT-Xent of each view's nearest neighbour and the other view; needs the framework nnclr (Dwibedi et al., NNCLR)",
        nt_xent,
        {"temperature": 0.1},
    ),
}

CATALOGUE: Mapping[str, Method] = Catalogue(_METHODS)
