"""Check any contrastive criterion, from this package or from another library: gradients, precision, limits.

>>> from contrapose import Loss, nt_xent
>>> from contrapose.conformance import check
>>> findings = check(lambda temperature: Loss(nt_xent, temperature=temperature), checks=["formula", "duplicates"])
>>> [finding.verdict for finding in findings]
['ok', 'ok', 'ok']

`python benchmarks/conformance.py`, in a clone, runs all checks on the installed libraries. Our losses are checked in several
processes twice: with gathered embeddings and in a ring.
"""

from contrapose.conformance.checks import CHECKS as CHECKS
from contrapose.conformance.checks import check as check
from contrapose.conformance.findings import Finding as Finding
from contrapose.conformance.testing import suite as suite
