"""The hardest negatives of each anchor: their similarity threshold, and sums over them."""
