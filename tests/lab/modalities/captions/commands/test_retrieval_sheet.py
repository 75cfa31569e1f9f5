"""The retrieval sheet: captions with their nearest images and the right one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from contrapose.lab.modalities.captions.commands.sheet import retrieval_rows, retrieval_sheet
from contrapose.lab.report.document import Document, Section
from contrapose.lab.report.render import as_html, write

HOSTILE = '"><script>document.title = "hacked"</script><img src=x onerror="document.title = \'hacked\'">'


def picture(folder: Path, name: str, size: tuple[int, int], colour: str = "red") -> Path:
    path = folder / name
    Image.new("RGB", size, colour).save(path, "JPEG")
    return path


def test_rows_rank_the_right_picture_after_its_equals(tmp_path: Path) -> None:
    images = [picture(tmp_path, f"{i}.jpg", (8, 8)) for i in range(4)]
    scores = torch.tensor([[0.9, 0.5, 0.1, 0.2], [0.3, 0.3, 0.3, 0.3], [0.9, 0.8, 0.7, 0.1]])
    rows = retrieval_rows(["first", "all equal", "last"], scores, [0, 0, 3], images, top=2)
    assert [row.rank for row in rows] == [1, 4, 4]
    assert [picture.image for picture in rows[0].pictures] == images[:2]
    assert rows[0].pictures[0].score == pytest.approx(0.9)
    # The right picture is shown even if it is not among the first two, with its rank.
    last = rows[2].pictures[-1]
    assert [(picture.rank, picture.is_right) for picture in rows[2].pictures] == [(1, False), (2, False), (4, True)]
    assert last.image == images[3]
    assert last.score == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"scores: expected one row per query .* \(2, 4\), got \(3, 4\)"):
        retrieval_rows(["first", "second"], scores, [0, 0], images)
    with pytest.raises(ValueError, match="scores: expected finite cosines"):
        retrieval_rows(["first"], torch.full((1, 4), torch.nan), [0], images)


def test_the_sheet_says_hit_and_miss_in_words_and_frames(tmp_path: Path) -> None:
    images = [picture(tmp_path, f"{i}.jpg", (80, 40 + 20 * i)) for i in range(3)]
    queries = [f"costs $5 and $6 {HOSTILE}", "犬 at the beach"]
    rows = retrieval_rows(queries, torch.tensor([[0.1, 0.9, 0.2], [0.3, 0.2, 0.1]]), [1, 2], images, top=2)
    sheet = retrieval_sheet(rows, pictures=3)
    assert [[image.mark for image in group] for _, group in sheet.groups] == [["hit", "miss"], ["miss", "miss", "hit"]]
    document = Document("Report", "", (Section("Part", blocks=(sheet,), name="part"),))
    page = as_html(document)
    assert "<script>document.title" not in page
    assert "1 · right · 0.900" in page
    assert "3 · right · 0.100" in page
    assert "the right image has rank 3 of 3" in page
    assert page.count("<figure class=hit>") == 2
    assert page.count("<figure class=miss>") == 3
    write(document, tmp_path)  # as a figure too: a text may hold "$", and letters that the font lacks
    with Image.open(tmp_path / "part.png") as figure:
        colours = {colour: count for count, colour in figure.convert("RGB").getcolors(maxcolors=2**24) or ()}
    assert colours[0, 158, 115] > 500  # the frame of the hit
