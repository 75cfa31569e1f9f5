"""Hard negatives from a corpus: the documents most similar to a query that are not its own, without likely false negatives."""

from contrapose.mining.negatives import MinedNegatives, mine

__all__ = ["MinedNegatives", "mine"]
