"""A contact sheet shows the images of a data set and the views that a training makes of them."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.sheet import contact_sheet
from contrapose.lab.modalities.images.views import Views


def test_rows_are_images_and_their_views() -> None:
    data = digits(30)
    views = Views.named("simclr-cifar", size=64)  # with a mean and a deviation that must be undone
    image = Image.open(io.BytesIO(contact_sheet(data, views, count=3)))
    assert image.mode == "RGB"
    assert image.size == (3 * 68 - 4, 3 * 68 - 4)
    sheet = pil_to_tensor(image).float() / 255
    index = torch.tensor([0, 14, 29])
    mean, std = (torch.tensor(v)[:, None, None] for v in (views.recipes[0].mean, views.recipes[0].std))
    plain, (first, second) = views.plain(data.pixels[index]), views.train(data.pixels[index], index, seed=0, epoch=0)[0]
    for row, inputs in enumerate((plain, first, second)):
        for column in range(3):
            cell = sheet[:, 68 * row : 68 * row + 64, 68 * column : 68 * column + 64]
            expected = (inputs[column] * std + mean).clamp(0, 1)
            assert float((cell - expected).abs().max()) < 0.003


def test_few_images_make_a_narrow_sheet() -> None:
    assert Image.open(io.BytesIO(contact_sheet(digits(2), Views.named("digits")))).size == (2 * 68 - 4, 3 * 68 - 4)
