"""The checks of embeddings, batches, towers and processes: each maps the looks so far to a finding, or to None."""

from __future__ import annotations

from contrapose.doctor import limits
from contrapose.doctor.checks import Check, Looks, recent, side_names, since
from contrapose.doctor.finding import Finding
from contrapose.doctor.look import Look


def collapse(looks: Looks) -> Finding | None:
    """Embeddings that are all nearly equal, or lie on a line."""
    last = recent(looks, 2, after=limits.SETTLED_STEPS.value)
    if not last:
        return None
    bad = [k for k in range(len(last[-1].sides)) if all(_is_collapsed(look, k) for look in last)]
    if not bad:
        return None
    look = last[-1]
    side = look.sides[bad[0]]
    return Finding(
        name="collapse",
        severity="error",
        seen=f"{side_names(look, bad)} collapsed: deviation {side.deviation:.3f} (1 if spread evenly, 0 if all are equal), "
        f"effective rank {side.rank:.1f} of {min(look.width, look.rows)}, mean similarity of different samples "
        f"{side.cosine:.3f}",
        means="All inputs are mapped to nearly the same embedding, so it says nothing about them.",
        do="Lower the learning rate or warm it up; with a loss without negatives (BYOL, SimSiam), check the stop-gradient and "
        "the predictor; check that batch norm sees whole batches, and that the push on negatives reaches the encoder.",
    )


def _is_collapsed(look: Look, number: int) -> bool:
    side = look.sides[number] if number < len(look.sides) else None
    if side is None or not side.finite:
        return False
    thin = side.rank < limits.RANK.value and min(look.width, look.rows) >= 8 and not look.has_labels
    return side.deviation < limits.DEVIATION.value or thin


def modality_gap(looks: Looks) -> Finding | None:
    """Two sides in different parts of the space."""
    last = recent(looks, 2, after=limits.LEARNING_STEPS.value)
    if not last or not all((look.gap or 0.0) > limits.GAP.value and (look.separable or 0.0) > 0.99 for look in last):
        return None
    look = last[-1]
    return Finding(
        name="modality gap",
        severity="note",
        seen=f"the means of the two sides are {look.gap:.1f} times their spread apart, and {look.separable:.0%} of the rows are "
        f"nearer to the mean of their own side; positives have a similarity of {look.positive:.2f}",
        means="Each tower fills its own cone. Retrieval within a batch still works, but similarities across the towers have "
        "little range, and a threshold on them means little.",
        do="Raise the temperature, or let it be learned from a higher start (0.07 or more); subtract each side's mean before "
        "comparing; train longer with a higher learning rate for the projections.",
    )


def duplicates(looks: Looks) -> Finding | None:
    """Rows of different samples with equal embeddings."""
    last = [look for look in looks[-3:] if look.duplicate_share > limits.DUPLICATES.value]
    if len(last) < 2 or last[-1] is not looks[-1]:
        return None
    look = looks[-1]
    if look.action is not None and look.action.push == 0:  # rows are not compared with each other
        return None
    return Finding(
        name="duplicates",
        severity="warning",
        seen=f"{look.duplicate_share:.0%} of the rows have another row in the batch with an equal embedding",
        means="The same input is in the batch more than once, and its copies are negatives of each other: training pushes "
        "apart what is equal.",
        do="Remove copies from the data, or draw batches without them (sentence-transformers: "
        "batch_sampler=BatchSamplers.NO_DUPLICATES), or pass ids=, equal for copies, so that they are no negatives.",
        rows=look.duplicates,
    )


def false_negatives(looks: Looks) -> Finding | None:
    """Rows of different samples that are as similar as the views of one sample."""
    last = [look for look in looks[-3:] if look.twin_share > limits.TWINS.value]
    # In a small batch, a few rows may be alike by chance.
    if len(last) < 2 or len(looks[-1].twins) < limits.TWIN_PAIRS.value:
        return None
    look = looks[-1]
    return Finding(
        name="false negatives",
        severity="warning",
        seen=f"{look.twin_share:.0%} of the rows have exactly one other row that is as similar as their own positive, far above "
        "all others",
        means="These rows probably show the same thing under different numbers, and they are pushed apart as negatives.",
        do="Look at these rows (doctor.see(…, samples=batch) shows them on the page). Remove near-duplicates, pass ids= that "
        "are equal for them, or leave such negatives out: negatives=self_guided() or guided(…), or the loss fnc.",
        rows=look.twins,
    )


def not_shuffled(looks: Looks) -> Finding | None:
    """Rows near each other in the batch that are more alike than in random order."""
    if looks[-1].has_labels:
        return None
    # Not in each look: a batch that lies within the block of one class is in no order.
    orders = [look.order for look in looks[-20:] if (look.order or 0.0) > limits.ORDER.value]
    if len(orders) < 2:
        return None
    return Finding(
        name="data not shuffled",
        severity="warning",
        seen=f"rows near each other in the batch are more alike than in a random order, by {orders[-1]:.0f} standard deviations",
        means="Samples of a class follow each other, so a batch has few classes: most of its negatives are of the anchor's own "
        "class, and batch norm sees another distribution in each step.",
        do="DataLoader(…, shuffle=True); with several processes DistributedSampler and sampler.set_epoch(epoch); shuffle a "
        "file or a streamed data set before it is divided into shards.",
    )


def one_id(looks: Looks) -> Finding | None:
    """Ids that are all equal, or labels that are all different."""
    look = looks[-1]
    if look.index_groups is not None and look.index_groups[0] == 1 and look.index_groups[1] > 1:
        return Finding(
            name="ids all equal",
            severity="error",
            seen=f"all {look.index_groups[1]:,} ids of the batch are equal",
            means="Rows of one id are never negatives of each other, so there are no negatives at all.",
            do="Pass the index of each sample in the data set as ids=, not the number of the batch or of the class.",
        )
    if look.label_groups is None:
        return None
    count, alone = look.label_groups
    if count == 1:
        return Finding(
            name="labels all equal",
            severity="error",
            seen="all labels of the batch are equal",
            means="All rows are positives of each other, and there are no negatives.",
            do="Shuffle the data, or draw batches with several classes; check that labels are those of this batch.",
        )
    if alone < 0.5 * look.batch or count < 3:
        return None
    return Finding(
        name="labels all different",
        severity="error",
        seen=f"{alone:,} of {look.batch:,} rows have a label of their own",
        means="A row whose label no other row has is without a positive, and is only pushed away.",
        do="Check that labels are classes, not indices; draw several samples of each class into a batch (such as "
        "pytorch_metric_learning.samplers.MPerClassSampler); with two views in one tensor, pass labels.repeat(2).",
    )


def no_gradient(looks: Looks) -> Finding | None:
    """Embeddings that are all detached from the network."""
    look = looks[-1]
    if any(side.requires_grad for side in look.sides):
        return None
    return Finding(
        name="no gradient",
        severity="error",
        seen="no embedding requires a gradient, although gradients are enabled",
        means="The loss cannot change any encoder: backward() fails, or trains only the criterion's own parameters.",
        do="Remove .detach(), torch.no_grad() and torch.inference_mode() from the path between encoder and loss, and "
        "requires_grad_(False) from the encoder; model.encode() of sentence-transformers detaches too.",
    )


def frozen_part(looks: Looks) -> Finding | None:
    """A part of the model that does not move while others do."""
    # Gradients may be accumulated over many calls, between which no weight changes.
    last = since(looks, limits.FROZEN_STEPS.value)
    if not last or any(not look.towers for look in last):
        return None
    towers = [look.towers or {} for look in last]
    still = [name for name in towers[-1] if all(t.get(name) == towers[-1][name] for t in towers)]
    if not still or len(still) == len(towers[-1]):
        return None
    moving = [name for name in towers[-1] if name not in still]
    return Finding(
        name="frozen part",
        severity="warning",
        seen=f"all parameters of {', '.join(still)} are unchanged since step {last[0].step:,}, while those of "
        f"{', '.join(moving)} have changed",
        means="This part of the model is not trained: its embeddings stay those of its first weights.",
        do="Pass its parameters to the optimiser, and set requires_grad_(True). Nothing is wrong if it is locked on purpose, "
        "as the image tower in LiT.",
    )


def all_frozen(looks: Looks) -> Finding | None:
    """A model of which nothing moves."""
    # Gradients may be accumulated over many calls, between which no weight changes.
    last = since(looks, limits.FROZEN_STEPS.value)
    if not last or any(not look.towers for look in last):
        return None
    if any(look.towers != last[-1].towers for look in last):
        return None
    return Finding(
        name="weights do not change",
        severity="error",
        seen=f"no parameter of the model has changed since step {last[0].step:,}",
        means="The optimiser does not train this model.",
        do="Check that the optimiser was made from this model's parameters (after .to(device) and after wrapping), that "
        "optimizer.step() is called, and that the learning rate is not 0.",
    )


def scale_at_bound(looks: Looks) -> Finding | None:
    """A learned temperature that has reached its bound, or passed it."""
    last = recent(looks, 2)
    for name, value in ((last[-1].scales or {}) if last else {}).items():
        low, high = (last[-1].bounds or {}).get(name, (None, None))
        for bound, sign in ((low, -1), (high, 1)):
            values = [(look.scales or {}).get(name) for look in last]
            # A loop that does not clamp the scale lets it pass the bound.
            if bound is not None and all(v is not None and sign * (v - bound) >= -1e-4 * abs(bound) for v in values):
                return Finding(
                    name="scale at its bound",
                    severity="warning",
                    seen=f"{name} is {value:.4g}, and its bound {bound:.4g}",
                    means="The loss wants a temperature beyond its bound, and the number is no longer learned. CLIP's "
                    "scale reaches 100 if pairs are easy, or if the scale's learning rate is high.",
                    do="Exclude the scale from weight decay and lower its learning rate; start from a lower scale (1 / 0.07); "
                    "widen the bound only if the effective number of negatives in the report is not near 1.",
                )
    return None


def scale_not_learned(looks: Looks) -> Finding | None:
    """A learned number that requires a gradient, and does not change."""
    last = since(looks, limits.FROZEN_STEPS.value)
    if not last or all_frozen(looks):
        return None
    for name, value in (last[-1].scales or {}).items():
        if name in (last[-1].bounds or {}) and scale_at_bound(looks):
            continue
        if all((look.scales or {}).get(name) == value for look in last):
            return Finding(
                name="scale not learned",
                severity="warning",
                seen=f"{name} is {value:.4g} at each look since step {last[0].step:,}, although it requires a gradient",
                means="The learned temperature or bias is not in the optimiser, and stays at its first value.",
                do="Optimise the criterion's parameters too: AdamW([*model.parameters(), *criterion.parameters()]).",
            )
    return None


def same_batch_on_ranks(looks: Looks) -> Finding | None:
    """Processes that train on the same samples."""
    last = recent(looks, 2)
    if not last or not all((look.ranks or {}).get("same_rows", 0.0) > limits.SAME_ROWS.value for look in last):
        return None
    return Finding(
        name="ranks hold the same batch",
        severity="error",
        seen=f"{(last[-1].ranks or {})['same_rows']:.0%} of the rows of this process are as similar to the same rows of another "
        "process as to their own positives",
        means="Processes load the same samples, so more processes bring no more data, and copies of a sample are negatives.",
        do="Give the DataLoader a DistributedSampler (and call sampler.set_epoch(epoch)), or split a streamed data set by rank; "
        "do not seed the order of the samples with the rank alone.",
    )


def gradient_across_ranks(looks: Looks) -> Finding | None:
    """A criterion whose gradient is not that of the whole batch."""
    ranks = looks[-1].ranks or {}
    if "agreement" not in ranks:
        return None
    agreement, factor, world = ranks["agreement"], ranks["factor"], ranks["world_size"]
    seen = (
        f"over {world:.0f} processes, the cosine between the gradient and that of the whole batch is {agreement:.4f} "
        f"(1 is exact), and the gradient is {factor:.3f} times as long"
    )
    if agreement < limits.AGREEMENT.value:
        return Finding(
            name="gradient differs across ranks",
            severity="error",
            seen=seen,
            means="The rows of other processes get no gradient, or are not compared at all: the update is not that of one "
            "process with the whole batch.",
            do="Gather with a gradient: contrapose.gather(z) (torch.distributed.all_gather has none), open_clip's "
            "gather_with_grad=True, or torch.distributed.nn.functional.all_gather.",
        )
    if abs(factor - 1) > limits.FACTOR.value:
        return Finding(
            name="gradient off by a factor",
            severity="warning",
            seen=seen,
            means="DistributedDataParallel divides gradients by the number of processes. The learning rate is in effect "
            f"multiplied by {factor:.3g}.",
            do="Multiply the loss by the number of processes if each computes the loss of the whole batch with gathered rows "
            "that have their own gradient only; contrapose.gather needs no factor.",
        )
    return None


CHECKS_OF_DATA: tuple[Check, ...] = (
    no_gradient,
    one_id,
    collapse,
    modality_gap,
    duplicates,
    false_negatives,
    not_shuffled,
    frozen_part,
    all_frozen,
    scale_at_bound,
    scale_not_learned,
    same_batch_on_ranks,
    gradient_across_ranks,
)
