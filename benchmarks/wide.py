"""Time two views, both directions of CLIP, and SigLIP at the widths of text and image-text models. Prints JSON lines.

    python benchmarks/wide.py > benchmarks/wide-h200.jsonl

Temperature and bias of CLIP and SigLIP are learned, for every implementation. Each line is one implementation at one size:
forward and backward pass in eager mode, bf16 embeddings, median of interleaved repetitions, and peak memory without the
embeddings. torch.compile is measured at one width only, since it compiles for every size. inf-cl computes one direction per
call, and is called twice.
"""

from __future__ import annotations

import argparse
import json

import torch
from fused import write_record
from loss_timing import as_record, compare, matmul_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096, 8192, 16384, 65536])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 384, 768, 1024])
    parser.add_argument("--losses", nargs="+", default=["nt_xent", "clip", "siglip"])
    parser.add_argument("--compiled-width", type=int, default=768)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    rate = matmul_rate("cuda", "bfloat16")
    write_record(device=torch.cuda.get_device_name(), torch=torch.__version__, matmul_tflops=round(rate, 1))
    for loss in options.losses:
        for d in options.widths:
            for n in options.sizes:
                names = ["ours", "inf-cl", "siglip-kernel"] + ["PyTorch"] * (n <= 16384)
                names += ["torch.compile"] * (d == options.compiled_width and n in (1024, 16384))
                timings = compare(
                    [loss], [n], d=d, dtype="bfloat16", device="cuda", rate=rate, seconds=options.seconds, only=names
                )
                for timing in timings:
                    print(json.dumps(as_record(timing)), flush=True)


if __name__ == "__main__":
    main()
