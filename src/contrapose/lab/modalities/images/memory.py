"""Refuse data that would not fit in memory, before it is read."""

from __future__ import annotations

import os
from pathlib import Path


def check_memory(needed: int, what: str, advice: str) -> None:
    """Raise ValueError if `what`, a plural, need more than half of the free memory; training needs the other half."""
    free = free_memory()
    if free is not None and needed > free / 2:
        raise ValueError(
            f"data: {what} need {_gigabytes(needed)} of memory, more than half of the {_gigabytes(free)} that are free; {advice}"
        )


def free_memory() -> int | None:
    """Return the free memory in bytes; None if the platform does not report it."""
    try:
        # On Linux, free memory includes caches that the kernel would release.
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
