"""Random configurations, valid and invalid, against the oracles: `python -m tests.robustness --help`."""
