"""The hardest negatives of each anchor: the similarity from which on they are, and sums over them."""
