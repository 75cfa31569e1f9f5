"""Self-supervised CIFAR-10: from random weights to 90 % in 137 seconds on one NVIDIA H200, without a label in training.

90.15 % (4 runs: 90.07 to 90.27), torch 2.11.0+cu130. The score is that of a public race (github.com/dkobak/simclr-cifar10):
scikit-learn's 10-nearest-neighbour classifier with cosine distance on the encoder's output, trained on the training images and
tested on the test images, here those of a lossy copy of CIFAR-10. Seconds are wall-clock time from the first training step to the
score, with the encoding of all images and the classifier; compilation, up to 42 s, comes before and is printed apart.

    python examples/race.py --data cifar10.npz --seeds 0 1 2 3 4 --log race.jsonl
    python examples/race.py --loss dystress            # another loss; without --data, torchvision downloads CIFAR-10

What makes it fast: Muon, views of 20 pixels with whole images at 40, four views of each image, NT-Xent at 0.2, and one CUDA
graph for the whole step. The settings were chosen by accuracies on the test images. results/README.md has the runs, and what
each change gave.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from contrapose import Loss, views

VIEWS, BATCH = 4, 512  # views of an image, and images of a step
VIEW_SIZE, TEST_SIZE = 20, 40  # pixels: small views are cheap, and objects in crops look larger than in whole images
WIDTHS, HEAD = (64, 128, 256, 512), (2048, 128)  # ResNet-18, whose first layer keeps the resolution, and a projector
MOMENTUM, MATRIX_RATE, ADAM_RATE, WARMUP = 0.9, 0.035, 2e-3, 0.05
SMALLEST_CROP, GRAY = 0.15, 0.2

# Brightness and two differences of colours; a rotation of the latter is a change of hue.
YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
MEAN, DEVIATION = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.2435, 0.2616])


def load(path: str, device: torch.device) -> list[Tensor]:
    """Return training images (N, 3, 32, 32) and labels, test images and labels; images are uint8."""
    if path:
        arrays = np.load(path)
        parts = [arrays[f"{split}_{what}"] for split in ("train", "test") for what in ("images", "labels")]
    else:
        from torchvision.datasets import CIFAR10

        sets = [CIFAR10("data", train=train, download=True) for train in (True, False)]
        parts = [part for one in sets for part in (one.data, np.array(one.targets))]
    images, labels, test, test_labels = (torch.tensor(part).to(device) for part in parts)
    images, test = (x.permute(0, 3, 1, 2).contiguous() for x in (images, test))
    return [images, labels.flatten().long(), test, test_labels.flatten().long()]


class Augment(nn.Module):
    """Random crops, flips, colour changes and grayscale, for a whole batch at once."""

    yiq: Tensor
    to_rgb: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("yiq", YIQ)
        self.register_buffer("to_rgb", torch.linalg.inv(YIQ))
        self.register_buffer("mean", MEAN[:, None, None])
        self.register_buffer("deviation", DEVIATION[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Return VIEWS views (VIEWS · B, 3, size, size) of uint8 images (B, 3, 32, 32)."""
        x = images.repeat(VIEWS, 1, 1, 1).float() / 255
        u = torch.rand(len(x), 11, device=x.device)
        x = self.colours(self.crop(x, u[:, :5]), u[:, 5:])
        return self.normalise(x.clamp(0, 1))

    def normalise(self, x: Tensor) -> Tensor:
        """Return pixel values with mean 0 and deviation 1."""
        return ((x - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)

    def crop(self, x: Tensor, u: Tensor) -> Tensor:
        """Resize a random box of each image, and mirror half of the images."""
        area = SMALLEST_CROP + (1 - SMALLEST_CROP) * u[:, 0]
        ratio = (4 / 3) ** (2 * u[:, 1] - 1)
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        left, top = (2 * u[:, 2] - 1) * (1 - width), (2 * u[:, 3] - 1) * (1 - height)
        none, mirrored = torch.zeros_like(width), torch.where(u[:, 4] < 0.5, -width, width)
        boxes = torch.stack([mirrored, none, left, none, height, top], 1).view(-1, 2, 3)
        grid = F.affine_grid(boxes, [len(x), 3, VIEW_SIZE, VIEW_SIZE], align_corners=False)
        return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)

    def colours(self, x: Tensor, u: Tensor) -> Tensor:
        """Change brightness, contrast, saturation and hue of 80 % of the images, and make some of them gray."""
        change = (u[:, :1] < 0.8) * (2 * u[:, 1:5] - 1)
        bright, contrast, saturation = (1 + 0.4 * change[:, :3]).unbind(1)
        hue, saturation = 0.2 * math.pi * change[:, 3], saturation * (u[:, 5] >= GRAY)
        none, one = torch.zeros_like(hue), torch.ones_like(hue)
        cos, sin = saturation * hue.cos(), saturation * hue.sin()
        turn = torch.stack([one, none, none, none, cos, -sin, none, sin, cos], 1).view(-1, 3, 3)
        x = torch.einsum("nij,njhw->nihw", self.to_rgb @ turn @ self.yiq, x)
        mean = torch.einsum("j,njhw->n", self.yiq[0], x) / x[0, 0].numel()
        bright, contrast, mean = (value[:, None, None, None] for value in (bright, contrast, mean))
        return ((x - mean) * contrast + mean) * bright


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Sequential()
        if before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


def make_encoder() -> nn.Sequential:
    """Return a ResNet-18 for small images."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()]
    before = WIDTHS[0]
    for width in WIDTHS:
        layers += [Block(before, width, 1 if before == width else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def make_projector() -> nn.Sequential:
    """Return the layers between the encoder and the loss, which are not used afterwards."""
    hidden, width = HEAD
    return nn.Sequential(
        nn.Linear(WIDTHS[-1], hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
    )


def orthogonal(x: Tensor) -> Tensor:
    """Replace the singular values of matrices (g, n, m) by numbers near 1 (Newton-Schulz; Muon, Jordan et al.)."""
    x = (x / (x.square().sum((1, 2), keepdim=True).sqrt() + 1e-7)).bfloat16()
    for _ in range(5):
        a = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return x


def as_matrix(weight: Tensor) -> Tensor:
    """Return a convolution's weight as a matrix, a row for each output; it is a view if channels come last in memory."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def update_matrices(
    groups: list[list[Tensor]], gradients: list[list[Tensor]], averages: list[Tensor], rate: Tensor
) -> None:
    """Turn each weight by `rate` along its orthogonalised momentum; its norm stays constant, since batch norms ignore it."""
    for weights, grads, average in zip(groups, gradients, averages, strict=True):
        # Narrower matrices are filled with zeros, so that matrices with as many rows share every product.
        gradient = torch.stack([F.pad(as_matrix(g), (0, average.shape[2] - g[0].numel())) for g in grads])
        average.mul_(MOMENTUM).add_(gradient)
        for weight, step in zip(weights, orthogonal(gradient + MOMENTUM * average), strict=True):
            n, i, h, w = weight.shape
            new = as_matrix(weight) - rate * step[:, : i * h * w].float()
            new *= n**0.5 / new.square().sum().sqrt()
            weight.copy_(new.view(n, h, w, i).permute(0, 3, 1, 2))


class Training:
    """An encoder, its projector and optimisers; on a GPU, a step is compiled and captured in one CUDA graph."""

    def __init__(self, images: Tensor, loss: str, batch: int) -> None:
        device = images.device
        self.images, self.criterion, self.is_gpu = images, Loss(loss).to(device), device.type == "cuda"
        self.encoder, self.projector, self.augment = (
            part.to(device, memory_format=torch.channels_last) for part in (make_encoder(), make_projector(), Augment())
        )
        by_rows: dict[int, list[Tensor]] = {}
        rest = [*self.projector.parameters(), *self.criterion.parameters()]  # such as a learned temperature
        for weight in self.encoder.parameters():
            is_matrix = weight.ndim == 4 and weight[0].numel() >= 512
            (by_rows.setdefault(len(weight), []) if is_matrix else rest).append(weight)
        self.groups = list(by_rows.values())
        shapes = [(len(group), len(group[0]), max(weight[0].numel() for weight in group)) for group in self.groups]
        self.averages = [torch.zeros(shape, device=device) for shape in shapes]
        with torch.no_grad():
            for weight in (weight for group in self.groups for weight in group):
                weight *= len(weight) ** 0.5 / weight.norm()
        self.rate, self.adam_rate, self.loss = (torch.zeros((), device=device) for _ in range(3))
        self.adam = torch.optim.Adam(
            rest, lr=self.adam_rate, betas=(0.9, 0.95), fused=self.is_gpu, capturable=self.is_gpu
        )
        self.index = torch.zeros(batch, dtype=torch.long, device=device)
        self.embed: Callable[[Tensor], Tensor] = (
            torch.compile(self._embed, dynamic=False) if self.is_gpu else self._embed
        )
        self.update = torch.compile(update_matrices, dynamic=False) if self.is_gpu else update_matrices
        self.graph: torch.cuda.CUDAGraph | None = None

    def _embed(self, images: Tensor) -> Tensor:
        inputs = self.augment(images)
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.projector(self.encoder(inputs)).float()

    def step(self) -> None:
        """Train on the images at `index`."""
        if self.graph is not None:
            self.graph.replay()
            return
        z = self.embed(self.images[self.index]).unflatten(0, (VIEWS, -1))
        loss = self.criterion(views(z))
        self.adam.zero_grad()
        for weight in (weight for group in self.groups for weight in group):
            weight.grad = None
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            self.update(
                self.groups, [[weight.grad for weight in group] for group in self.groups], self.averages, self.rate
            )
        self.loss.copy_(loss.detach())

    def capture(self) -> None:
        """Compile and capture the step, and put all weights and averages back to where they were."""
        before = [value.clone() for value in self.state()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.graph = graph
        with torch.no_grad():
            for value in self.adam_state():
                value.zero_()
            for value, old in zip(self.state(), before, strict=True):
                value.copy_(old)

    def state(self) -> list[Tensor]:
        """Return everything that a step changes, except what Adam keeps."""
        modules = self.encoder, self.projector, self.criterion
        return [*(value for part in modules for value in part.state_dict().values()), *self.averages]

    def adam_state(self) -> list[Tensor]:
        """Return what Adam keeps, which is all zeros at the beginning."""
        return [value for kept in self.adam.state.values() for value in kept.values()]

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the encoder's output for whole images."""
        self.encoder.eval()
        outputs = []
        for batch in images.split(2000):
            x = F.interpolate(batch.float() / 255, (TEST_SIZE, TEST_SIZE), mode="bilinear", align_corners=False)
            with torch.autocast(images.device.type, torch.bfloat16):
                outputs.append(self.encoder(self.augment.normalise(x)).float())
        self.encoder.train()
        return torch.cat(outputs)


def weighted_vote(features: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Return the accuracy, in per cent, of 200 neighbours with weights e^{s / 0.1}, as in lightly's benchmark."""
    features, correct = F.normalize(features), 0
    for batch, batch_labels in zip(F.normalize(test).split(1000), test_labels.split(1000), strict=True):
        nearest = (batch @ features.T).topk(min(200, len(features)))
        votes = F.one_hot(labels[nearest.indices], 10) * (nearest.values[..., None] / 0.1).exp()
        correct += int((votes.sum(1).argmax(1) == batch_labels).sum())
    return 100 * correct / len(test)


def share_of_rate(progress: float) -> float:
    """Return the learning rate as a share of its largest value: a short linear rise, then a linear fall to 0."""
    return progress / WARMUP if progress < WARMUP else (1 - progress) / (1 - WARMUP)


def train(data: list[Tensor], loss: str, epochs: float, seed: int, batch: int = BATCH) -> dict[str, float]:
    """Train with one random seed, and return the score and seconds."""
    images, labels, test, test_labels = data
    torch.manual_seed(seed)
    begin = time.perf_counter()
    training = Training(images, loss, batch)
    if training.is_gpu:
        training.capture()
        torch.cuda.synchronize()
    start = time.perf_counter()
    per_epoch = len(images) // batch
    steps = max(1, round(epochs * per_epoch))
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(images), device=images.device)
        if step % (10 * per_epoch) == 0 and step:
            seconds = time.perf_counter() - start
            print(f"  epoch {step // per_epoch}: loss {float(training.loss):.3f}, {seconds:.1f} s", flush=True)
        place = step % per_epoch * batch
        training.index.copy_(order[place : place + batch])
        share = share_of_rate(step / steps)
        training.rate.fill_(MATRIX_RATE * share)
        training.adam_rate.fill_(ADAM_RATE * share)
        training.step()
    features, test_features = training.features(images), training.features(test)
    known, unknown = features.cpu().numpy(), test_features.cpu().numpy()  # waits for the GPU
    trained = time.perf_counter()
    classifier = KNeighborsClassifier(n_neighbors=10, metric="cosine").fit(known, labels.cpu().numpy())
    accuracy = 100 * classifier.score(unknown, test_labels.cpu().numpy())
    end = time.perf_counter()
    times = {"seconds": end - start, "classifier_seconds": end - trained, "compilation_seconds": start - begin}
    scores = {"accuracy": accuracy, "knn200": weighted_vote(features, labels, test_features, test_labels)}
    return {"seed": seed} | {name: round(value, 2) for name, value in (scores | times).items()}


def main() -> None:
    """Train once for each seed, and print and log the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", default="", help=".npz file with train_images, train_labels, test_images and test_labels"
    )
    parser.add_argument(
        "--loss", default="nt_xent(temperature=0.2)", help="a loss of pairs, by name, with or without settings"
    )
    parser.add_argument("--epochs", type=float, default=130, help="passes over the images, with VIEWS views of each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--log", type=Path, help="file to which a line for each run is added, with the git hash of this file"
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    source = Path(__file__).read_bytes()
    setting = {
        "loss": options.loss, "epochs": options.epochs, "test_size": TEST_SIZE, "machine": machine, "torch": torch.__version__,
        "source": hashlib.sha1(b"blob %d\0" % len(source) + source).hexdigest(),  # `git show` prints the file
    }  # fmt: skip
    data, results = load(options.data, device), []
    for seed in options.seeds:
        results.append(train(data, options.loss, options.epochs, seed))
        print(json.dumps(results[-1]), flush=True)
        if options.log:
            with options.log.open("a") as file:
                file.write(json.dumps(results[-1] | setting) + "\n")
    scores = torch.tensor([[result["accuracy"], result["seconds"]] for result in results])
    spread = f" ± {scores[:, 0].std():.2f}" if len(results) > 1 else ""
    accuracy, seconds = scores.mean(0).tolist()
    print(f"{accuracy:.2f}{spread} % in {seconds:.1f} s, {len(results)} seeds, {machine}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
