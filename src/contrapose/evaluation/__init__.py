"""What frozen features are worth: functions of (train, test) features and labels."""

from contrapose.evaluation.features import features
from contrapose.evaluation.knn import KNN

__all__ = ["KNN", "features"]
