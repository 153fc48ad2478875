"""Training from recipes: data, the Lightning module, the command line. See ``docs/training.md``."""
