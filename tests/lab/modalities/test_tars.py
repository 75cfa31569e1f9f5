"""Tars with damaged headers are refused in one line."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from contrapose.lab.modalities.tars import list_tar


@pytest.mark.parametrize("rest", [b"", bytes(100)])
def test_a_sparse_file_whose_list_is_cut_off_is_refused(rest: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.jpg")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # more pieces follow in the next block
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(header + rest)
    with pytest.raises(ValueError, match=r"a\.tar cannot be read as an uncompressed tar") as error:
        list_tar(tmp_path / "a.tar")
    assert "\n" not in str(error.value)
