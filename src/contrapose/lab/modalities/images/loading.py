"""Worker processes that load batches of images. They are started once and serve all epochs, since starting takes seconds."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from multiprocessing.util import Finalize
from threading import Timer
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

from contrapose.child_processes import process_context
from contrapose.lab.modalities.images.decoding import UnreadableImage
from contrapose.lab.workers import LoadingFailed, start_loading

_POLL = 2.0  # seconds between two checks for dead workers

Batch = TypeVar("Batch")


class Workers(Generic[Batch]):
    """Loads batches of a data set in worker processes, or in this process if `count` is 0.

    dataset   returns the sample of a key
    count     number of processes
    timeout   seconds without a batch after which `LoadingFailed` is raised
    """

    def __init__(self, dataset: Dataset[Batch], *, count: int, timeout: float) -> None:
        options: dict[str, Any] = (
            {
                "multiprocessing_context": process_context(),
                "worker_init_fn": start_loading,
                "timeout": _POLL,
                "persistent_workers": True,
            }
            if count
            else {}
        )
        self.count, self.timeout, self._keys = count, timeout, _Keys()
        self._loader = DataLoader(dataset, batch_sampler=self._keys, num_workers=count, **options)
        # At exit, Python ends its child processes with SIGTERM, which workers ignore, and waits for them. Queues close at
        # priority 10, so workers are ended before.
        Finalize(self, _end_workers, (self._loader,), exitpriority=20)

    def load(self, batches: Iterable[list[Any]]) -> Generator[Batch, None, None]:
        """Yield each batch of keys, loaded and stacked. Unless all batches are taken, the workers end too."""
        self._keys.waiting, self._keys.batches = 0, batches
        iterator, waited = self._begin(), 0.0
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except RuntimeError as error:
                    # DataLoader looks for dead workers only when its timeout expires. Its timeout is therefore short, and
                    # ours is a multiple of it.
                    if "DataLoader timed out" not in str(error):
                        raise
                    waited += _POLL
                    if waited >= self.timeout:
                        raise self._failure() from None
                    continue
                waited = 0.0
                self._keys.waiting -= 1
                yield batch
        except UnreadableImage as error:
            # DataLoader puts a worker's whole traceback into the message; the user needs only the line about the image.
            lines = [line for line in str(error).splitlines() if "cannot be read" in line]
            raise ValueError(lines[-1].split("UnreadableImage: ")[-1] if lines else str(error)) from None
        finally:
            # An exception's traceback keeps this frame alive, and so the iterator and its workers.
            del iterator
            if self._keys.waiting:
                self.close()

    def _begin(self) -> Iterator[Batch]:
        """Begin an epoch. Workers of an earlier epoch must respond first, for which DataLoader would wait a single timeout."""
        iterator: Any = self._loader._iterator
        if iterator is None:
            return iter(self._loader)
        # Without a timeout, DataLoader waits until a worker dies; the timer kills workers that do not respond.
        timer, iterator._timeout = Timer(self.timeout, self._kill), 0
        timer.start()
        try:
            return iter(self._loader)
        except RuntimeError:
            if timer.finished.is_set():
                raise self._failure() from None
            raise
        finally:
            timer.cancel()
            iterator._timeout = _POLL

    def close(self) -> None:
        """End the workers; the next batch starts new ones."""
        _end_workers(self._loader)

    def _failure(self) -> LoadingFailed:
        """Kill workers that do not respond and return the error to raise."""
        self._kill()
        return LoadingFailed(
            f"the {self.count} data-loading workers delivered no batch for {self.timeout:g} s; run the same command again to "
            "resume from the last checkpoint, with --workers 0 to load in the training process, or with a longer "
            "--worker-timeout"
        )

    def _kill(self) -> None:
        # SIGKILL is needed, since a stopped worker ignores SIGTERM and the interpreter would wait for the worker at exit.
        for worker in getattr(self._loader._iterator, "_workers", []):
            worker.kill()


def _end_workers(loader: DataLoader[Any]) -> None:
    iterator, loader._iterator = loader._iterator, None
    processes = getattr(iterator, "_workers", [])
    del iterator
    for process in processes:  # stuck workers ignore the SIGTERM that DataLoader sends after five seconds
        if process.is_alive():
            process.kill()


class _Keys:
    """The batches of keys of an epoch, made one at a time, so that an epoch of ImageNet is never listed as a whole."""

    def __init__(self) -> None:
        self.batches: Iterable[list[Any]] = ()
        self.waiting = 0  # batches that workers have, or that are still to come

    def __iter__(self) -> Iterator[list[Any]]:
        self.waiting += 1
        for batch in self.batches:
            self.waiting += 1
            yield batch
        self.waiting -= 1
