"""`contrapose data list`, `data check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from contrapose.cli import exits


@dataclass(frozen=True)
class DataList:
    """Name the data sets that need no path."""

    def __call__(self) -> None:
        """One line each."""
        from contrapose.data.load import NAMED

        for name, classes in NAMED.items():
            print(f"{name:10} {classes:4} classes   {'built in' if name == 'digits' else 'through torchvision'}")
        print(
            "or the path of a folder of images (train/ and test/ inside it, class folders inside those), or of an .npz file"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read every image of a folder once and name every broken file."""

    path: Positional[Path]
    """The folder."""

    def __call__(self) -> None:
        """Exit code 1 if a file is broken."""
        from contrapose.data.folder import check_folder

        count, problems = check_folder(self.path)
        for problem in problems:
            print(f"{problem.path}: {problem.why}")
        print(f"{count - len(problems):,} of {count:,} images can be read")
        if problems:
            raise SystemExit(exits.FAILED)
