"""Default settings for a run on texts, and settings for studies at the smoke scale."""

from contrapose.lab.modalities.modality import Settings

# SimCSE's loss, with its values in the catalogue. With Adam's usual β₂ (0.999), a rare batch of similar sentences after
# many easy ones makes a step eight times as long as usual, and a transformer from scratch collapsed after 22 epochs.
TEXT_SETTINGS: Settings = {
    "modality": "text",
    "framework": "simcse",
    "head": "none",
    "loss": "simclr",
    "schedule": "linear",
    "warmup": 0.25,
    "adam_beta2": 0.98,
}
# Takes seconds on a CPU: it uses the first sentences of the built-in pairs and, unless the user gives development pairs,
# the weights after the last step.
SMOKE_TEXT: Settings = {
    "data": "pydoc", "limit": 128, "views": "dropout", "encoder": "tiny", "optimiser": "adamw", "adam_beta2": 0.999, "lr": 5e-4,
    "schedule": "cosine", "warmup": 0.0, "weight_decay": 0.0, "epochs": 2, "epoch_slices": 1, "batch": 32, "precision": "fp32",
    "knn_every": 2, "metrics": 48, "extra_metrics": (), "keep_best": "",
}  # fmt: skip
