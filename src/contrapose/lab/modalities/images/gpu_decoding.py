"""Read image files in threads and decode them on a GPU; what the GPU cannot decode is decoded in the threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from io import BytesIO

import torch
from torch import Tensor

from contrapose.lab.cuda.prefetch import prepare_ahead
from contrapose.lab.modalities.images.decoding import (
    ImagePath,
    Problem,
    attempt,
    check_megapixels,
    decode,
    quiet_decoders,
    read_content,
    readable,
)
from contrapose.lab.modalities.images.jpeg import JpegHeader, read_header, upright
from contrapose.lab.modalities.images.memory import free_memory
from contrapose.lab.workers import local_processes
from contrapose.reduce.hardware import has_kernels

_MOST_PIXELS = 2**27  # decoded on the GPU at a time: 384 MiB
_READ_TOGETHER = 8  # images that a thread reads before it takes up the next ones


@dataclass(frozen=True, slots=True)
class FileRead:
    """A JPEG file's content, which the GPU decodes, or an image that was decoded on the CPU because the GPU cannot decode it."""

    values: Tensor  # uint8, (n,) or (3, H, W)
    header: JpegHeader | None  # None: already decoded

    @property
    def pixels(self) -> int:
        """Number of pixels of the decoded image."""
        height, width = self.values.shape[1:] if self.header is None else self.header[:2]
        return height * width


Use = Callable[[list[Tensor], list[int]], list[Tensor]]  # of images, uint8 (3, H, W), and their indices


@lru_cache
def decodes_jpeg(device: torch.device) -> bool:
    """Return whether torchvision can decode JPEG files on this device, and kernels can crop the images there."""
    if not has_kernels(device):
        return False
    try:
        from torchvision.io import decode_jpeg, encode_jpeg

        with quiet_decoders():
            decode_jpeg([encode_jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8))], device=device)
    except (ImportError, RuntimeError):  # torchvision has no decoder, or was built without nvJPEG
        return False
    return True


@dataclass(eq=False)
class GpuDecoder:
    """Image files, which threads read and a GPU decodes. Contents that fit into memory are read only once."""

    paths: Sequence[ImagePath]
    device: torch.device
    threads: int
    max_megapixels: float
    kept: dict[int, FileRead] = field(default_factory=dict)
    # Bytes that may still be kept; all processes of the run on this machine keep files, and each may see all of them.
    free: int = field(default_factory=lambda: (free_memory() or 0) // (2 * local_processes()))

    def batches(self, batches: Sequence[list[int]], use: Use) -> Generator[list[Tensor], None, None]:
        """Yield what `use` returns for the images of each batch; it is called in other threads, ahead of time.

        A batch with very many pixels is decoded in parts, and the results of `use` are concatenated.
        """
        with ThreadPoolExecutor(max(1, self.threads)) as threads, quiet_decoders():
            reading = ((batch, [threads.submit(self._read, part) for part in _parts(batch)]) for batch in batches)
            with closing(prepare_ahead(partial(self._decode_and_use, use=use), reading, self.device)) as ready:
                try:
                    yield from ready
                finally:
                    threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, indices: list[int]) -> list[FileRead]:
        return [self._read_one(index) for index in indices]

    def _read_one(self, index: int) -> FileRead:
        if index in self.kept:
            return self.kept[index]
        read: FileRead | Problem = attempt(partial(self._read_file, index), self.paths[index])
        return readable(index, read)

    def _read_file(self, index: int, path: ImagePath) -> FileRead:
        content = read_content(path, max_megapixels=self.max_megapixels)
        header = read_header(content)
        if header is None:
            return FileRead(decode(BytesIO(content), max_megapixels=self.max_megapixels), None)
        check_megapixels(header.height, header.width, self.max_megapixels)
        encoded = FileRead(torch.frombuffer(bytearray(content), dtype=torch.uint8), header)
        if len(content) <= self.free:  # two threads may pass this test together, which does no harm
            self.kept[index] = encoded
            self.free -= len(content)
        return encoded

    def _decode_and_use(self, batch: tuple[list[int], list[Future[list[FileRead]]]], *, use: Use) -> list[Tensor]:
        indices, reading = batch
        reads = [read for part in reading for read in part.result()]
        results, first = [], 0
        for count in _decodable_together(reads):
            last = first + count
            results.append(use(self._decode(indices[first:last], reads[first:last]), indices[first:last]))
            first = last
        return results[0] if len(results) == 1 else [torch.cat(parts) for parts in zip(*results, strict=True)]

    def _decode(self, indices: list[int], reads: list[FileRead]) -> list[Tensor]:
        """Return images, uint8 (3, H, W), on the GPU."""
        from torchvision.io import ImageReadMode, decode_jpeg

        # torchvision decodes on a stream of its own, which does not wait until memory that this stream has freed is unused.
        torch.cuda.current_stream(self.device).synchronize()
        contents = [read.values for read in reads if read.header is not None]
        try:
            decoded = iter(decode_jpeg(contents, ImageReadMode.RGB, self.device) if contents else ())
        except RuntimeError:  # one of them is damaged, or of a kind that this GPU cannot decode
            reads, decoded = [self._decode_on_cpu(*read) for read in zip(indices, reads, strict=True)], iter(())
        return [
            read.values.to(self.device) if read.header is None else upright(next(decoded), read.header.orientation)
            for read in reads
        ]

    def _decode_on_cpu(self, index: int, read: FileRead) -> FileRead:
        """Return a decoded image; raise an error that names the file if it is broken."""
        if read.header is None:
            return read
        file = BytesIO(read.values.numpy().tobytes())
        image = attempt(lambda path: decode(file, max_megapixels=self.max_megapixels), self.paths[index])
        return FileRead(readable(index, image), None)


def _parts(batch: list[int]) -> list[list[int]]:
    return [batch[first : first + _READ_TOGETHER] for first in range(0, len(batch), _READ_TOGETHER)]


def _decodable_together(reads: Sequence[FileRead]) -> Iterator[int]:
    """Yield the numbers of consecutive images that are decoded together, so that they fit into the GPU's memory."""
    count, pixels = 0, 0
    for read in reads:
        if count and pixels + read.pixels > _MOST_PIXELS:
            yield count
            count, pixels = 0, 0
        count, pixels = count + 1, pixels + read.pixels
    yield count
