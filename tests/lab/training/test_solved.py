"""A task that an untrained network solves: found in the first steps, and why training on must be avoided."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from contrapose.lab.cli import exits, main
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.text.modality import TEXT
from contrapose.lab.modalities.text.sentences import Sentences
from contrapose.lab.modalities.text.settings import TEXT_SETTINGS
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.solved import SolvedWatch, loss_of_guessing
from contrapose.lab.training.stops import Solved

CHANCE = math.log(127)  # SimCLR: 126 negatives and the positive


def watch() -> SolvedWatch:
    return SolvedWatch(Run(data="digits16", batch=64), steps_per_epoch=1000)


def test_a_loss_that_stays_far_below_guessing_is_reported_once() -> None:
    watched = watch()
    assert watched.chance == pytest.approx(CHANCE)
    found = [step for step in range(1, 100) if watched.add(step, 0.009 * CHANCE)]
    assert found == [21]
    assert watched.is_solved
    assert f"guessing ({CHANCE:.2f})" in watched.describe(21, digits(4, train=True))


def test_the_loss_of_prefixes_is_guessed_once_for_each() -> None:
    assert loss_of_guessing(Run(data="digits16", batch=64, dims=(8, 32, 128))) == pytest.approx(3 * CHANCE)


@pytest.mark.parametrize(
    "losses",
    [
        [0.011 * CHANCE] * 300,  # not low enough
        ([0.0] * 19 + [2.0]) * 15,  # not on average
        [1.0] * 185 + [0.0] * 100,  # not in the first steps
    ],
)
def test_a_task_that_takes_steps_to_learn_is_not_reported(losses: list[float]) -> None:
    watched = watch()
    assert not any(watched.add(step, loss) for step, loss in enumerate(losses, 1))


def test_a_small_data_set_that_is_memorised_is_not_reported() -> None:
    watched = SolvedWatch(Run(data="digits16", batch=64), steps_per_epoch=4)
    losses = [1.0] * 25 + [0.0] * 100
    assert not any(watched.add(step, loss) for step, loss in enumerate(losses, 1))


def test_a_gpu_reads_only_some_losses() -> None:
    watched = watch()
    assert [step for step in (20, 40, 60) if watched.add(step, 0.0)] == [40]


def test_losses_without_a_known_chance_level_and_pretrained_encoders_are_not_watched() -> None:
    assert loss_of_guessing(Run(data="digits16", loss="dcl(temperature=0.2)")) is None  # negative for good embeddings
    assert loss_of_guessing(Run(data="digits16", loss="vicreg", head="simclr")) is None
    assert loss_of_guessing(Run(data="a.txt", modality="text", encoder="hf:bert", views="dropout", batch=8)) is None
    scratch = Run(data="a.txt", modality="text", encoder="tiny", views="dropout", batch=8, framework="simcse")
    assert loss_of_guessing(scratch) == pytest.approx(math.log(8))


def trainer(folder: Path, *, stop: bool, messages: list[str]) -> Trainer:
    data = folder.parent / "sentences.txt"
    data.write_text("".join(" ".join(f"w{i * 7919 * k % 1009}" for k in range(1, 9)) + "\n" for i in range(1, 161)))
    settings = {"encoder": "tiny", "views": "dropout", "batch": 8, "epochs": 3, "lr": 1e-3, "metrics": 0, "warmup": 0.0}
    run = Run(**{**TEXT_SETTINGS, **settings, "data": str(data), "loss": "simclr(temperature=0.01)"})
    cache = folder.parent / "cache"
    return Trainer(run, folder, log=messages.append, device=torch.device("cpu"), data_root=cache, stop_if_solved=stop)


@pytest.mark.thorough
def test_a_run_with_default_views_stops_and_others_go_on(tmp_path: Path) -> None:
    messages: list[str] = []
    whole = trainer(tmp_path / "whole", stop=False, messages=messages)
    whole.train()
    assert sum("the task is too easy" in message for message in messages) == 1
    stopped = trainer(tmp_path / "stopped", stop=True, messages=[])
    with pytest.raises(Solved, match=r"--views deletion:0\.7.*run the same command again to continue"):
        stopped.train()
    assert stopped.step < whole.step // 2
    continued = trainer(tmp_path / "stopped", stop=True, messages=[])
    continued.train()
    assert continued.complete
    for name, value in whole.saved_state.state_dict().items():
        assert torch.equal(value, continued.saved_state.state_dict()[name]), name


def test_the_command_stops_with_a_message_if_it_has_chosen_the_views(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [" ".join(f"w{i * 7919 * k % 1009}" for k in range(1, 9)) for i in range(1, 241)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{row}\t{row}\n" for row in rows))  # both columns are equal
    settings = ["--encoder", "tiny", "--batch", "8", "--epochs", "1", "--metrics", "0", "--hold-out", "0"]
    settings += ["--loss", "simclr(temperature=0.01)", "--out", str(tmp_path / "run"), "--data-root", str(tmp_path)]
    with pytest.raises(SystemExit) as end:
        main(["train", "--data", str(tmp_path / "pairs.tsv"), *settings])
    assert end.value.code == exits.FAILED
    message = capsys.readouterr().err
    assert "contrapose: the task is too easy: after 2" in message
    assert "run the same command again to continue" in message
    assert "use pairs whose texts differ more, hard negatives in a third column, a larger --batch" in message
    assert "deletion" not in message


@pytest.mark.parametrize(
    ("views", "columns", "expected"),
    [
        ("dropout", 1, "--views deletion:0.7"),
        ("neighbours", 2, "--views deletion:0.7"),  # of single sentences, whose next lines are the second column
        ("dropout", 2, "--views columns"),
        ("columns", 2, "third column"),
    ],
)
def test_the_advice_fits_the_texts(views: str, columns: int, expected: str) -> None:
    source = Sentences("a.tsv", torch.zeros(4, columns, 3, dtype=torch.int32), tokenizer=None)
    advice = TEXT.harder_task(source, TEXT.views(views, 2))
    assert [text for text in ("--views deletion:0.7", "--views columns", "third column") if text in advice] == [
        expected
    ]


@pytest.mark.parametrize(("eps", "moved_far"), [(1e-8, True), (1e-3, False)])
def test_after_vanishing_gradients_one_small_gradient_moves_adam_far(eps: float, moved_far: bool) -> None:
    """Adam knows no size but that of recent gradients: the reason why the loss of a solved task may jump, much later."""
    weight, lr = torch.zeros(1, requires_grad=True), 1e-3
    optimiser = torch.optim.AdamW([weight], lr=lr, weight_decay=0.0, eps=eps)

    def step(gradient: float) -> None:
        weight.grad = torch.full((1,), gradient)
        optimiser.step()

    for number in range(2000):
        step(1e-9 * (-1) ** number)  # the task is solved
    before = weight.item()
    step(1e-4)  # one sample is not recognised; its gradient is small
    for _ in range(50):
        step(0.0)
    moved = abs(weight.item() - before)
    assert moved > 25 * lr if moved_far else moved < lr
