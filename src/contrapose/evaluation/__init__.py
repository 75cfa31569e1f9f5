"""What an encoder is worth: accuracies from (train, test) features and labels, and the geometry of its embeddings."""

from contrapose.evaluation.augmented import probe_augmented
from contrapose.evaluation.captions import CaptionIndex, caption_chance, caption_recall
from contrapose.evaluation.features import features
from contrapose.evaluation.finetune import FINE_TUNING, FineTune
from contrapose.evaluation.knn import KNN
from contrapose.evaluation.linear import Probe, few_shot
from contrapose.evaluation.measures import GEOMETRY, Measures, bias_values, partners, separation_values
from contrapose.evaluation.probes import PROBES
from contrapose.evaluation.retrieval import recall_at
from contrapose.evaluation.scores import METRICS, score
from contrapose.evaluation.shots import FewShot, FewShotResult, n_shot
from contrapose.evaluation.transfer import PROTOCOLS, TRANSFER_SETS, TransferSet, transfer_score
from contrapose.evaluation.zero_shot import TEMPLATES, class_embeddings, zero_shot_chance, zero_shot_scores

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
