"""`Doctor`: looks at a training loop now and then, and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from contrapose.distributed import world_size
from contrapose.doctor.call import Call, NotRead, read_call
from contrapose.doctor.checks import CHECKS
from contrapose.doctor.checks_of_data import CHECKS_OF_DATA
from contrapose.doctor.finding import Finding, worst_first
from contrapose.doctor.look import Action, Look
from contrapose.doctor.measure import measure_action, measure_pairs, measure_sides, precision_error
from contrapose.doctor.quiet import CannotAsk, copy_of, undisturbed
from contrapose.doctor.ranks import gradient_agreement, same_rows
from contrapose.doctor.scales import fingerprint, learned_numbers, parts_of
from contrapose.validate import check_number

T = TypeVar("T", bound=Callable[..., Any])
# The first steps show most mistakes, before an hour of training is lost.
_FIRST_STEPS = frozenset({1, 2, 4, 8, 16, 32})
Samples = Sequence[Any] | Tensor


class Doctor:
    """Looks at one batch in many of any training loop, and says what is wrong with it.

    criterion   the loss that the loop calls: a `Loss`, a criterion of another library, or a function of embeddings;
                None to check embeddings only
    every       look at one call in so many; some of the first 32 calls are looked at too
    model       the network, or its parts by name, such as {"image": image_tower, "text": text_tower}: also notice parts
                that do not train
    whole       with several processes: the same loss for one process, called with the embeddings of all of them, to compare
                its gradient with that of `criterion`
    alone       with several processes: whether only one of them looks, so that processes are not compared
    log         called with each finding when it first appears, such as `print`

    >>> import torch
    >>> from contrapose import Doctor, Loss, nt_xent
    >>> loss = Loss(nt_xent, temperature=0.5)
    >>> doctor = Doctor(loss)
    >>> z = torch.randn(32, 16, requires_grad=True)
    >>> doctor.see(z, z)  # what the criterion gets, in each step
    >>> print(doctor)
    1 step, 1 look, 1 finding
    error: identical views (step 1)
      seen: both embeddings are equal in 100% of the pairs
      means: The two views of a sample are the same input, so positives are as similar as they can be
        from the first step, and the loss only spreads samples apart.
      do: Augment each view on its own (call the transform twice), or keep dropout on (model.train()) if
        it makes the views; check that the criterion does not get the same tensor twice.

    A look changes nothing: not the criterion's state, gradients, or random numbers. Steps without gradients, as in an evaluation,
    are not counted. `doctor.watch()` makes `see` unnecessary, and `doctor.report("page.html")` writes a page.
    """

    def __init__(
        self,
        criterion: Callable[..., Any] | None = None,
        *,
        every: int = 50,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        whole: Callable[..., Tensor] | None = None,
        alone: bool = False,
        log: Callable[[str], Any] | None = None,
    ) -> None:
        check_number("every", every, least=1)
        if criterion is not None and not callable(criterion):
            raise ValueError(
                f"criterion: expected a module or a function of embeddings, got {type(criterion).__name__}"
            )
        self.criterion, self.every, self.whole, self.alone, self.log = criterion, every, whole, alone, log
        self.parts = parts_of(model)
        # A look copies a criterion's state, but not the network that a criterion of sentence-transformers holds.
        self._shared = tuple(model.values()) if isinstance(model, Mapping) else () if model is None else (model,)
        self.step = 0  # calls so far
        self.looks: list[Look] = []  # all of them, for the curves of the report
        self.left_out: dict[str, str] = {}  # checks that were left out, and why
        self.samples: dict[int, Any] = {}  # rows that findings name, from `see(samples=)`
        self._found: dict[str, Finding] = {}  # by name, as first seen
        self._is_looking = False
        self._hook: RemovableHandle | None = None

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, each as it first appeared, worst first."""
        return worst_first(list(self._found.values()))

    def watch(self) -> Any:
        """Return the criterion, to be called as before: each call is seen, so that the loop needs no further line."""
        criterion = self.criterion
        if isinstance(criterion, nn.Module):
            self.unwatch()
            self._hook = criterion.register_forward_pre_hook(_Watch(self), with_kwargs=True)
            return criterion
        if criterion is None:
            raise ValueError("criterion: expected a loss to watch, got None; write Doctor(loss)")
        return self._wrapped(criterion)

    def unwatch(self) -> None:
        """Stop seeing the calls of a criterion that is a module."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _wrapped(self, criterion: T) -> T:
        @wraps(criterion)
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.see(*arguments, **keywords)
            return criterion(*arguments, **keywords)

        return call  # type: ignore[return-value]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def see(self, *arguments: Any, samples: Samples | None = None, **keywords: Any) -> None:
        """Look at the arguments of a call of the criterion, if it is time for a look.

        arguments   what the criterion gets: embeddings (m, d) of two views or towers, labels, ids, a scale
        samples     the batch itself, images (m, 3, h, w) with values from 0 to 1 or texts, shown in the report if a finding
                    names a row
        keywords    further arguments of the criterion
        """
        if self._is_looking or not torch.is_grad_enabled() or _is_evaluating(self.criterion) or _is_capturing():
            return
        self.step += 1
        if self.step in _FIRST_STEPS or self.step % self.every == 0:
            self.look(*arguments, samples=samples, **keywords)

    def look(self, *arguments: Any, samples: Samples | None = None, **keywords: Any) -> list[Finding]:
        """Look at the arguments of a call of the criterion now; return what was found for the first time.

        arguments   as for `see`
        samples     as for `see`
        keywords    as for `see`
        """
        self._is_looking = True
        try:
            found = self._look(read_call(self.criterion or _nothing, arguments, keywords), samples)
            for name in ("all checks", "this look"):  # of an earlier look, such as a last batch of one row
                self.left_out.pop(name, None)
            return found
        except NotRead as error:
            self.left_out["all checks"] = str(error)
        except Exception as error:  # a mistake in a check must not end training
            self.left_out["this look"] = f"step {self.step}: {type(error).__name__}: {error}"
        finally:
            self._is_looking = False
        return []

    def remember(self, looks: Sequence[Look], findings: Sequence[Finding]) -> None:
        """Continue after earlier looks and findings, such as those of a training that was interrupted.

        looks      all looks so far
        findings   what was found in them, which is not reported again
        """
        self.looks, self._found = list(looks), {finding.name: finding for finding in findings}

    def _look(self, call: Call, samples: Samples | None) -> list[Finding]:
        with undisturbed(call.sides[0].device):
            look = self._measure(call)
        self.looks.append(look)
        fresh = []
        for check in (*CHECKS, *CHECKS_OF_DATA):
            finding = check(self.looks)
            if finding is not None and finding.name not in self._found:
                finding = replace(finding, step=look.step)
                self._found[finding.name] = finding
                fresh.append(finding)
                if self.log is not None:
                    self.log(str(finding))
                self._keep_samples(finding, samples)
        return fresh

    def _measure(self, call: Call) -> Look:
        action, error, reason = self._ask(call)
        scales, bounds = learned_numbers(self.criterion, call)
        return Look(
            **{
                "step": self.step,
                "batch": call.rows,
                "rows": call.rows,
                "width": call.sides[0].shape[1],
                "sides": measure_sides(call),
                "has_labels": call.labels is not None,
                **measure_pairs(call),
                "index_groups": _groups(call.ids),
                "label_groups": _lonely(call),
                "precision_error": error,
                "scales": scales or None,
                "bounds": bounds or None,
                "towers": fingerprint(self.parts) or None,
                "ranks": self._across_ranks(call),
                "action": action,
                "not_asked": reason,
            }
        )

    def _ask(self, call: Call) -> tuple[Action | None, float | None, str]:
        """Return what the criterion does, the error of its gradient through low precision, and why it was not asked."""
        if self.criterion is None:
            return None, None, "no criterion was given"
        # A criterion that gathers must be called on all processes with rows of the same space.
        criterion = self.criterion if world_size() == 1 else self.whole
        if criterion is None:
            reason = "with several processes, the criterion may gather: pass whole=, the same loss for one process"
            self.left_out["checks of the gradient"] = reason
            return None, None, reason
        action, error, reason = None, None, ""
        try:
            action = measure_action(call, partial(self._copy, criterion))
        except CannotAsk as cannot:
            reason = str(cannot)
            self.left_out["checks of the gradient"] = reason
        try:
            error = precision_error(call, self._copy(criterion))
        except Exception as failure:  # the criterion may accept only the batch size of training
            self.left_out["check of the precision"] = f"{type(failure).__name__}: {failure}"
        return action, error, reason

    def _copy(self, criterion: Callable[..., Any]) -> Callable[..., Any]:
        return copy_of(criterion, self._shared)

    def _across_ranks(self, call: Call) -> dict[str, float] | None:
        if self.alone or world_size() == 1 or len({len(side) for side in call.sides}) > 1:
            return None
        found = same_rows(call)
        if self.whole is not None and self.criterion is not None:
            found |= gradient_agreement(call, self._copy(self.criterion), self._copy(self.whole))
        return found

    def _keep_samples(self, finding: Finding, samples: Samples | None) -> None:
        rows = {row for group in finding.rows for row in group} if samples is not None else set()
        try:
            for row in rows:
                value = samples[row]  # type: ignore[index]
                self.samples[row] = value.detach().cpu() if isinstance(value, Tensor) else value
        except Exception as error:  # a batch of another form, such as a dictionary of tokens
            self.left_out["samples on the page"] = (
                f"samples: expected images or texts in order, {type(error).__name__}: {error}"
            )

    def report(self, path: str | Path) -> Path:
        """Write a page with the findings, curves of what was measured, and what was left out; return its path.

        path   file to write, such as "doctor.html"
        """
        from contrapose.doctor.page import write_page

        return write_page(Path(path), self.looks, self.findings, self.left_out, samples=self.samples)

    def __str__(self) -> str:
        return summary(self.step, len(self.looks), self.findings, self.left_out)


class _Watch:
    """The hook of a watched criterion. Copies and files of the criterion have one that sees nothing."""

    def __init__(self, doctor: Doctor | None = None) -> None:
        self.doctor = doctor

    def __call__(self, module: nn.Module, arguments: Any, keywords: Any) -> None:
        if self.doctor is not None:
            self.doctor.see(*arguments, **keywords)

    def __reduce__(self) -> tuple[type[_Watch], tuple[()]]:
        return _Watch, ()


def summary(steps: int, looks: int, findings: Sequence[Finding], left_out: Mapping[str, str]) -> str:
    """Return the findings as text, with what was left out."""
    head = ", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in ((steps, "step"), (looks, "look")))
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}" if findings else "nothing found"
    lines = [f"{head}, {count}", *map(str, findings)]
    lines += [f"left out: {what} ({why})" for what, why in left_out.items()]
    return "\n".join(lines)


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Stand for the criterion when only embeddings are checked."""


def _is_evaluating(criterion: Any) -> bool:
    return isinstance(criterion, nn.Module) and not criterion.training


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _groups(ids: Tensor | None) -> tuple[int, int] | None:
    return None if ids is None else (len(ids.unique()), len(ids))


def _lonely(call: Call) -> tuple[int, int] | None:
    """Return the number of different labels, and of rows whose label no other row has."""
    if call.labels is None or len(call.sides) > 1:
        return None
    _, sizes = call.labels.unique(return_counts=True)
    return len(sizes), int((sizes == 1).sum())
