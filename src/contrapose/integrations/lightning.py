"""The doctor as a callback of Lightning: `Trainer(callbacks=[DoctorCallback()])`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from contrapose.doctor import Doctor

if TYPE_CHECKING or ("lightning" not in sys.modules and "pytorch_lightning" in sys.modules):
    from pytorch_lightning.callbacks import Callback
else:  # the package that is imported already; Lightning has two names
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        from pytorch_lightning.callbacks import Callback


class DoctorCallback(Callback):  # type: ignore[misc]
    """Looks at the criterion of a LightningModule, prints each finding once, and writes a page at the end.

    criterion   name of the module's attribute that is the loss, such as "criterion" for `self.criterion(z1, z2)`
    report      file of the page; None to write none
    settings    settings of `Doctor`, such as every=100
    """

    def __init__(self, criterion: str = "criterion", *, report: str | Path | None = None, **settings: Any) -> None:
        self.criterion, self.report_path = criterion, report
        self.settings = {"log": print, **settings}
        self.doctor: Doctor | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch the criterion."""
        found = getattr(pl_module, self.criterion, None)
        if not isinstance(found, nn.Module):
            raise ValueError(
                f"criterion: expected the name of a loss that is a module, such as self.criterion = Loss(nt_xent), "
                f"got {self.criterion!r}, which is {type(found).__name__}"
            )
        parts = {name: part for name, part in pl_module.named_children() if name != self.criterion}
        parts = {name: part for name, part in parts.items() if any(True for _ in part.parameters())}
        if not trainer.is_global_zero:  # each finding once
            self.settings["log"] = None
        if self.doctor is not None:  # an earlier fit
            self.doctor.unwatch()
        self.doctor = Doctor(found, **{"model": parts or None, **self.settings})
        self.doctor.watch()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the page."""
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the page if training ends early, after Ctrl-C or an error."""
        self._end(trainer)

    def _end(self, trainer: Any) -> None:
        if self.doctor is not None:
            self.doctor.unwatch()
            if self.report_path is not None and trainer.is_global_zero:
                self.doctor.report(self.report_path)
