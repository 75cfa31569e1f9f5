"""Measures: the quantities that studies measure on their runs. `measures.measure` defines the interface."""

from contrapose.lab.studies.measures.before_training import BeforeTraining
from contrapose.lab.studies.measures.captions import ZeroShot, caption_recall
from contrapose.lab.studies.measures.classifiers import (
    FineTuning,
    KNNHits,
    LinearProbe,
    LinearSVM,
    NearestNeighbours,
    References,
)
from contrapose.lab.studies.measures.detection import Detection
from contrapose.lab.studies.measures.drawings import Histograms, Map
from contrapose.lab.studies.measures.measure import Context, Evaluation, Measure, Words
from contrapose.lab.studies.measures.metrics import Metric, RecordedMetric
from contrapose.lab.studies.measures.queries import QueryMap, QueryWeights
from contrapose.lab.studies.measures.records import RecordedKNN, RecordEntry, StepSeconds
from contrapose.lab.studies.measures.retrieval import JointHits, JointReferences, RecallHits
from contrapose.lab.studies.measures.sentences import SentenceScore
from contrapose.lab.studies.measures.transfer import Transfer

__all__ = [
    "BeforeTraining",
    "Context",
    "Detection",
    "Evaluation",
    "FineTuning",
    "Histograms",
    "JointHits",
    "JointReferences",
    "KNNHits",
    "LinearProbe",
    "LinearSVM",
    "Map",
    "Measure",
    "Metric",
    "NearestNeighbours",
    "QueryMap",
    "QueryWeights",
    "RecallHits",
    "RecordEntry",
    "RecordedKNN",
    "RecordedMetric",
    "References",
    "SentenceScore",
    "StepSeconds",
    "Transfer",
    "Words",
    "ZeroShot",
    "caption_recall",
]
