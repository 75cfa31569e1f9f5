"""Sentence embeddings, evaluated by SentEval's protocols: semantic textual similarity and transfer to classification.

tables       tab-separated files, compressed or not
sts          Spearman correlation with human scores, and alignment and uniformity on STS-B
tfidf        the baseline without training
jackknife    uncertainty of the difference between two scores
recorded     STS during training
transfer     accuracy of a classifier on frozen embeddings
classifier   logistic regression with early stopping, many folds at the same time
"""

from contrapose.lab.modalities.text.evaluation.jackknife import jackknife_margin, rows_of_score
from contrapose.lab.modalities.text.evaluation.recorded import RecordedSTS, embed_once
from contrapose.lab.modalities.text.evaluation.sts import (
    SentencePair,
    correlations,
    cosine_of,
    embed_pairs,
    evaluate_sts,
    read_sts,
    score_embeddings,
    sentences_of,
    spearman,
    unit_pairs,
)
from contrapose.lab.modalities.text.evaluation.tfidf import tfidf_cosine, tfidf_sts
from contrapose.lab.modalities.text.evaluation.transfer import TransferText, evaluate_transfer, read_transfer

__all__ = [
    "RecordedSTS",
    "SentencePair",
    "TransferText",
    "correlations",
    "cosine_of",
    "embed_once",
    "embed_pairs",
    "evaluate_sts",
    "evaluate_transfer",
    "jackknife_margin",
    "read_sts",
    "read_transfer",
    "rows_of_score",
    "score_embeddings",
    "sentences_of",
    "spearman",
    "tfidf_cosine",
    "tfidf_sts",
    "unit_pairs",
]
