"""`contrapose embed`, `export` and `import`: write features and weights, and read foreign weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from contrapose.cli.train import print_notes
from contrapose.modalities.progress import allow_progress_bars
from contrapose.training import load, prepare_other


@dataclass(frozen=True)
class Embed:
    """Write the features that a run's encoder computes for a data set to an .npz or .parquet file."""

    run: Positional[Path]
    """Directory of the run."""
    data: Positional[str]
    """Name of a data set, folder of images or .npz file."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """File to write: .npz with train_features, train_labels, test_features, test_labels, classes and, for a folder,
    train_paths and test_paths; or .parquet with one row per image."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""
    skip_broken: bool = False
    """Leave out files of a folder that cannot be read; the default if the run was trained so."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Write the features of all splits of the data."""
        import numpy as np

        if self.out.suffix not in (".npz", ".parquet"):
            raise ValueError(f"out: expected a name that ends in .npz or .parquet, got {self.out}")
        model = load(self.run, epoch=self.epoch or None)
        run = replace(model.run, skip_broken=model.run.skip_broken or self.skip_broken)
        # Nothing is held out: all images of a folder without test images are written as train.
        split = prepare_other(run, self.data, self.data_root, hold_out=0, stream=True)
        print_notes(split)
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
            _write_parquet(arrays, self.out)
        else:
            np.savez(self.out, **arrays)  # type: ignore[arg-type]
        print(f"{', '.join(f'{name} {array.shape}' for name, array in arrays.items())} written to {self.out}")


@dataclass(frozen=True)
class Export:
    """Write a run's encoder as .safetensors, with torchvision's or timm's parameter names, as .onnx, or for detectron2.

    A model card is written beside it: how the encoder was trained, its scores, how its inputs are made, and code that uses it.
    """

    run: Positional[Path]
    """Directory of the run."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """File to write; its suffix selects the format: .safetensors, .onnx, or .pkl for detectron2 (ResNets alone). The card
    gets the same name with .md added."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""

    def __call__(self) -> None:
        """Write the weights, or an ONNX graph with a dynamic batch size, and the model card."""
        from contrapose.training.card import metadata_of, model_card, summary
        from contrapose.training.weights import DETECTRON2_ENCODERS, export, export_for_detectron2

        if self.out.suffix not in (".safetensors", ".onnx", ".pkl"):
            raise ValueError(f"out: expected a name that ends in .safetensors, .onnx or .pkl, got {self.out}")
        model = load(self.run, epoch=self.epoch or None, device="cpu")
        if self.out.suffix == ".pkl" and model.run.encoder not in DETECTRON2_ENCODERS:
            raise ValueError(
                f"out: .pkl is for detectron2, which has {', '.join(DETECTRON2_ENCODERS)}, but the encoder of {self.run} is "
                f"{model.run.encoder}; use .safetensors"
            )
        metadata = metadata_of(model)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.suffix == ".onnx":
            example = model.kind.example_input(model.views)
            _write_onnx(model.encoder.network, example, self.out, metadata, summary(model))
        elif self.out.suffix == ".pkl":
            export_for_detectron2(model.encoder, self.out)
        else:
            export(model.encoder, self.out, metadata)
        card = self.out.with_name(f"{self.out.name}.md")
        card.write_text(model_card(model, self.run, self.out.name))
        print(f"{model.run.encoder}, {model.encoder.width} features, written to {self.out}")
        print(f"its inputs, and code that uses it: {card}")


@dataclass(frozen=True)
class Import:
    """Convert a foreign .pth file of weights to .safetensors, for `train --init`. Nothing in the file is executed."""

    file: Positional[Path]
    """A .pth or .pt file with a state_dict."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The .safetensors file to write."""

    def __call__(self) -> None:
        """Write the tensors under their own names, without prefixes such as module."""
        from safetensors.torch import save_file

        from contrapose.training.weights import convert

        if not self.file.is_file():
            raise ValueError(f"file: {self.file} does not exist")
        if self.out.suffix != ".safetensors":
            raise ValueError(f"out: expected a name that ends in .safetensors, got {self.out}")
        tensors = convert(self.file)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(self.out))
        print(f"{len(tensors)} tensors, the first one {next(iter(tensors))}, written to {self.out}")


def _write_parquet(arrays: dict[str, Any], path: Path) -> None:
    """Write one row per image: split, features and, if known, label, class and path."""
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
    # Columns may differ: the test images can have labels and the training images none.
    parquet.write_table(pa.concat_tables(tables, promote_options="default"), path)


def _write_onnx(network: Any, example: Any, path: Path, metadata: dict[str, str], summary: str) -> None:
    import torch

    try:
        import onnxscript  # noqa: F401  (torch.onnx needs it, and its own error does not say how to install it)
    except ImportError as error:
        raise ValueError("out: writing .onnx needs: pip install 'contrapose[onnx]'") from error
    program = torch.onnx.export(
        network, (example,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), input_names=[metadata["modality"]],
        output_names=["features"], verbose=False,
    )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.model.doc_string = summary
    program.save(str(path), external_data=False)
