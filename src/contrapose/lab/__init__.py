"""The laboratory: commands and code that train, measure and reproduce. It imports the library; the library never imports it."""
