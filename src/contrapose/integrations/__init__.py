"""Losses of contrapose in the shape that other libraries expect: change one import and keep the training loop.

    contrapose.integrations.sentence_transformers   ContrastiveLoss, CachedContrastiveLoss
    contrapose.integrations.open_clip               ClipLoss, SigLipLoss
    contrapose.integrations.lightly                 NTXentLoss

Each library is imported only by its own module. `docs/integrations.md` has an example for each library.
"""
