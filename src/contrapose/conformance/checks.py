"""The checks: each takes a criterion and yields one finding per case."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contrapose.conformance.findings import Finding
from contrapose.conformance.measure import (
    MakeCriterion,
    Outcome,
    attempt,
    compare,
    evaluate,
    ids_argument,
    measure,
)
from contrapose.conformance.processes import check_picklable, distributed_gradient, whole_batch_gradient
from contrapose.conformance.references import REFERENCES, Reference
from contrapose.validate import check_known

# By case: the number of processes, and whether FSDP2 divides the encoder among them
PROCESSES = {"2 processes": (2, False), "4 processes": (4, False), "2 processes, FSDP2": (2, True)}
EXACT = 1e-6  # relative tolerance in float64; criteria that compute internally in float32 stay below it
LOW_PRECISION = 0.05  # relative tolerance of bf16 and fp16
EXPLODING = 1e6  # a gradient this large, from embeddings of length 1, ruins a training run
TEMPERATURE = 0.1  # for all checks except those at low temperatures


@dataclass(frozen=True)
class Subject:
    """The subject of a check: a criterion, its distributed form if it has one, and the loss that it should compute."""

    make: MakeCriterion
    distributed: MakeCriterion | None
    reference: Reference

    def measured(
        self, z1: Tensor, z2: Tensor, *, temperature: float = TEMPERATURE, autocast: torch.dtype | None = None
    ) -> Outcome:
        """Return the criterion's value and gradient."""
        return measure(self.make(temperature), z1, z2, autocast=autocast)

    def expected(self, z1: Tensor, z2: Tensor, *, temperature: float = TEMPERATURE) -> Outcome:
        """Return the reference's value and gradient in float64, on the same embeddings."""
        return measure(partial(_reference_of, self.reference, temperature), z1.double(), z2.double())


def _reference_of(reference: Reference, temperature: float, z1: Tensor, z2: Tensor) -> Tensor:
    return reference(z1, z2, temperature)


def check(
    make: MakeCriterion,
    *,
    distributed: MakeCriterion | None = None,
    reference: str | Reference = "nt_xent",
    checks: Sequence[str] = (),
) -> list[Finding]:
    """Run all checks, or the given ones, on any criterion for two views or two towers, and return the findings.

    `make(temperature)` returns a criterion: a function or module that maps two embeddings (m, d) to a scalar. If the criterion
    also takes `ids` or `indices`, the data-set index of each sample, the check of duplicates passes them.
    `distributed(temperature)` returns the criterion's distributed form. This function is called in each process, in an
    initialised process group, and must be defined at the top level of a module.

    `reference` is the loss that the criterion should compute: "nt_xent", "info_nce" (one direction), "clip", "siglip", or a
    function of (z1, z2, temperature).

        failures = [finding for finding in check(MyLoss) if finding.failed]
        assert not failures, failures
    """
    for name in checks:
        check_known("checks", name, CHECKS)
    if isinstance(reference, str):
        check_known("reference", reference, REFERENCES)
        reference = REFERENCES[reference]
    if distributed is not None:
        check_picklable(distributed)
    subject = Subject(make, distributed, reference)
    return [finding for name in checks or CHECKS for finding in CHECKS[name](subject)]


def check_formula(subject: Subject) -> Iterator[Finding]:
    """Compare value and gradient with the reference, in float64."""
    z1, z2 = make_views(noise=1.0)
    for temperature in (0.1, 0.5):
        yield compare(
            "formula",
            f"temperature {temperature}",
            partial(subject.measured, z1, z2, temperature=temperature),
            expected=subject.expected(z1, z2, temperature=temperature),
            tolerance=EXACT,
        )


def check_distributed(subject: Subject) -> Iterator[Finding]:
    """Compare the gradient averaged over processes with the gradient of one process with the whole batch."""
    if subject.distributed is None:
        yield Finding("distributed", "2 and 4 processes", "not offered", note="no form for several processes")
        return
    expected = attempt("distributed", "one process", partial(whole_batch_gradient, subject.make, TEMPERATURE))
    if isinstance(expected, Finding):
        yield expected
        return
    for case, (world_size, divided) in PROCESSES.items():
        measure_gradient = partial(distributed_gradient, subject.distributed, TEMPERATURE, world_size, divided=divided)
        gradient = attempt("distributed", case, measure_gradient)
        yield gradient if isinstance(gradient, Finding) else _compare_gradients(case, gradient, expected)


def _compare_gradients(case: str, gradient: Tensor, expected: Tensor) -> Finding:
    if not bool(gradient.isfinite().all()):
        return Finding("distributed", case, "not finite")
    difference = float((gradient - expected).norm() / expected.norm())
    if difference <= EXACT:
        return Finding("distributed", case, "ok", difference)
    factor = float((gradient * expected).sum() / expected.square().sum())
    if float((gradient - factor * expected).norm()) <= EXACT * abs(factor) * float(expected.norm()):
        return Finding("distributed", case, "scaled", factor, note=f"the exact gradient times {factor:.3g}")
    return Finding("distributed", case, "differs", difference)


def check_duplicates(subject: Subject) -> Iterator[Finding]:
    """Measure how much the loss rises when two copies of one sample, both in the batch, become more similar."""
    finding = partial(Finding, "duplicates", "one sample twice")
    work = partial(_rise_with_copies, subject.make)
    outcome = attempt("duplicates", "one sample twice", work)
    if isinstance(outcome, Finding):
        yield outcome
        return
    rise, takes_ids = outcome
    if not math.isfinite(rise):
        yield finding("not finite")
    elif rise <= EXACT:
        yield finding("ok", rise)
    elif takes_ids:
        yield finding("differs", rise, "the copy is a negative although it has the same id")
    else:
        yield finding("not offered", rise, "no ids argument: the copy is a negative")


def _rise_with_copies(make: MakeCriterion) -> tuple[float, bool]:
    criterion = make(TEMPERATURE)
    far, near = (_loss_with_copies(criterion, similarity) for similarity in (0.0, 0.6))
    return near - far, ids_argument(criterion) is not None


def _loss_with_copies(criterion: Callable[..., Tensor], similarity: float) -> float:
    """Return the loss of six samples, the last a copy of the first, with the given similarity between these two."""
    m, copies = 6, (0, 5)
    # The Gram matrix is prescribed, so that only this similarity differs between two calls.
    gram = torch.eye(2 * m, dtype=torch.float64)
    for i in range(m):
        gram[i, m + i] = gram[m + i, i] = 0.8
    for i in copies:
        for j in copies:
            if i != j:
                gram[[i, i, m + i, m + i], [j, m + j, j, m + j]] = similarity
    z = torch.linalg.cholesky(gram)
    return float(evaluate(criterion, z[:m], z[m:], ids=torch.tensor([0, 1, 2, 3, 4, 0])))


def _check_low_precision(
    name: str, dtype: torch.dtype, autocast: torch.dtype | None, subject: Subject
) -> Iterator[Finding]:
    """Compare with float64 on the same rounded embeddings, for views far apart and for views close together."""
    for case, noise in (("views far apart", 1.0), ("views close together", 0.1)):
        z1, z2 = (z.to(dtype) for z in make_views(noise=noise))
        yield compare(
            name,
            case,
            partial(subject.measured, z1, z2, autocast=autocast),
            expected=subject.expected(z1, z2),
            tolerance=LOW_PRECISION,
        )


def check_temperatures(subject: Subject) -> Iterator[Finding]:
    """Compare with the reference at low temperatures, on float32 embeddings."""
    # Nearly unrelated views: the loss of similar views is e^{-1/τ}, too small to compare.
    z1, z2 = (z.float() for z in make_views(noise=10.0))
    for temperature in (1e-2, 1e-3, 1e-4):
        yield compare(
            "temperature",
            f"temperature {temperature:g}",
            partial(subject.measured, z1, z2, temperature=temperature),
            expected=subject.expected(z1, z2, temperature=temperature),
            # The rounding of a float32 similarity is divided by the temperature.
            tolerance=64 * torch.finfo(torch.float32).eps / temperature,
            may_refuse=True,
        )


def check_degenerate(subject: Subject) -> Iterator[Finding]:
    """Check that extreme input gives a finite result (the right one, if there is one) or a ValueError."""
    z1, z2 = (z.float() for z in make_views(noise=1.0))
    compare_case = partial(compare, "degenerate", may_refuse=True)

    with_zero = z1.clone()
    with_zero[0] = 0
    yield compare_case("a zero vector", partial(subject.measured, with_zero, z2), largest_gradient=EXPLODING)
    same = torch.ones_like(z1)
    yield compare_case("identical rows", partial(subject.measured, same, same))
    yield compare_case("one pair", partial(subject.measured, z1[:1], z2[:1]))
    transposed = z1.T.contiguous().T  # the same values in another memory layout
    expected = subject.expected(z1, z2)
    yield compare_case("not contiguous", partial(subject.measured, transposed, z2), expected=expected, tolerance=1e-4)
    for length in (1e15, 1e-10):  # squares of these lengths are within the range of float32
        long1, long2 = z1 * length, z2 * length
        yield compare_case(
            f"length {length:g}",
            partial(subject.measured, long1, long2),
            expected=subject.expected(long1, long2),
            tolerance=1e-3,
        )
    for length in (1e30, 1e-30):
        long1, long2 = z1 * length, z2 * length
        yield compare_case(f"length {length:g}", partial(subject.measured, long1, long2))


def make_views(*, noise: float) -> tuple[Tensor, Tensor]:
    """Return two views of 16 samples, (16, 32), float64; `noise` determines how far apart they are."""
    generator = torch.Generator().manual_seed(7)
    z1, difference = torch.randn(2, 16, 32, dtype=torch.float64, generator=generator)
    return z1, z1 + noise * difference


CHECKS: dict[str, Callable[[Subject], Iterator[Finding]]] = {
    "formula": check_formula,
    "distributed": check_distributed,
    "duplicates": check_duplicates,
    "bf16": partial(_check_low_precision, "bf16", torch.bfloat16, None),
    "fp16": partial(_check_low_precision, "fp16", torch.float16, None),
    "autocast": partial(_check_low_precision, "autocast", torch.float32, torch.bfloat16),
    "temperature": check_temperatures,
    "degenerate": check_degenerate,
}
