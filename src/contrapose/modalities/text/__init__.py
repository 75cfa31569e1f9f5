"""Text: encoders of sentences."""
