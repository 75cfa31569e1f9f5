"""
Fine-tuning sentence embeddings
===============================

``ContrastiveLoss`` is a loss for the trainer of sentence-transformers. By default it equals
``MultipleNegativesRankingLoss``; it also takes any temperature, objective and choice of negatives. The data are pairs from
Python's own documentation: the name of a function, and the first line of its docstring.
"""

import importlib
import inspect
import tempfile

import matplotlib.pyplot as plt
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from contrapose import cosine
from contrapose.integrations.sentence_transformers import ContrastiveLoss
from contrapose.metrics import recall_at

modules = "argparse ast asyncio calendar collections csv datetime decimal difflib email gzip inspect json logging"
modules += " math operator os pathlib pickle random re shutil socket sqlite3 statistics string tarfile tempfile zipfile"
pairs = {}
for module in map(importlib.import_module, modules.split()):
    for name, member in inspect.getmembers(module, callable):
        text = (inspect.getdoc(member) or "").partition("\n")[0]
        if not name.startswith("_") and len(text.split()) > 3:
            pairs[text] = f"{module.__name__} {name}".replace("_", " ")
torch.manual_seed(0)
order = torch.randperm(len(pairs)).tolist()
names, texts = [list(pairs.values())[i] for i in order], [list(pairs)[i] for i in order]
print(f"{len(pairs)} pairs, such as {names[0]!r}: {texts[0]!r}")

# %%
# Usually you would start from a pretrained model, ``SentenceTransformer("all-MiniLM-L6-v2")``. To run without a download, this
# example starts from a table of random vectors, one for each piece of a word.

tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
tokenizer.normalizer = normalizers.Lowercase()
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(names + texts, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[UNK]"]))
model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=128)], device="cpu")


def recall() -> dict[str, float]:
    """Return how often the right docstring is among the 1, 5 and 10 most similar ones, for the last 200 pairs."""
    queries, documents = (
        model.encode(part[-200:], convert_to_tensor=True, show_progress_bar=False) for part in (names, texts)
    )
    return recall_at(queries, documents, ks=(1, 5, 10))


# %%
# The trainer is the usual one; only the loss is new. ``cosine(0.05, 0.1)`` is DySTreSS's temperature.

before = recall()
loss = ContrastiveLoss(model, temperature=cosine(0.05, 0.1), symmetric=True)
with tempfile.TemporaryDirectory() as folder:
    arguments = SentenceTransformerTrainingArguments(
        folder, num_train_epochs=5, per_device_train_batch_size=64, learning_rate=0.02, use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True, report_to="none",
    )  # fmt: skip
    dataset = Dataset.from_dict({"query": names[:-200], "document": texts[:-200]})
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss).train()
after = recall()

# %%
# Docstrings that were not in the training data, found by the names of their functions:

positions = torch.arange(3)
plt.bar(positions - 0.2, list(before.values()), width=0.4, label="before")
plt.bar(positions + 0.2, list(after.values()), width=0.4, label="after")
plt.xticks(positions, ["1", "5", "10"])
plt.xlabel("number of most similar docstrings")
plt.ylabel("names whose docstring is among them, %")
plt.title(f"recall@1 on 200 held-out pairs: {before['recall@1']:.0f} % before, {after['recall@1']:.0f} % after")
plt.legend()
plt.show()
