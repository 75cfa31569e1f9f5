"""What an encoder is worth: accuracies from (train, test) features and labels, and the geometry of its embeddings."""

from contrapose.evaluation.augmented import probe_augmented
from contrapose.evaluation.features import features
from contrapose.evaluation.finetune import FineTune
from contrapose.evaluation.knn import KNN
from contrapose.evaluation.linear import Probe, few_shot
from contrapose.evaluation.measures import GEOMETRY, Measures, bias_values, partners, separation_values
from contrapose.evaluation.probes import PROBES

__all__ = [
    "GEOMETRY",
    "KNN",
    "PROBES",
    "FineTune",
    "Measures",
    "Probe",
    "bias_values",
    "features",
    "few_shot",
    "partners",
    "probe_augmented",
    "separation_values",
]
