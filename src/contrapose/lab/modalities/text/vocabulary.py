"""Training of a WordPiece vocabulary on given texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.validate import check_count

# BERT's names, which transformers and sentence-transformers know. Padding is token 0.
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_RARE = 100_000  # a character rarer than one in this many has no token: its words become [UNK]
# The WordPiece model maps these words to [UNK] in any case, and the trainer would take seconds for each.
_LONG_WORD = re.compile("[A-Za-z0-9]{101,}")


def train_vocabulary(texts: Iterable[str], *, size: int = 8192) -> Any:
    """Return a PreTrainedTokenizerFast with a WordPiece vocabulary of at most `size` tokens, in lower case.

    The same texts give the same vocabulary. The texts are read twice.
    """
    check_count("size", size, least=100)
    texts = texts if iter(texts) is not texts else list(texts)  # an iterator can be read only once
    with needs_extra("a vocabulary", "text", TEXT_PACKAGES):
        from tokenizers import Tokenizer, decoders, models, processors, trainers
        from transformers import PreTrainedTokenizerFast

    special = list(SPECIAL_TOKENS.values())
    draft = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    _set_splitting(draft)
    characters = _frequent_characters(texts, draft.normalizer, most=(size - len(special)) // 2)
    # The trainer numbers the continuations (##a) in the order of a hash table, which differs from call to call, and breaks
    # ties by these numbers. Continuations that are special tokens have fixed numbers.
    continuations = [f"##{character}" for character in characters if _continues_a_word(character, draft)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=special + continuations,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    draft.train_from_iterator((_LONG_WORD.sub(" ", text) for text in texts), trainer)

    # A new tokenizer with the same vocabulary, in which continuations are not special.
    tokenizer = Tokenizer(models.WordPiece(draft.get_vocab(), unk_token="[UNK]"))
    _set_splitting(tokenizer)
    ends = [(token, draft.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS)


def _set_splitting(tokenizer: Any) -> None:
    """Split texts into words as BERT's uncased tokenizer does."""
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _frequent_characters(texts: Iterable[str], normalizer: Any, *, most: int) -> list[str]:
    """Return the normalised characters that are not rare, most frequent first."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normalised in normalizer.normalize_str(character).split():
            counts.update(dict.fromkeys(normalised, count))
    if not counts:
        raise ValueError("texts: expected texts with letters to train a vocabulary on, got none")
    frequent = [character for character, count in counts.items() if count * _RARE >= counts.total()]
    return sorted(frequent, key=lambda character: (-counts[character], character))[:most]


def _continues_a_word(character: str, tokenizer: Any) -> bool:
    """Return whether a character can follow another one in a word; punctuation and Chinese characters cannot."""
    text = tokenizer.normalizer.normalize_str(f"a{character}")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    # The tokenizer's last call has set these; if saved, they would be the defaults for everyone who loads the file.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def pad_on_the_right(tokenizer: Any, folder: Path | str) -> None:
    """Set padding to the right; refuse a tokenizer without a padding token. `folder` is for the message."""
    if tokenizer.pad_token is None:
        raise ValueError(
            f"encoder: the tokenizer in {folder} has no padding token; add a pad_token to its tokenizer_config.json"
        )
    tokenizer.padding_side = "right"  # with padding on the left, the first state would not belong to [CLS]


def check_special_tokens(tokenizer: Any, length: float, folder: Path | str) -> None:
    """Raise ValueError if a tokenizer adds so many special tokens to each text that no token of the text is left.

    tokenizer   a tokenizer of transformers
    length      number of tokens after which a text is truncated
    folder      where the tokenizer was read, for the message
    """
    special = tokenizer.num_special_tokens_to_add()
    if special >= length:
        raise ValueError(
            f"encoder: the tokenizer in {folder}: expected fewer special tokens around a text than its {length:g} tokens, got "
            f"{special:,}"
        )
