"""`contrapose embed`, `export`, `import`: what leaves a run, and what comes in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from contrapose.training import load


@dataclass(frozen=True)
class Embed:
    """Write the features of a data set, by a run's encoder, to an .npz or .parquet file."""

    run: Positional[Path]
    """Directory of the run."""
    data: Positional[str]
    """A data set's name, a folder of images or an .npz file."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The file to write: .npz with train_features, train_labels, test_features, test_labels, classes and, of a folder,
    train_paths and test_paths; or .parquet with a row each."""
    data_root: Path = Path("data")
    """Where downloaded data sets are."""

    def __call__(self) -> None:
        """Features of every split there is."""
        import numpy as np

        from contrapose.modalities.images.load import load as load_data

        if self.out.suffix not in (".npz", ".parquet"):
            raise ValueError(f"out: expected a name that ends in .npz or .parquet, got {self.out}")
        model, split = load(self.run), load_data(self.data, root=self.data_root)
        arrays = {}
        for name, images in (("train", split.train), ("test", split.test)):
            if images is not None:
                arrays[f"{name}_features"] = model.features(images).cpu().numpy()
                if images.labels is not None:
                    arrays[f"{name}_labels"] = images.labels.numpy()
                if images.paths:
                    arrays[f"{name}_paths"] = np.array([str(path) for path in images.paths])
                if images.classes:
                    arrays["classes"] = np.array(images.classes)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.suffix == ".parquet":
            _to_parquet(arrays, self.out)
        else:
            np.savez(self.out, **arrays)  # type: ignore[arg-type]
        print(f"{', '.join(f'{name} {array.shape}' for name, array in arrays.items())} in {self.out}")


@dataclass(frozen=True)
class Export:
    """Write a run's encoder as .safetensors, under torchvision's or timm's names, or as .onnx."""

    run: Positional[Path]
    """Directory of the run."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The file to write; its ending decides: .safetensors or .onnx."""
    data_root: Path = Path("data")
    """Not used: an encoder is exported without its data."""

    def __call__(self) -> None:
        """Weights, or a graph with a free batch size."""
        from contrapose.training.weights import export

        if self.out.suffix not in (".safetensors", ".onnx"):
            raise ValueError(f"out: expected a name that ends in .safetensors or .onnx, got {self.out}")
        model = load(self.run)
        kind, encoder = model.run.kind, model.encoder
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.suffix == ".onnx":
            _to_onnx(encoder.network.cpu(), kind.example_input(model.views), self.out)
        else:
            export(encoder, self.out)
        print(f"{model.run.encoder}, {encoder.width} features, in {self.out}")
        print(kind.describe_input(model.views))


@dataclass(frozen=True)
class Import:
    """Turn a foreign .pth of weights into .safetensors for `--init`. Nothing in the file is executed."""

    file: Positional[Path]
    """A .pth or .pt file of named tensors."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The .safetensors file to write."""

    def __call__(self) -> None:
        """Names and shapes as they are in the file, without common prefixes."""
        from safetensors.torch import save_file

        from contrapose.training.weights import convert

        if not self.file.is_file():
            raise ValueError(f"file: {self.file} is not there")
        if self.out.suffix != ".safetensors":
            raise ValueError(f"out: expected a name that ends in .safetensors, got {self.out}")
        tensors = convert(self.file)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(self.out))
        print(f"{len(tensors)} tensors, from {next(iter(tensors))} on, in {self.out}")


def _to_parquet(arrays: dict[str, Any], path: Path) -> None:
    """One row for each image: split, features and, if there are any, label, class and path."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError("out: writing .parquet needs: pip install 'contrapose[parquet]'") from error
    tables = []
    for part in ("train", "test"):
        if f"{part}_features" in arrays:
            rows = arrays[f"{part}_features"]
            columns = {"split": [part] * len(rows), "features": list(rows)}
            if f"{part}_labels" in arrays:
                columns["label"] = arrays[f"{part}_labels"].tolist()
                if "classes" in arrays:
                    columns["class"] = arrays["classes"][arrays[f"{part}_labels"]].tolist()
            if f"{part}_paths" in arrays:
                columns["path"] = arrays[f"{part}_paths"].tolist()
            tables.append(pa.table(columns))
    parquet.write_table(pa.concat_tables(tables, promote_options="default"), path)


def _to_onnx(network: Any, example: Any, path: Path) -> None:
    import torch

    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("out: writing .onnx needs: pip install 'contrapose[onnx]'") from error
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        network, (example,), str(path), dynamo=True, dynamic_shapes=({0: batch},), input_names=["images"], verbose=False,
        external_data=False,
    )  # fmt: skip
