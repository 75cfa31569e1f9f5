"""Checks as tests: `suite` for a test file, and what a failed test prints. The pytest plugin uses the same messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from contrapose.conformance.checks import CHECKS, check
from contrapose.conformance.findings import Finding, Verdict
from contrapose.conformance.measure import MakeCriterion
from contrapose.conformance.processes import check_picklable
from contrapose.conformance.references import REFERENCES, Reference
from contrapose.validate import check_known

VERDICTS: dict[Verdict, str] = {
    "scaled": "the gradient is the exact one times a constant",
    "differs": "the result is finite, and further from the expected one than the check allows",
    "not finite": "the loss or its gradient is NaN or infinite",
    "raises": "an exception was raised; only a low temperature or degenerate input may be refused, with a ValueError",
}
CAUSES = {
    "formula": "In float64, value and gradient must be those of the reference. Another loss or temperature, one direction "
    "instead of two, a sum instead of a mean, or a detached tensor. If it is meant to be another loss, name it as the reference.",
    "distributed": "The averaged gradient must be that of one process with the whole batch. differs: rows of other processes "
    "were gathered without gradient, or labels were not shifted by rank. scaled: the gradient is divided or multiplied by the "
    "world size, which changes the learning rate with the number of GPUs. Gather with gradients.",
    "duplicates": "Two rows with the same id are the same sample, so they must not be negatives of each other. "
    "Mask pairs with equal ids before the softmax.",
    "bf16": "The loss was computed in bf16, which loses the digits of a small loss. Convert the embeddings with .float() first.",
    "fp16": "The loss was computed in fp16, which loses digits or overflows. Convert the embeddings with .float() first.",
    "autocast": "Under autocast, the matrix product was computed in bf16 although the embeddings are float32. Compute the loss "
    "in torch.autocast(device_type, enabled=False).",
    "temperature": "At low temperatures, exp(s / temperature) overflows float32, or a constant in the logarithm hides "
    "the loss of hard samples. Use torch.logsumexp or cross_entropy; or raise a ValueError below a lowest temperature.",
    "degenerate": "Extreme input must give a finite result or a ValueError. A zero vector divided by a tiny constant gives a "
    "gradient that ruins the weights: raise the eps of normalize, or clip gradients.",
}


def suite(
    make: MakeCriterion,
    *,
    distributed: MakeCriterion | None = None,
    reference: str | Reference = "nt_xent",
    checks: Sequence[str] = (),
) -> Callable[..., None]:
    """Return a pytest function with one test per check of a criterion; the arguments are those of `check`.

    Assign it to a name that begins with `test` in a test file:

        test_my_loss = suite(MyLoss, reference="clip")

    A test is skipped if the criterion does not offer what the check is about, such as ids or a form for several processes.
    """
    import pytest

    for name in checks:
        check_known("checks", name, CHECKS)
    if isinstance(reference, str):
        check_known("reference", reference, REFERENCES)
    if distributed is not None:
        check_picklable(distributed)

    @pytest.mark.parametrize("check_name", list(checks or CHECKS))
    def test(check_name: str, request: pytest.FixtureRequest) -> None:
        findings = check(make, distributed=distributed, reference=reference, checks=[check_name])
        judge(findings, reproduce=f'python -m pytest "{request.node.nodeid}"')

    return test


def judge(findings: Sequence[Finding], *, reproduce: str) -> None:
    """Fail the test that is running if a finding failed, or skip it if nothing failed and a case is not offered."""
    import pytest

    if any(finding.failed for finding in findings):
        pytest.fail(failure_message(findings, reproduce=reproduce), pytrace=False)
    missing = [finding for finding in findings if finding.verdict == "not offered"]
    if missing:
        pytest.skip(f"not offered: {missing[0].note}")


def failure_message(findings: Sequence[Finding], *, reproduce: str) -> str:
    """Return what a failed test prints: the failed cases of one check, what they mean, and a line that repeats the check."""
    failed = [finding for finding in findings if finding.failed]
    seen = {finding.verdict for finding in failed}
    return "\n".join(
        [
            f"{failed[0].check}: {len(failed)} of {len(findings)} cases failed",
            *(f"  {finding}" for finding in failed),
            *(f"{verdict}: {VERDICTS[verdict]}" for verdict in get_args(Verdict) if verdict in seen),
            *([CAUSES[failed[0].check]] if seen != {"raises"} else []),
            f"to reproduce: {reproduce}",
        ]
    )
