"""Import paths that earlier releases had, in README and docs too, still lead to the same objects, with a warning."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from contrapose.moved import MOVED


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("contrapose.negatives", "hardest"),
        ("contrapose.report.loss", "explain_figure"),
        ("contrapose.evaluation", "caption_recall"),
        ("contrapose.modalities.captions.files", "open_captions"),
        ("contrapose.modalities.captions.pretrained", "load_image_text_model"),
        ("contrapose.training", "Trainer"),
    ],
)
def test_a_former_path_leads_to_the_same_object(former: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = next(path for path in MOVED if former.startswith(path))
    current = former.replace(package, MOVED[package])
    module = import_module(current)
    for path in [path for path in sys.modules if path.startswith(package)]:
        monkeypatch.delitem(sys.modules, path)
    with pytest.warns(DeprecationWarning, match=f"{package} is now {MOVED[package]}"):
        again = import_module(former)
    assert getattr(again, name) is getattr(module, name)
    assert module.__spec__ is not None
    assert module.__spec__.name == current


def test_other_paths_are_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"contrapose.trainings"):
        import_module("contrapose.trainings")
