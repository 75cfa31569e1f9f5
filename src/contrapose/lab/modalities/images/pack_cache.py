"""Packed copies in the user's cache folder: `train --pack` writes them once, and every later run on the same folder reads them.

All runs with views of one size share a copy, so it is not in a run's directory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from contrapose.lab.cached_files import cache_path, not_kept
from contrapose.lab.modalities.images.image_shards import is_image_shards
from contrapose.lab.modalities.images.load import class_list, limited, load
from contrapose.lab.modalities.images.packed import ENDING, pack, read_packed
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Split


def load_cached(settings: DataSettings, root: Path | None, views: Views) -> Split:
    """Load a data set: from its packed copy if there is a current one, else by name or path, as `load` does."""
    notes: tuple[str, ...] = ()
    if not settings.stream and _is_folder(settings.data):
        path = _copy_path(settings, views)
        split = _open_copy(path)
        if split is not None:
            note = f"data: read from the packed copy {path}, {path.stat().st_size / 1e6:,.1f} MB"
            return limited(replace(split, notes=(*split.notes, note)), settings.limit, settings.data)
        if path.exists():
            notes = (f"data: {path}, a packed copy, is out of date or damaged and not used; --pack writes it again",)
    held_out = _held_out(settings)
    loaded = load(
        settings.data,
        limit=settings.limit,
        root=root,
        classes=settings.classes,
        hold_out=held_out,
        skip_broken=settings.skip_broken,
    )
    return replace(loaded, notes=(*loaded.notes, *notes))


def pack_to_cache(settings: DataSettings, views: Views) -> Iterator[str]:
    """Write a packed copy of a folder for `load_cached`, unless there is a current one; yield a line before it is written."""
    if settings.stream:
        raise ValueError(
            "pack: --stream crops views from whole images, and a packed copy has squares of one size, so results would differ; "
            "leave out --stream: a packed copy stays on disk too"
        )
    if not _is_folder(settings.data):
        raise ValueError(f"pack: only a folder of images can be packed, got {settings.data}")
    path = _copy_path(settings, views)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:  # the run can read the folder itself
        yield not_kept(path, error)
        return
    # Several runs, and the processes of one run, may start at the same time: one of them packs, and the others wait for it.
    with opened as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _open_copy(path) is None:
            replaced = ", in place of a copy that is out of date or damaged" if path.exists() else ""
            yield f"packing the images of {settings.data} once, to {path}{replaced}"
            settings = replace(settings, hold_out=_held_out(settings))
            pack(settings, views, path, only=class_list(settings.classes), fingerprint=path.stem)


def _held_out(settings: DataSettings) -> float:
    """Return the share of images to hold out: none if other data is used for evaluation."""
    return 0.0 if settings.eval_data else settings.hold_out


def _is_folder(data: str) -> bool:
    """Return whether a data set is a folder of image files, and not of tars."""
    return Path(data).is_dir() and not is_image_shards(Path(data))


def _open_copy(path: Path) -> Split | None:
    """Open a packed copy; None if there is none, if it is damaged, or if the folder has changed since."""
    try:
        return read_packed(path, as_folder=True, fingerprint=path.stem) if path.is_file() else None
    except (OSError, ValueError):  # such as another user's copy in a shared folder
        return None


def _copy_path(settings: DataSettings, views: Views) -> Path:
    """Return the file of a folder's packed copy: a changed folder has the same file, so that old copies do not accumulate."""
    recipe, folder = views.recipes[0], os.path.realpath(settings.data)
    parts = _held_out(settings), settings.skip_broken, settings.max_megapixels, recipe.size, recipe.resized
    key = [folder, class_list(settings.classes), *parts]
    return cache_path("packed", f"{Path(folder).name}-{recipe.size}", key, ENDING)
