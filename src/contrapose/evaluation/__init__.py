"""What frozen features are worth: functions of (train, test) features and labels."""

from contrapose.evaluation.features import features
from contrapose.evaluation.finetune import FineTune
from contrapose.evaluation.knn import KNN
from contrapose.evaluation.linear import PROBES, Probe, few_shot

__all__ = ["KNN", "PROBES", "FineTune", "Probe", "features", "few_shot"]
