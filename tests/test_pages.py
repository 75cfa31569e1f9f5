"""Pages of documentation: their Python code runs, their commands are parsed by the command line, and cheap ones are run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean
from threading import Thread
from typing import Any

import evidence_page
import pytest
from pages import ROOT, Block, blocks, command_lines, own_arguments, parse

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.imbalance import cacr_exponential, cacr_linear
from contrapose.lab.studies import STUDIES

DOCS = ROOT / "docs"
Names = dict[str, Any]
_ELSEWHERE = ("integrations",)  # tests/integrations/test_docs.py runs its examples
# Commands that are run and not only parsed: a regular expression of their beginning, by page.
_RUN: Mapping[str, str] = {
    "install": r"contrapose( --version)?$",
    "imbalanced": r"contrapose (train --data digits|embed)",
    "reproduce-a-table": r"contrapose study (list|show|run behaviour/figure3)",
    "export-and-serve": "contrapose",
    "mining": r"contrapose (train --data (pydoc|mined.tsv)|mine runs/first)",
    "file-formats": "contrapose",
    "doctor": "contrapose",
    "nested": r"contrapose (train --data pydoc --limit|evaluate runs/nested --|export)",
}
_QUICK = ("conformance", "install", "large-batches", "python", "several-gpus", "stability")


def caption_files() -> Names:
    """Write the files that the page on captions names, and return the names that it leaves to the reader."""
    import torch
    from captioned import png, run_of, trainer_of, write_folder
    from clip_folders import save_clip

    for number, name in enumerate(("one.jpg", "two.jpg", "beach.jpg", "street.jpg")):
        Path(name).write_bytes(png(("red", "green", "blue", "white")[number]))
    trainer_of(run_of(write_folder(Path("flickr8k"))), Path("runs/NAME")).train()
    save_clip(Path("models/clip-b32"))
    return {"labels": torch.tensor([0, 1])}


_PREPARED: Mapping[str, Callable[[], Names]] = {"captions": caption_files}


def page_cases() -> list[Any]:
    """Return a test case for each page with Python code, or with commands to run; those that train are thorough."""
    pages = {page.stem: blocks(page) for page in sorted(DOCS.glob("*.md"))}
    names = [name for name, found in pages.items() if name in _RUN or any(each.language == "python" for each in found)]
    marks = {name: () if name in _QUICK else (pytest.mark.thorough,) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names if name not in _ELSEWHERE]


@pytest.mark.parametrize("name", page_cases())
@pytest.mark.filterwarnings("ignore:contrapose.training is now contrapose.lab.training")  # docs/stability.md shows it
def test_code_runs_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: Names = {"__name__": name, **_PREPARED.get(name, dict)()}
    for block in blocks(DOCS / f"{name}.md"):
        if block.file_name:
            Path(block.file_name).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, name, "exec"), names)
        elif name in _RUN:
            run_commands(block, _RUN[name])
    if Path("server.py").exists():
        check_server()


def run_commands(block: Block, beginning: str) -> None:
    """Run the commands of a block that begin as the regular expression says."""
    for words in command_lines(block):
        if re.match(beginning, " ".join(words)):
            main(words[1:])


def check_server() -> None:
    """Send an image, and something else, to the server that a page shows."""
    from http.server import HTTPServer

    names: Names = {"__name__": "server"}
    exec(compile(Path("server.py").read_text(), "server.py", "exec"), names)
    with HTTPServer(("127.0.0.1", 0), names["Handler"]) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for content, status, key in ((Path("photo.png").read_bytes(), 200, "features"), (b"text", 400, "error")):
            connection = HTTPConnection(*server.server_address[:2])  # type: ignore[arg-type]
            connection.request("POST", "/", content)
            answer = connection.getresponse()
            assert answer.status == status
            assert key in json.loads(answer.read())
            connection.close()
        server.shutdown()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.stem)
def test_commands_have_options_that_exist(page: Path) -> None:
    for block in blocks(page):
        for words in command_lines(block):
            arguments = own_arguments([re.sub(r"^SEED$|\$\{?\w+\}?", "0", word) for word in words])
            if arguments is not None:
                parse(arguments)


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["train", "--no-such-option", "1"])
    with pytest.raises(StopIteration):
        parse(["no-such-command"])


@pytest.mark.thorough
def test_the_loop_for_several_gpus_runs_in_two_processes(tmp_path: Path) -> None:
    page = blocks(DOCS / "several-gpus.md")
    (script,) = [block for block in page if block.file_name]
    (words,) = [words for block in page for words in command_lines(block) if words[-1] == script.file_name]
    (tmp_path / script.file_name).write_text(script.text)
    command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+) of 256 samples", printed)]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


@pytest.mark.thorough
def test_the_smoke_run_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = blocks(DOCS / "reproduce-a-table.md")
    (words,) = [words for block in page for words in command_lines(block) if "contrastive τ = 0.2" in words]
    (shown,) = [block.text for block in page if block.language == "text"]
    main(words[1:])
    printed = capsys.readouterr().out
    # Accuracies and seconds depend on the machine; names of runs and of the report, claims and verdicts do not.
    fixed = re.compile(r"digits-nt_xent-\w+|reports/\S+|behaviour/figure9: undecided: .*")
    assert set(fixed.findall(shown)) == set(fixed.findall(printed))


def test_the_memory_table_is_that_of_the_benchmark() -> None:
    with (ROOT / "benchmarks" / "wide-h200.jsonl").open() as file:
        rows = [row for row in map(json.loads, file) if row.get("loss") == "nt_xent" and row.get("dtype") == "bfloat16"]
    measured = {
        (row["who"], row["n"], row["d"]): (f"{row['mib']:,.0f}", f"{row['ms']:.2f}") for row in rows if "ms" in row
    }
    text = (DOCS / "large-batches.md").read_text()
    table = re.findall(r"^\| ([\d,]+) \| (\d+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert len(table) == 6
    for n, d, ours_mib, plain_mib, ours_ms, plain_ms in table:
        size = int(n.replace(",", "")), int(d)
        assert measured["ours", *size] == (ours_mib, ours_ms)
        assert measured.get(("PyTorch", *size), ("not run", "not run")) == (plain_mib, plain_ms)


def test_the_table_of_imbalanced_classes_is_that_of_the_evidence() -> None:
    evidence = (DOCS / "evidence.md").read_text()
    section = (DOCS / "imbalanced.md").read_text().split("## What our evidence says")[1].split("##")[0]
    shown = re.findall(r"\b\d\d\.\d\d\b", section)
    assert len(shown) == 14
    assert all(f"[{accuracy}](" in evidence for accuracy in shown)
    assert f"must differ by about {evidence_page.least_difference():.1f} points" in section
    sizes = cacr_exponential(10, 5000)[::-1]
    assert f"{', '.join(f'{size:,}' for size in sizes[:-1])} and {sizes[-1]}, {sum(sizes):,} in all" in section
    assert f"{sum(cacr_linear(10, 5000)):,} in all" in section


def test_the_shares_of_the_push_are_those_of_the_records() -> None:
    text = (DOCS / "loss-does-not-move.md").read_text()
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    bank = re.findall(
        r"([\d.]+): (\d+) %, (\d\d\.\d\d)", rows["| NT-Xent with a memory bank of CIFAR-10, linear probe"]
    )
    assert len(bank) == 6
    for temperature, *shown in bank:
        assert shown == list(share_and_accuracy(evidence_page.BANK, f"NT-Xent, τ = {temperature}"))
    names = {
        "| NT-Xent in batches of 128, 200-NN": ("NT-Xent, τ = 0.1", "NT-Xent, τ = 0.5 (SimCLR)"),
        "| DCL, τ = 0.1, in batches of 128, 200-NN": ("DCL, τ = 0.1",),
        "| DySTreSS in batches of 128, 200-NN": ("DySTreSS",),
    }
    for row, losses in names.items():
        shown = re.findall(r"(\d+) %, (\d\d\.\d\d)", rows[row])
        assert shown == [share_and_accuracy(evidence_page.SIMCLR, name) for name in losses]
    trials = [json.loads(line) for line in (ROOT / "results" / "tune.jsonl").read_text().splitlines()]
    of_temperature = {
        run["loss"]: (f"{100 * run['push_on_hardest_1pct']:.0f}", f"{run['knn_top1']:.2f}")
        for run in trials
        if run["data"] == "cifar10.npz" and run["epochs"] == 5
    }
    (row,) = [line for line in rows.values() if "5 epochs, one seed" in line]
    shown_trials = re.findall(r"([\d.]+): (\d+) %, (\d\d\.\d\d)", row)
    assert len(shown_trials) == 5
    for temperature, *shown in shown_trials:
        assert tuple(shown) == of_temperature[f"simclr(temperature={temperature})"]


def share_and_accuracy(protocol: evidence_page.Protocol, name: str) -> tuple[str, str]:
    """Return the share of the push on the hardest 1 % in the last record that has it, in per cent, and the accuracy, as text."""
    results = evidence_page.averages(protocol.results())[name]
    shares = []
    for result in results:
        records = map(json.loads, (result.folder / "records.jsonl").read_text().splitlines())
        shares.append([record["push_on_hardest_1pct"] for record in records if "push_on_hardest_1pct" in record][-1])
    return f"{100 * mean(shares):.0f}", f"{mean(result.accuracy for result in results):.2f}"


def test_the_number_of_studies_is_on_the_page() -> None:
    (count,) = re.findall(r"Each of (\d+) tables", (DOCS / "command-line.md").read_text())
    assert int(count) == len(STUDIES)


def test_every_extra_is_on_the_page() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DOCS / "install.md").read_text()
    for extra in extras.keys() - {"docs", "test", "lint", "benchmark"}:
        assert f"`{extra}`" in text, extra


def test_every_file_of_a_run_is_on_the_page() -> None:
    text = (DOCS / "file-formats.md").read_text()
    sources = [
        *(ROOT / "src/contrapose/lab/training").rglob("*.py"),
        *(ROOT / "src/contrapose/lab/studies").glob("*.py"),
    ]
    written = {name for path in sources for name in re.findall(r'"(\w+\.jsonl?)"', path.read_text())}
    assert {"run.json", "records.jsonl", "extensions.json"} <= written
    assert {name for name in written if f"`{name}`" not in text} <= {"modules.json", "config.json"}
