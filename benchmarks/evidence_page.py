"""Write docs/evidence.md and docs/evidence.png from the recorded runs: what the four papers agree on, in one trainer.

    python benchmarks/evidence_page.py

Numbers in sentences are computed here, so that the page cannot say more than the records.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, variance
from typing import Any

from scipy.stats import t as student_t

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "evidence.md", ROOT / "docs" / "evidence.png"


@dataclass(frozen=True)
class Result:
    """One recorded run."""

    folder: Path
    name: str  # of the loss, with its temperature
    seed: int
    accuracy: float
    spread: float  # -U, how evenly embeddings are spread
    tolerance: float

    @property
    def link(self) -> str:
        """The accuracy, as a link to the run's records."""
        return f"[{self.accuracy:.2f}](../{self.folder.relative_to(ROOT)}/records.jsonl)"


@dataclass(frozen=True)
class Protocol:
    """Runs that differ only in their loss and seed, and may be compared."""

    title: str
    settings: str
    measure: str
    folder: str  # under results/
    choice: dict[str, object]  # settings of its runs in run.json
    name: Callable[[dict[str, Any]], str]  # the printed name of a run's loss

    def results(self) -> list[Result]:
        """Read the runs, sorted by accuracy."""
        found = []
        for path in sorted((ROOT / "results" / self.folder).glob("*/run.json")):
            run = json.loads(path.read_text())
            if any(run.get(name, _DEFAULTS.get(name)) != value for name, value in self.choice.items()):
                continue
            last = json.loads((path.parent / "records.jsonl").read_text().splitlines()[-1])
            accuracy = last["knn_top1"] if self.measure == "kNN" else _probe(path.parent)
            found.append(
                Result(path.parent, self.name(run), run["seed"], accuracy, -last["uniformity"], last["tolerance"])
            )
        return sorted(found, key=lambda result: -result.accuracy)


_DEFAULTS = {"imbalance": "", "view_count": 2, "norm_views": "together", "framework": "simclr"}
_CIFAR = "data/cifar10.npz"
_NAMES = {
    "simclr": "NT-Xent, τ = 0.5 (SimCLR)",
    "dcl": "DCL, τ = 0.1",
    "dcl(split_views=True)": "DCL, old form",
    "macl": "MACL",
    "dystress": "DySTreSS",
    "align_uniform": "alignment and uniformity",
    "cacr(t_neg=2.0)": "CACR, one positive",
    "cacr(t_neg=0.9)": "CACR, four positives",
    "cmc(temperature=0.19)": "CMC, four positives",
    "simple": "simple",
    "dino(teacher_temperature=0.04)": "DINO",
    "barlow_twins": "Barlow Twins",
    "vicreg": "VICReg",
    "w_mse(size=128)": "W-MSE",
}


def _name(run: dict[str, Any]) -> str:
    """Return the name of a run's loss with its main setting."""
    loss: str = run["loss"]
    kind, _, settings = loss.partition("(")
    temperature = settings.removeprefix("temperature=").split(",")[0].rstrip(")")
    if kind in ("simclr", "nt_xent") and temperature:
        return f"NT-Xent, τ = {temperature}"
    if kind == "hard_contrastive":
        return f"hard, τ = {temperature}"
    if kind == "balanced":
        return settings.rstrip(")").replace("alpha=", "α = ").replace("weight=", "λ = ")
    return {"hard_simple": "hard simple", "hard_negative": "hard negatives (HN-CL)"}.get(kind, _NAMES.get(loss, loss))


def _method(run: dict[str, Any]) -> str:
    """Return the name of a method without negatives; BYOL and SimSiam share a loss, and some have views of their own."""
    name = {"byol": "BYOL", "simsiam": "SimSiam"}.get(run["framework"], _name(run))
    return name if run["views"] == "simclr-cifar" else f"{name}, its own views"


SIMCLR = Protocol(
    "SimCLR's framework", "ResNet-18, batch 128, 200 epochs, batch norm over both views", "kNN", "runs",
    {"data": _CIFAR, "framework": "simclr", "encoder": "resnet18-cifar", "epochs": 200, "norm_views": "together"}, _name,
)  # fmt: skip
EACH = Protocol(
    "SimCLR's framework, statistics of each view", "The same, batch norm over each view", "kNN", "runs",
    SIMCLR.choice | {"norm_views": "each"}, _name,
)  # fmt: skip
CIFAR100 = Protocol(
    "SimCLR's framework on CIFAR-100", SIMCLR.settings, "kNN", "runs", SIMCLR.choice | {"data": "cifar100.npz"}, _name
)
NO_NEGATIVES = Protocol(
    "Methods without negatives", "ResNet-18, batch 128, 200 epochs, each with its own framework and head, and SimCLR's views "
    "unless it says otherwise; \"its own views\" are encoded one by one", "kNN", "baselines", {"data": _CIFAR}, _method,
)  # fmt: skip
BANK = Protocol(
    "A memory bank", "ResNet-18, 50 epochs, a quarter of the paper's; the hard losses have the 4,095 hardest negatives", "linear",
    "runs", {"data": _CIFAR, "framework": "memory-bank"}, _name,
)  # fmt: skip
BALANCED = Protocol(
    "The balanced loss", "ResNet-18, 25 epochs, a quarter of the paper's", "linear", "runs",
    {"data": _CIFAR, "framework": "simclr", "encoder": "resnet18-cifar", "epochs": 25}, _name,
)  # fmt: skip
EVEN, LINEAR, EXPONENTIAL = (
    Protocol(
        f"CACR's protocol, {classes}",
        "AlexNet, 50 epochs, a quarter of the paper's; batch 768, or 128 with four positives (five views)",
        "linear", "runs", {"data": _CIFAR, "encoder": "alexnet", "imbalance": imbalance}, _name,
    )
    for classes, imbalance in (
        ("balanced classes", ""),
        ("class sizes that fall linearly", "cacr-linear"),
        ("class sizes that fall exponentially", "cacr-exponential"),
    )
)  # fmt: skip
PROTOCOLS = (SIMCLR, EACH, CIFAR100, NO_NEGATIVES, BANK, BALANCED, EVEN, LINEAR, EXPONENTIAL)


def _probe(folder: Path) -> float:
    evaluations = json.loads((folder / "evaluations.json").read_text())
    return next(float(value) for name, value in evaluations.items() if name.startswith("linear:"))


def averages(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of each loss, those of the best loss first."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.name].append(result)
    return dict(sorted(groups.items(), key=lambda item: -mean(result.accuracy for result in item[1])))


def seed_deviation() -> tuple[float, int]:
    """Return the standard deviation between seeds, pooled over all losses with several seeds, and their number."""
    groups = [own for protocol in (SIMCLR, EACH) for own in averages(protocol.results()).values() if len(own) > 1]
    pooled = mean(variance([result.accuracy for result in own]) for own in groups)
    return float(pooled**0.5), len(groups)


def least_difference() -> float:
    """Return by how many points two single runs must differ at the 95 % level; each group of two seeds adds a degree of freedom."""
    deviation, groups = seed_deviation()
    return float(student_t.ppf(0.975, groups)) * 2**0.5 * deviation


def accuracy(protocol: Protocol, name: str) -> float:
    """Return the mean accuracy of a loss."""
    return mean(result.accuracy for result in averages(protocol.results())[name])


def table(protocol: Protocol) -> str:
    """Return the runs of a protocol as a table in Markdown, best loss first."""
    head = "kNN-200 accuracy, %" if protocol.measure == "kNN" else "accuracy of a linear probe, %"
    lines = [f"| loss | {head} | mean | -U | T |", "|---|---|---|---|---|"]
    for name, results in averages(protocol.results()).items():
        links = " ".join(result.link for result in sorted(results, key=lambda result: result.seed))
        own = [mean(getattr(result, part) for result in results) for part in ("accuracy", "spread", "tolerance")]
        lines.append(f"| {name} | {links} | {own[0]:.2f} | {own[1]:.2f} | {own[2]:.2f} |")
    return "\n".join(lines)


def race_changes() -> dict[str, float]:
    """Return the accuracies of the race's first series of changes, on whole images of 32 pixels."""
    lines = [json.loads(line) for line in (ROOT / "results" / "race.jsonl").read_text().splitlines()]
    return {line["change"]: line["accuracy"]["32"] for line in lines if line.get("series") == 1}


def page() -> str:
    """Return the page."""
    race = race_changes()
    deviation, groups = seed_deviation()
    compared = [protocol.results() for protocol in (SIMCLR, BANK, BALANCED, EVEN, LINEAR, EXPONENTIAL)]
    not_most = sum(own[0].spread < max(result.spread for result in own) for own in compared)
    upper = sum(2 * own[0].spread > sum(f(r.spread for r in own) for f in (min, max)) for own in compared)
    balanced, most = compared[2][0], max(compared[2], key=lambda result: result.spread)
    soft, hard = ([r for r in compared[1] if r.name.startswith(kind)] for kind in ("NT-Xent", "hard, "))
    probes, votes = ([_range(own, read) for own in (soft, hard)] for read in (_accuracy, _knn))
    one, constant = "CACR, one positive", "NT-Xent, τ = 0.19"
    gains = [accuracy(p, one) - accuracy(p, constant) for p in (EVEN, LINEAR, EXPONENTIAL)]
    four = [accuracy(p, "CACR, four positives") - accuracy(p, one) for p in (EVEN, EXPONENTIAL)]
    hn, cmc = (
        max(abs(accuracy(p, first) - accuracy(p, second)) for p in protocols)
        for first, second, protocols in (
            ("hard negatives (HN-CL)", one, (EVEN, LINEAR, EXPONENTIAL)),
            ("CMC, four positives", "CACR, four positives", (EVEN, EXPONENTIAL)),
        )
    )
    simclr, dystress = "NT-Xent, τ = 0.5 (SimCLR)", "DySTreSS"
    adaptive = [accuracy(SIMCLR, name) for name in ("MACL", dystress, "DCL, τ = 0.1")]
    gap = [accuracy(p, dystress) - accuracy(p, simclr) for p in (SIMCLR, EACH)]
    bank = max(soft, key=lambda result: result.accuracy)
    byol, hundred = NO_NEGATIVES.results()[0], CIFAR100.results()
    sections = "\n\n".join(f"### {p.title}\n\n{p.settings}.\n\n{table(p)}" for p in PROTOCOLS)
    return f"""# What the four papers agree on, measured in one trainer

Written by `python benchmarks/evidence_page.py` from the runs in [results](../results/README.md): CIFAR-10 (a lossy copy, 42.8 dB), one
H200, bf16, last epoch. Accuracies can be compared within a table; across tables, encoder, length and measure differ. Each accuracy
links to its run. -U says how evenly embeddings are spread (larger is more even), T, the tolerance, how close embeddings of one class are.

![Accuracy against uniformity and against tolerance, for every loss and temperature](evidence.png)

## In short

1. **Spread embeddings out, but not as far as possible.** In {upper} of {len(compared)} comparisons, the most accurate loss is in the upper half
   of -U; in {not_most} of them, another loss spreads embeddings more evenly and is less accurate. Wang & Liu call this a dilemma, Lee a
   balance of attraction and repulsion: the best balanced loss is {balanced.name} ({balanced.accuracy:.2f} %, -U {balanced.spread:.2f});
   {most.name} spreads more (-U {most.spread:.2f}) and reaches {most.accuracy:.2f} %.
2. **MACL, DySTreSS and DCL are above NT-Xent at both temperatures that we ran.** The best constant temperature depends on the framework:
   {bank.name.split("= ")[1]} with a memory bank, whereas in SimCLR's framework 0.5 is {accuracy(SIMCLR, simclr) - accuracy(SIMCLR, "NT-Xent, τ = 0.1"):.1f} points above 0.1. MACL and DySTreSS, whose temperature adapts, and
   DCL are {min(adaptive) - accuracy(SIMCLR, simclr):.1f} to {max(adaptive) - accuracy(SIMCLR, simclr):.1f} points above NT-Xent at 0.5, and within {max(adaptive) - min(adaptive):.1f} of each other.
3. **A lead of one point depends on details.** DySTreSS is {gap[0]:.2f} points above SimCLR if batch norm sees both views together, and
   {gap[1]:.2f} if it sees each view, as in the authors' code. The paper prints 2.03, for the best epoch.
4. **Hard negatives make the temperature matter less.** From τ = 0.07 to 1, the kNN accuracy of the contrastive loss varies by {votes[0]:.1f}
   points, and that of the hard contrastive loss by {votes[1]:.1f}. A linear probe does not show this ({probes[0]:.1f} and {probes[1]:.1f}).
5. **On imbalanced classes the loss matters at least as much.** CACR's lead over NT-Xent, with one positive each, is {gains[0]:.1f} points on balanced
   classes, {gains[1]:.1f} where class sizes fall linearly and {gains[2]:.1f} where they fall exponentially. Hard negatives (HN-CL) stay within {hn:.1f} points of
   CACR, which one seed cannot tell apart; the paper has CACR ahead.
6. **More views gain more than another loss.** CACR with four positives is {four[0]:.1f} points above CACR with one on balanced and {four[1]:.1f} on exponentially
   imbalanced classes. That protocol has five views in batches of 128 in place of 768: 2.5 times the computation and six times the steps,
   so the views alone may gain less. CMC, with as many views, is up to {cmc:.1f} points above CACR.
7. **Negatives are not needed.** With SimCLR's views, VICReg ({accuracy(NO_NEGATIVES, "VICReg"):.2f}) and BYOL ({accuracy(NO_NEGATIVES, "BYOL"):.2f}) are close to the best contrastive
   loss ({max(adaptive):.2f}); {byol.name.replace(", its", " with its")} has the highest accuracy of all ({byol.accuracy:.2f}), at -U {byol.spread:.2f}. Uniformity tells contrastive losses
   apart, not methods.
8. **In short training the optimiser matters more than the loss.** After 4 million views, in [the race](../results/README.md#the-race-cifar-10-without-labels-to-90--examplesracepy),
   NT-Xent at 0.5 has {race["two views (baseline)"]:.2f} % (10-NN) with Muon and {race["SGD, rate 0.24"]:.2f} % with SGD, the better of two rates; with views of 32 pixels in place of 24,
   {race["views of 32 pixels"]:.2f} %. Of the losses, DySTreSS has {race["DySTreSS"]:.2f} %, NT-Xent at 0.2 {race["temperature 0.2"]:.2f} % and DCL at 0.1 {race["DCL, temperature 0.1"]:.2f} %.

## How much of this is chance

The standard deviation between seeds is {deviation:.2f} points (pooled over {groups} losses with two seeds each, 200 epochs), so two single runs must
differ by about {least_difference():.1f} points before the difference means anything (95 % level). Points 1 and 4 to 8 rest on one seed for each loss; 1, 4, 5 and 6 on
runs with a quarter of the printed epochs, where seeds may differ more. Everything here is CIFAR-10. On CIFAR-100, with one seed, DySTreSS is
{hundred[0].accuracy - hundred[1].accuracy:.1f} points above SimCLR (joint statistics). ImageNet was not run.

## What to do

- Start with `nt_xent(pairs, temperature=cosine(0.07, 0.2))` (DySTreSS), and look at -U and T: `contrapose compare` shows both.
- If you keep a constant temperature, try 0.1, 0.2 and 0.5: `contrapose compare --temperatures 0.1 0.2 0.5`.
- If you can afford more computation, try more views before other losses: `views(z)` takes any number.
- On imbalanced data, compare `cacr`, `hard_negative` and `dystress` on your own classes; one point on CIFAR-10 tells little about them.
- If negatives are often wrong, or batches small, try VICReg or BYOL.
- If training must be short, try the optimiser and smaller views first: `examples/race.py` has both.

## All runs

{sections}
"""


def _range(results: Sequence[Result], read: Callable[[Result], float]) -> float:
    values = [read(result) for result in results]
    return max(values) - min(values)


def _accuracy(result: Result) -> float:
    return result.accuracy


def _knn(result: Result) -> float:
    return float(json.loads((result.folder / "records.jsonl").read_text().splitlines()[-1])["knn_top1"])


def draw() -> None:
    """Draw accuracy against -U and against T for four protocols."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    panels = (SIMCLR, BANK, BALANCED, EVEN)
    figure, axes = plt.subplots(2, len(panels), figsize=(13, 7), sharey="col", layout="constrained")
    for column, protocol in enumerate(panels):
        results = protocol.results()
        kinds = [_kind(result.name) for result in results]
        for row, (part, label) in enumerate(
            (("spread", "-U: spread evenly →"), ("tolerance", "T: classes together →"))
        ):
            axis = axes[row, column]
            for number, kind in enumerate(sorted(set(kinds))):
                own = [result for result, own_kind in zip(results, kinds, strict=True) if own_kind == kind]
                axis.scatter(
                    [getattr(result, part) for result in own], [result.accuracy for result in own],
                    marker="osD^vP"[number % 6], s=34, color=f"C{number}", label=kind,
                )  # fmt: skip
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0, column].set_title(protocol.title, fontsize=11)
        axes[0, column].set_ylabel("kNN-200 accuracy, %" if protocol.measure == "kNN" else "linear probe, %")
        axes[1, column].set_ylabel(axes[0, column].get_ylabel())
        axes[1, column].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncol=2, frameon=False)
    figure.savefig(PICTURE, dpi=110)


def _kind(name: str) -> str:
    """Return the family of a loss, for the legend: its name without its temperature or weight."""
    return name.split(", τ")[0].split(", λ")[0]


if __name__ == "__main__":
    PAGE.write_text(page())
    draw()
