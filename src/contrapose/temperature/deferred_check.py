"""Check a number on a GPU without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from contrapose.validate import values_may_be_read


class DeferredCheck:
    """Checks numbers that change in every step, one or more steps later.

    A loss that waited for the device in every step would leave the device idle while the host prepares the next step. Only one
    number is in transit at a time; numbers passed in before it has arrived are not checked.
    """

    def __init__(self) -> None:
        self._arrival: torch.cuda.Event | None = None
        self._number: Tensor | None = None  # the number on the host, once it has arrived
        self._check: Callable[[float], None] | None = None

    def __call__(self, value: Tensor, check: Callable[[float], None]) -> None:
        """Check the number that has arrived on the host, if any, and send a new one, which a later call will check."""
        if not values_may_be_read(value) or (self._arrival is not None and not self._arrival.query()):
            return
        if self._check is not None and self._number is not None:
            earlier_check, arrived = self._check, float(self._number)
            self._arrival = self._number = self._check = None
            earlier_check(arrived)
        self._number, self._arrival, self._check = torch.empty((), pin_memory=True), torch.cuda.Event(), check
        self._number.copy_(value.detach(), non_blocking=True)
        self._arrival.record(torch.cuda.current_stream(value.device))
