"""Evaluation of an encoder: accuracies from (train, test) features and labels, and the geometry of its embeddings."""

from contrapose.lab.evaluation.augmented import probe_augmented
from contrapose.lab.evaluation.features import features
from contrapose.lab.evaluation.finetune import FINE_TUNING, FineTune
from contrapose.lab.evaluation.knn import KNN
from contrapose.lab.evaluation.linear import Probe, few_shot
from contrapose.lab.evaluation.measures import (
    GEOMETRY,
    Measures,
    bias_values,
    explain_metric,
    partners,
    separation_values,
)
from contrapose.lab.evaluation.probes import PROBES
from contrapose.lab.evaluation.scores import METRICS, score
from contrapose.lab.evaluation.shots import FewShot, FewShotResult, n_shot
from contrapose.lab.evaluation.transfer import PROTOCOLS, TRANSFER_SETS, TransferSet, transfer_score
from contrapose.lab.modalities.captions.recall import CaptionIndex, caption_chance, caption_recall
from contrapose.lab.modalities.captions.zero_shot import TEMPLATES, class_embeddings, zero_shot_chance, zero_shot_scores
from contrapose.metrics.retrieval import recall_at

__all__ = [
    "FINE_TUNING",
    "GEOMETRY",
    "KNN",
    "METRICS",
    "PROBES",
    "PROTOCOLS",
    "TEMPLATES",
    "TRANSFER_SETS",
    "CaptionIndex",
    "FewShot",
    "FewShotResult",
    "FineTune",
    "Measures",
    "Probe",
    "TransferSet",
    "bias_values",
    "caption_chance",
    "caption_recall",
    "class_embeddings",
    "explain_metric",
    "features",
    "few_shot",
    "n_shot",
    "partners",
    "probe_augmented",
    "recall_at",
    "score",
    "separation_values",
    "transfer_score",
    "zero_shot_chance",
    "zero_shot_scores",
]
