"""Error messages for missing packages (which extra installs them) and misspelt names (the most similar known name).

Nothing here imports torch, so that the command line can answer `--help` at once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Packages that the extra `train` installs, by import name.
TRAIN_PACKAGES = frozenset(
    {"PIL", "matplotlib", "numpy", "plotly", "rich", "safetensors", "sklearn", "torchvision", "tyro"}
)
# Packages that the extra `text` installs. scikit-learn requires scipy, and transformers requires tokenizers.
TEXT_PACKAGES = frozenset({"safetensors", "scipy", "sklearn", "tokenizers", "transformers"})


class MissingPackage(ModuleNotFoundError):
    """Raised when a package from an extra is not installed; the message contains the command that installs it."""


def install_command(extras: str) -> str:
    """Return the command that adds extras, such as "train,text", to this installation of contrapose.

    If contrapose was installed from a clone, the command names the clone's path, since a package index may not have contrapose.
    """
    source = _clone()
    if source is None:
        return f"pip install 'contrapose[{extras}]'"
    return f"pip install '{'.' if source == Path.cwd() else source}[{extras}]'"


def _clone() -> Path | None:
    """Return the clone that contrapose was installed from, if it still exists."""
    # Imported here: these would double the time of `contrapose --help`.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    candidates = [Path(__file__).resolve().parents[2]]  # an editable installation, or a directory on Python's path
    with suppress(PackageNotFoundError, ValueError, KeyError):
        # pip writes this file (PEP 610) for packages that it does not install from an index.
        record = distribution("contrapose").read_text("direct_url.json")
        url = urlsplit(json.loads(record)["url"]) if record else urlsplit("")
        candidates += [Path(url2pathname(url.path))] if url.scheme == "file" else []
    return next((folder for folder in candidates if (folder / "pyproject.toml").is_file()), None)


@contextmanager
def needs_extra(what: str, extra: str, packages: Collection[str]) -> Iterator[None]:
    """Raise an error that names the extra if one of its packages is missing; `what` names the feature that needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in packages:
            raise
        raise MissingPackage(
            f"{what} needs {package}, which is not installed; install it with: {install_command(extra)}",
            name=error.name,
        ) from error


@contextmanager
def train_extra(what: str) -> Iterator[None]:
    """Raise an error that names the extra `train` if one of its packages is missing; `what` names the feature."""
    with needs_extra(what, "train", TRAIN_PACKAGES):
        yield


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the hint `; did you mean 'x'?` with the most similar known name; empty if no known name is similar."""
    from difflib import get_close_matches

    lower = {other.lower(): other for other in known}
    matches = get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return f"; did you mean {lower[matches[0]]!r}?" if matches else ""
