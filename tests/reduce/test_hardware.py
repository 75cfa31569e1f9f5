"""What torch changes in the whole process is restored; an old Triton is not used."""

from __future__ import annotations

import pytest
import torch

from contrapose.reduce.hardware import installed_triton, is_recent_triton, unchanged_onednn


def test_onednn_is_enabled_again() -> None:
    """A user who has disabled it keeps it disabled."""
    with unchanged_onednn():
        torch.backends.mkldnn.set_flags(False, None, None, None)
    assert torch.backends.mkldnn.enabled
    torch.backends.mkldnn.set_flags(False, None, None, None)
    try:
        with unchanged_onednn():
            pass
        assert not torch.backends.mkldnn.enabled
    finally:
        torch.backends.mkldnn.set_flags(True, None, None, None)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_product_that_the_cpu_cannot_compute() -> None:
    with unchanged_onednn():
        torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
    assert torch.backends.mkldnn.enabled


def test_an_old_triton_is_not_used() -> None:
    triton = pytest.importorskip("triton")
    assert installed_triton().startswith(triton.__version__)
    assert is_recent_triton("3.6.0")
    assert is_recent_triton("4.0.1+git")
    with pytest.warns(UserWarning, match=r"without kernels, since Triton 3\.2\.0 is older than 3\.6"):
        assert not is_recent_triton("3.2.0")
