"""Measure the exact search for hard negatives: `contrapose.mine`, a loop of matrix products and `topk`, and faiss if installed.

    python benchmarks/mining.py [--documents 1000000] [--queries 1000000] [--width 384] [--k 10] [--device cuda]

Prints JSON lines: the machine, then for each way the median of the seconds, its ratio to the time of `contrapose.mine`, the peak
memory on a GPU beyond the embeddings, and the share of queries for which it finds the same negatives. Document i belongs to query
i. The ways take turns, so that a machine that slows down affects all of them.

Use `--documents 20000 --queries 2000 --repeats 3` for a trial on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from contrapose import mine, unit

_BLOCKS = {"cpu": 2**24, "cuda": 2**28}  # similarities that the loop holds at a time, as many as `contrapose.mine`
Way = Callable[[Tensor, Tensor, int], Tensor]


def mine_plain(queries: Tensor, documents: Tensor, k: int) -> Tensor:
    """Mine without conditions; ids tell that no two documents are copies, which the other ways do not look for either."""
    return mine(queries, documents, k, ids=torch.arange(len(documents), device=documents.device)).indices


def mine_copies(queries: Tensor, documents: Tensor, k: int) -> Tensor:
    """Mine without copies of documents, which are looked for."""
    return mine(queries, documents, k).indices


def mine_margin(queries: Tensor, documents: Tensor, k: int) -> Tensor:
    """Mine without copies and with NV-Retriever's margin."""
    return mine(queries, documents, k, margin=0.05, relative=True).indices


def torch_loop(queries: Tensor, documents: Tensor, k: int) -> Tensor:
    """Multiply blocks of queries with all documents, leave out their own, and take the k largest similarities of each row."""
    step = max(1, _BLOCKS[queries.device.type] // len(documents))
    found = list[Tensor]()
    for start in range(0, len(queries), step):
        similarity = queries[start : start + step] @ documents.T
        rows = torch.arange(len(similarity), device=queries.device)
        similarity[rows, start + rows] = -torch.inf
        found.append(similarity.topk(k, dim=1).indices)
    return torch.cat(found)


def faiss_search(queries: Tensor, documents: Tensor, k: int) -> Tensor:
    """Search faiss's exact index for one more document than wanted, and leave out the query's own."""
    import faiss  # type: ignore[import-not-found,unused-ignore]

    index = faiss.IndexFlatIP(documents.shape[1])
    if queries.device.type == "cuda":
        index = faiss.index_cpu_to_all_gpus(index)
    index.add(documents.cpu().numpy())
    found = torch.from_numpy(index.search(queries.cpu().numpy(), k + 1)[1])
    own = found == torch.arange(len(queries))[:, None]
    own[~own.any(1), -1] = True  # its own document is not among them: the last one is too many
    return found[~own].view(len(queries), k)


def ways_of(device: torch.device) -> dict[str, Way]:
    """Return the ways that can be measured here."""
    ways: dict[str, Way] = {"mine": mine_plain, "mine, without copies": mine_copies, "mine, margin": mine_margin}
    ways["torch"] = torch_loop
    if find_spec("faiss") is not None:
        import faiss

        if device.type == "cpu" or getattr(faiss, "get_num_gpus", int)():
            ways["faiss"] = faiss_search
    return ways


def embeddings(queries: int, documents: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return unit vectors of documents around 1,000 centres, and of queries around their documents."""
    generator = torch.Generator(device).manual_seed(0)
    centres = torch.randn(1000, width, device=device, generator=generator)
    group = torch.randint(1000, (documents,), device=device, generator=generator)
    known = unit(centres[group] + torch.randn(documents, width, device=device, generator=generator))
    noise = torch.randn(queries, width, device=device, generator=generator) / width**0.5
    return unit(known[:queries] + noise), known


def measure(way: Way, queries: Tensor, documents: Tensor, k: int) -> tuple[float, int, Tensor]:
    """Return the seconds, the bytes of the peak on a GPU beyond the embeddings, and the negatives."""
    is_cuda = queries.device.type == "cuda"
    before = 0
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    found = way(queries, documents, k)
    if is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, torch.cuda.max_memory_allocated() - before if is_cuda else 0, found.cpu()


def main() -> None:
    """Measure all ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if not 1 <= options.queries <= options.documents:
        parser.error(f"--queries: expected at most --documents {options.documents}, got {options.queries}")
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    about = {"machine": name, "torch": torch.__version__, "threads": torch.get_num_threads(), **vars(options)}
    print(json.dumps(about), flush=True)
    queries, documents = embeddings(options.queries, options.documents, options.width, device)
    ways = ways_of(device)
    records: dict[str, dict[str, Any]] = {way: {"way": way, "seconds": []} for way in ways}
    negatives: dict[str, Tensor] = {}
    for repeat in range(options.repeats + 1):
        for way, function in ways.items():
            seconds, memory, negatives[way] = measure(function, queries, documents, options.k)
            if repeat:  # the first call compiles and allocates
                records[way]["seconds"].append(seconds)
            records[way]["mib"] = round(memory / 2**20)
    own = median(records["mine"]["seconds"])
    for way, record in records.items():
        seconds = median(record["seconds"])
        same = (negatives[way] == negatives["mine"]).all(1).double().mean()
        print(
            json.dumps({**record, "seconds": round(seconds, 3), "ratio": round(seconds / own, 2), "same": float(same)})
        )


if __name__ == "__main__":
    main()
