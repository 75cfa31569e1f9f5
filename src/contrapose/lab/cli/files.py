"""`contrapose embed`, `export` and `import`: write features and weights, and convert weights from other projects."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor, nn
from tyro.conf import Positional, arg

from contrapose.extras import install_command
from contrapose.lab.cli.evaluate import refuse_for_elsewhere
from contrapose.lab.cli.run_data import print_notes, warn_if_unfinished
from contrapose.lab.devices import DeviceOption
from contrapose.lab.modalities import DataSettings, Modality, Split, trained_elsewhere
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.networks.prefixes import PrefixNetwork, dense_prefix
from contrapose.lab.training import Run, prepare_other
from contrapose.lab.training.card import ExportedEncoder
from contrapose.lab.training.model import load_any
from contrapose.lab.training.sources import held_out_ids
from contrapose.validate import check_count, check_directory, check_output_file

_FORMATS = (".safetensors", ".onnx", ".pkl")  # of files of weights


@dataclass(frozen=True)
class Embed(DeviceOption):
    """Write the features that a run's encoder computes for a data set to an .npz or .parquet file.

    A run on images with captions has two encoders: the features are those that search compares, of images and of captions.
    """

    run: Positional[Path]
    """Directory of the run; or hf:FOLDER for a sentence encoder, as in hf:models/bert, or minilm."""
    data: Positional[str]
    """Name of a data set, folder of images, .npz file, file of texts, or images with captions."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """File to write: .npz or .parquet. An .npz file has the arrays train_features, train_labels, test_features, test_labels and
    classes; for a folder also train_paths and test_paths; for texts also train_texts. Images with captions have the features of
    captions in train_text_features, and the number of the image that each belongs to in train_image_of_text. If the run held out
    some of these samples for evaluation, train_held_out says which. A .parquet file has one row per image or text, or per caption
    with its image."""
    columns: tuple[str, ...] = ()
    """The column to embed from a file of texts: its name, or its number counted from 1; default: the first text in each row. For
    a file of captions: the columns of images and captions."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""
    dims: int = 0
    """Write one of the prefixes of `train --dims`, as unit vectors; 0: the encoder's whole features."""
    skip_broken: bool = False
    """Skip files in a folder that cannot be read; the default if the run was trained with --skip-broken."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Write the features of all splits in the data set."""
        import numpy as np

        if self.out.suffix not in (".npz", ".parquet"):
            raise ValueError(f"out: expected a name that ends in .npz or .parquet, got {self.out}")
        check_output_file("out", self.out)
        check_count("dims", self.dims, least=0)
        elsewhere = trained_elsewhere(str(self.run))
        arrays = self._embed_elsewhere(*elsewhere) if elsewhere else self._embed_data_set()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.suffix == ".parquet":
            written = _write_parquet(arrays, self.out)
        else:
            np.savez(self.out, **arrays)
            written = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        print(f"{written} written to {self.out}")

    def _embed_data_set(self) -> dict[str, Any]:
        """Return features, labels, paths and texts of all splits in the data set, keyed by array name."""
        import numpy as np

        model = load_any(self.run, epoch=self.epoch or None, dims=self.dims)
        if not self.epoch:
            warn_if_unfinished(model, self.run)
        run = replace(model.run, skip_broken=model.run.skip_broken or self.skip_broken)
        if len(self.columns) > len(model.towers):
            expected = "one column to embed" if len(model.towers) == 1 else "the columns of images and captions"
            raise ValueError(f"columns: expected {expected}, got {len(self.columns)}")
        # Nothing is held out: if a folder has no test images, all of its images are written as train.
        split = prepare_other(
            run, self.data, self.data_root, folder=self.run, hold_out=0, stream=True, columns=self.columns
        )
        print_notes(split)
        arrays = {}
        held_out = self._held_out(run, split)
        if any(held_out):
            noun = run.kind.sample_noun(split.train)
            name = "held_out" if self.out.suffix == ".parquet" else "train_held_out"
            note = f"the run held out {sum(held_out):,} of these {len(held_out):,} {noun} and was trained on the others"
            print(f"{note}: see {name}", file=sys.stderr)
            arrays["train_held_out"] = np.array(held_out)
        for name, source in (("train", split.train), ("test", split.test)):
            if source is not None:
                for key, values in model.arrays(source).items():
                    arrays[f"{name}_{key}"] = np.array(values.cpu() if isinstance(values, Tensor) else values)
                if source.labels is not None:
                    arrays[f"{name}_labels"] = source.labels.numpy()
                if source.paths:
                    arrays[f"{name}_paths"] = np.array([str(path) for path in source.paths])
                if source.classes:
                    arrays["classes"] = np.array(source.classes)
        return arrays

    def _held_out(self, run: Run, split: Split) -> list[bool]:
        """Return which training samples of the data set the run held out; empty if the data itself has test samples."""
        # Other columns may have other rows that cannot be used, so that rows are numbered differently.
        if split.test is not None or (self.columns and run.skip_broken):
            return []
        ids = held_out_ids(run, self.run, self.data, self.data_root)
        return [own in ids for own in run.kind.sample_ids(split.train)] if ids else []

    def _embed_elsewhere(self, kind: Modality[Any], folder: Path) -> dict[str, Any]:
        """Return the features computed by an encoder that was trained elsewhere."""
        import numpy as np

        if len(self.columns) > 1:
            raise ValueError(f"columns: expected one column to embed, got {len(self.columns)}")
        refuse_for_elsewhere(epoch=self.epoch, dims=self.dims)
        settings = DataSettings(data=self.data, columns=self.columns, skip_broken=self.skip_broken)
        features, texts = kind.embed_elsewhere(folder, settings)
        return {"train_features": features.numpy(), "train_texts": np.array(texts)}


@dataclass(frozen=True)
class Export:
    """Write a run's encoder as .safetensors, with torchvision's or timm's parameter names, as .onnx, or for detectron2.

    A text encoder is written as a folder that SentenceTransformer and transformers can load. A run on images with captions has
    both: a file name selects its image encoder, a folder its text encoder. A model card is written too: how the encoder was
    trained, its scores, how its inputs are prepared, and example code.
    """

    run: Positional[Path]
    """Directory of the run."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """File to write; its suffix selects the format: .safetensors, .onnx, or .pkl for detectron2 (ResNets only). The model card
    is written next to it, with .md appended to the name. For a text encoder: the folder to write, with the card in README.md."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""
    dims: int = 0
    """Cut the embeddings to one of the prefixes of `train --dims`, as unit vectors. A .safetensors file and a text encoder's
    folder can hold a prefix of the encoder's features (--head none), a folder also one of a linear head, an .onnx file
    any; 0: the encoder's whole features."""

    def __call__(self) -> None:
        """Write the weights, or an ONNX graph with a dynamic batch size, and the model card."""
        check_count("dims", self.dims, least=0)
        model = load_any(self.run, epoch=self.epoch or None, dims=self.dims, device="cpu")
        if not self.epoch:
            warn_if_unfinished(model, self.run)
        is_file = self.out.suffix in _FORMATS
        suited = (name for name, tower in model.towers.items() if tower.kind.exports_folder != is_file)
        encoder = ExportedEncoder(model, next(suited, next(iter(model.towers))))
        if encoder.tower.kind.exports_folder:
            self._write_folder(encoder)
        else:
            self._write_file(encoder)
        if len(model.towers) > 1 and not self.dims:
            print(
                "these are the features before the projection into the space in which images and texts are compared; "
                f'contrapose.load("{self.run}") embeds both in Python'
            )

    def _write_file(self, encoder: ExportedEncoder) -> None:
        """Write an encoder's weights or graph, and its model card."""
        from contrapose.lab.training.weights import DETECTRON2_ENCODERS, export, export_for_detectron2

        tower = encoder.tower
        if self.out.suffix not in _FORMATS:
            raise ValueError(f"out: expected a name that ends in .safetensors, .onnx or .pkl, got {self.out}")
        check_output_file("out", self.out)
        if self.dims and self.out.suffix == ".pkl":
            raise ValueError(
                "dims: detectron2 uses feature maps, which have no prefix; omit --dims, or use .safetensors"
            )
        if self.out.suffix == ".pkl" and encoder.name not in DETECTRON2_ENCODERS:
            raise ValueError(
                f"out: .pkl is for detectron2, which supports {', '.join(DETECTRON2_ENCODERS)}, but the encoder of {self.run} is "
                f"{encoder.name}; use .safetensors"
            )
        if self.dims and self.out.suffix != ".onnx" and not isinstance(tower.projector, nn.Identity):
            raise self._no_prefix(encoder, "use .onnx")
        card = encoder.card(self.run, self.out.name)  # before anything is written, because it may refuse
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.suffix == ".onnx":
            example = tower.kind.example_input(tower.views)
            network = tower.encoder.network
            if self.dims:
                network = PrefixNetwork(network, tower.projector, self.dims).eval()
            _write_onnx(network, example, self.out, encoder.metadata, encoder.summary)
        elif self.out.suffix == ".pkl":
            export_for_detectron2(tower.encoder, self.out)
        else:
            export(tower.encoder, self.out, encoder.metadata)
        card_file = self.out.with_name(f"{self.out.name}.md")
        card_file.write_text(card, encoding="utf-8")
        print(f"{encoder.name}, {encoder.features} features, written to {self.out}")
        print(f"model card, with the encoder's inputs and example code: {card_file}")

    def _write_folder(self, encoder: ExportedEncoder) -> None:
        """Write an encoder, everything needed to prepare its inputs (such as a tokenizer), and its model card."""
        tower = encoder.tower
        if self.out.suffix in _FORMATS:
            raise ValueError(
                f"out: an encoder of {tower.kind.noun} is written as a folder; use -o {self.out.with_suffix('')}"
            )
        check_directory("out", self.out)
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / "modules.json").exists():
            raise ValueError(
                f"out: {self.out} contains other files; expected a new folder, or a folder that `export` wrote"
            )
        last = dense_prefix(tower.projector, tower.encoder.width, self.dims) if self.dims else None
        if self.dims and last is None:
            raise self._no_prefix(encoder, "train with --head none or --head simcse")
        how_to_load = tower.kind.export(self.out, tower.encoder, tower.views, last=last)
        (self.out / "README.md").write_text(encoder.card(self.run, str(self.out)), encoding="utf-8")
        print(f"{encoder.name}, {encoder.features} features, written to {self.out}")
        print(how_to_load)

    def _no_prefix(self, encoder: ExportedEncoder, instead: str) -> ValueError:
        """Return the error for a form that cannot hold the projector, of whose output the prefix is."""
        head = encoder.model.run.head
        return ValueError(
            f"dims: the run trained prefixes of its projector's output (--head {head}), and {self.out} has the encoder alone; "
            f'{instead}, or in Python contrapose.load("{self.run}", dims={self.dims})'
        )


@dataclass(frozen=True)
class Import:
    """Convert weights from another project's .pth file to .safetensors, for `train --init`. Nothing in the file is executed."""

    file: Positional[Path]
    """A .pth or .pt file with a state_dict."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The .safetensors file to write."""

    def __call__(self) -> None:
        """Write the tensors under their own names, without prefixes such as `module.`."""
        from contrapose.lab.networks.foreign import convert
        from contrapose.lab.networks.weight_files import write_tensors

        if not self.file.is_file():
            raise ValueError(f"file: {self.file} does not exist")
        if self.out.suffix != ".safetensors":
            raise ValueError(f"out: expected a name that ends in .safetensors, got {self.out}")
        check_output_file("out", self.out)
        tensors = convert(self.file)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(self.out, tensors)
        print(f"{len(tensors)} tensors, the first one {next(iter(tensors))}, written to {self.out}")


def _write_parquet(arrays: dict[str, Any], path: Path) -> str:
    """Write one row per image or text: split, features and, if known, label, class, held_out, path and text.

    Return what was written, in words.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"out: writing .parquet needs: {install_command('parquet')}") from error
    tables = []
    for part in ("train", "test"):
        if f"{part}_features" in arrays:
            # With captions, one row per caption: what belongs to its image is repeated.
            rows = arrays.get(f"{part}_image_of_text", slice(None))
            features = arrays[f"{part}_features"][rows]
            columns = {"split": [part] * len(features), "features": list(features)}
            if f"{part}_text_features" in arrays:
                columns["text_features"] = list(arrays[f"{part}_text_features"])
            if f"{part}_labels" in arrays:
                columns["label"] = arrays[f"{part}_labels"].tolist()
                if "classes" in arrays:
                    columns["class"] = arrays["classes"][arrays[f"{part}_labels"]].tolist()
            if f"{part}_held_out" in arrays:
                columns["held_out"] = arrays[f"{part}_held_out"][rows].tolist()
            if f"{part}_paths" in arrays:
                columns["path"] = arrays[f"{part}_paths"][rows].tolist()
            if f"{part}_texts" in arrays:
                columns["text"] = arrays[f"{part}_texts"].tolist()
            tables.append(pa.table(columns))
    # The columns of the two splits may differ: for example, only the test images may have labels.
    table = pa.concat_tables(tables, promote_options="default")
    parquet.write_table(table, path)
    return f"{table.num_rows:,} rows with {', '.join(table.column_names)}"


def _write_onnx(network: Any, example: Any, path: Path, metadata: dict[str, str], summary: str) -> None:
    import torch

    try:
        import onnxscript  # noqa: F401  (torch.onnx needs it, and its own error does not say how to install it)
    except ImportError as error:
        raise ValueError(f"out: writing .onnx needs: {install_command('onnx')}") from error
    program = torch.onnx.export(
        network, (example,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), input_names=[metadata["modality"]],
        output_names=["features"], verbose=False,
    )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.model.doc_string = summary
    program.save(str(path), external_data=False)
