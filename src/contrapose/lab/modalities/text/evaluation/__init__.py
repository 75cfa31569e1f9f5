"""Sentence embeddings, evaluated by SentEval's protocols: semantic textual similarity and transfer to classification.

tables       tab-separated files, compressed or not
sts          Spearman correlation with human scores, and alignment and uniformity on STS-B
tfidf        the baseline without training
recorded     STS during training
transfer     accuracy of a classifier on frozen embeddings
classifier   logistic regression with early stopping, many folds at the same time
"""

from contrapose.lab.modalities.text.evaluation.recorded import RecordedSTS, embed_once
from contrapose.lab.modalities.text.evaluation.sts import SentencePair, evaluate_sts, read_sts, spearman
from contrapose.lab.modalities.text.evaluation.tfidf import tfidf_sts
from contrapose.lab.modalities.text.evaluation.transfer import TransferText, evaluate_transfer, read_transfer

__all__ = [
    "RecordedSTS",
    "SentencePair",
    "TransferText",
    "embed_once",
    "evaluate_sts",
    "evaluate_transfer",
    "read_sts",
    "read_transfer",
    "spearman",
    "tfidf_sts",
]
