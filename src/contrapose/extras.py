"""Messages for what is not there: the extra that installs a missing package, and the name nearest to a misspelt one.

Nothing here imports torch, so that the command line can answer `--help` at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

# What `pip install 'contrapose[train]'` adds, by the names under which it is imported.
TRAIN_PACKAGES = frozenset(
    {"PIL", "matplotlib", "numpy", "plotly", "rich", "safetensors", "sklearn", "torchvision", "tyro"}
)
# The same of the extra `text`. scikit-learn requires scipy, and transformers requires tokenizers.
TEXT_PACKAGES = frozenset({"safetensors", "scipy", "sklearn", "tokenizers", "transformers"})


class MissingPackage(ModuleNotFoundError):
    """A package of an extra that is not installed; the message has the command that installs it."""


@contextmanager
def needs_extra(what: str, extra: str, packages: Collection[str]) -> Iterator[None]:
    """Name an extra if one of its packages is missing; `what` is what needs it, for the message."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in packages:
            raise
        raise MissingPackage(
            f"{what} needs {package}, which is not installed; install it with: pip install 'contrapose[{extra}]'",
            name=error.name,
        ) from error


@contextmanager
def train_extra(what: str) -> Iterator[None]:
    """Name the extra `train` if one of its packages is missing; `what` is what needs it, for the message."""
    with needs_extra(what, "train", TRAIN_PACKAGES):
        yield


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint at the known name most similar to this one, `; did you mean 'x'?`; empty if none is similar."""
    matches = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {matches[0]!r}?" if matches else ""
