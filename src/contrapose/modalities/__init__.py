"""Kinds of data: what a data set is, how views of a sample are made, and which encoders there are."""
