"""The entry page: which loss for which data, with a line of code and what the recorded runs say, from docs/choose.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from statistics import mean, stdev
from typing import Any

import conformance
import evidence_page
from evidence_page import BANK, EVEN, EXPONENTIAL, NO_NEGATIVES, SIMCLR, Protocol, averages

from contrapose.conformance.findings import Finding, worst
from generated import ROOT, texts

_NT_XENT = "NT-Xent, τ = 0.5 (SimCLR)"


def cards(kind: str) -> str:
    """Return the leaves of a kind, data or conditions, as cards: two in a row on a wide screen."""
    lines = ["``````{grid} 1 1 2 2", ":gutter: 2", ""]
    for leaf in texts("choose")[kind]:
        lines += [f"`````{{grid-item-card}} {leaf['title']}", f"```{language(leaf['code'])}", leaf["code"], "```", ""]
        lines += [leaf["evidence"].format(**figures()), ""]
        lines += ["```{card-footer}", f"[{leaf['link']}]({leaf['page']}.md)", "```", "`````", ""]
    return "\n".join([*lines, "``````"])


def least_difference() -> str:
    """Return by how many points two single runs must differ, as on the page of evidence."""
    return f"{evidence_page.least_difference():.1f}"


def language(code: str) -> str:
    """Return the language of a line of code."""
    return "bash" if code.startswith("contrapose ") else "python"


@cache
def figures() -> dict[str, str]:
    """Return the figures of the page by name, each with its standard deviation between seeds and the number of seeds."""
    each = evidence_page.EACH
    lead = evidence_page.accuracy(each, "DySTreSS") - evidence_page.accuracy(each, _NT_XENT)
    dino = next(name for name in averages(NO_NEGATIVES.results()) if name.startswith("DINO"))
    best = next(iter(averages(NO_NEGATIVES.results())))
    bank = next(name for name in averages(BANK.results()) if name.startswith("NT-Xent"))
    simcse = re.search(
        r" is above SimCSE in STS-average: (.+) against (.+)\n", (ROOT / "results/README.md").read_text()
    )
    assert simcse is not None
    return {
        "dystress": _accuracy(SIMCLR, "DySTreSS"),
        "nt_xent": _accuracy(SIMCLR, _NT_XENT),
        "nt_xent_low": _accuracy(SIMCLR, "NT-Xent, τ = 0.1"),
        "dcl": _accuracy(SIMCLR, "DCL, τ = 0.1"),
        "lead": f"{lead:.2f}",
        "simcse": simcse[2],
        "simcse_dystress": simcse[1],
        "dino": f"{dino} {_accuracy(NO_NEGATIVES, dino)}",
        "best": f"{best} {_accuracy(NO_NEGATIVES, best)}",
        "byol": _accuracy(NO_NEGATIVES, "BYOL"),
        "vicreg": _accuracy(NO_NEGATIVES, "VICReg"),
        "barlow_twins": _accuracy(NO_NEGATIVES, "Barlow Twins"),
        "captions": _captions(),
        "bank": _accuracy(BANK, bank),
        "bank_temperature": bank.partition("= ")[2],
        "tail_cacr": _accuracy(EXPONENTIAL, "CACR, one positive"),
        "tail_hard": _accuracy(EXPONENTIAL, "hard negatives (HN-CL)"),
        "tail_nt_xent": _accuracy(EXPONENTIAL, "NT-Xent, τ = 0.19"),
        "five_views": _accuracy(EVEN, "CACR, four positives"),
        "two_views": _accuracy(EVEN, "CACR, one positive"),
        "distributed": f"{_worst('distributed').figure:.0e}",
        "duplicates": conformance.cell(_worst("duplicates")),
    }


def _accuracy(protocol: Protocol, name: str) -> str:
    return _with_deviation([result.accuracy for result in averages(protocol.results())[name]])


def _with_deviation(values: Sequence[float]) -> str:
    return (
        f"{mean(values):.2f} ± {stdev(values):.2f} ({len(values)} seeds)"
        if len(values) > 1
        else f"{values[0]:.2f} (one seed)"
    )


def _captions() -> str:
    """Return each loss's text-to-image recall@10 in the runs from two pretrained encoders, the best loss first."""
    by_loss: dict[str, list[float]] = {}
    for path in sorted((ROOT / "results/captions").glob("*/run.json")):
        run: dict[str, Any] = json.loads(path.read_text())
        if (run["encoder"], run.get("text_encoder")) == ("efficientnet-lite0", "minilm"):
            last = json.loads((path.parent / "records.jsonl").read_text().splitlines()[-1])
            by_loss.setdefault(run["loss"].partition("(")[0], []).append(last["text_to_image_recall_10"])
    names = {"clip": "CLIP", "siglip": "SigLIP", "cacr": "CACR", "dystress": "DySTreSS"}
    ordered = sorted(by_loss.items(), key=lambda item: -mean(item[1]))
    return ", ".join(f"{names[loss]} {_with_deviation(values)}" for loss, values in ordered)


def _worst(check: str) -> Finding:
    """Return the worst finding of a check of our criterion."""
    rows = json.loads((ROOT / "benchmarks/conformance.json").read_text())["rows"]
    own = [row for row in rows if row["criterion"] == "contrapose" and row["check"] == check]
    return worst(Finding(**{key: value for key, value in row.items() if key != "criterion"}) for row in own)
