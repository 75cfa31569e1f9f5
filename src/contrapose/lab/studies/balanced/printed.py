"""The numbers in the balanced-loss paper, by table: accuracies in %. The paper's figures give no numbers."""

from __future__ import annotations

# ImageNet, by similarity measure.
TABLE1 = {"cosine, normalised": 65.98, "dot product": 0.43, "negative Euclidean": 10.63}
# Uniform and long-tailed ImageNet.
TABLE2 = {"SimCLR": (20.82, 13.65)}
TABLE4 = {
    "k-NN CIFAR-10": 80.32,
    "linear probe CIFAR-10": 86.08,
    "k-NN ImageNet": 51.00,
    "linear probe ImageNet": 67.40,
}
TABLE5 = {"balanced, α = 2, λ = 1": (21.24, 15.01)}
