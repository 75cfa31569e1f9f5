"""What an encoder is worth: accuracies from (train, test) features and labels, and the geometry of its embeddings."""

from contrapose.evaluation.augmented import probe_augmented
from contrapose.evaluation.features import features
from contrapose.evaluation.finetune import FineTune
from contrapose.evaluation.knn import KNN
from contrapose.evaluation.linear import Probe, few_shot
from contrapose.evaluation.measures import Measures, partners
from contrapose.evaluation.probes import PROBES

__all__ = ["KNN", "PROBES", "FineTune", "Measures", "Probe", "features", "few_shot", "partners", "probe_augmented"]
