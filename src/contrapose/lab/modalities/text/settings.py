"""Settings of a run on texts, unless the user chooses others."""

from contrapose.lab.modalities.modality import Settings

# What SimCSE compares, with the catalogue's values for it.
TEXT_SETTINGS: Settings = {
    "modality": "text",
    "framework": "simcse",
    "head": "none",
    "loss": "simclr",
    "schedule": "linear",
    "warmup": 0.25,
}
