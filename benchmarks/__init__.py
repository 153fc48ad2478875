"""Side-by-side measurements: `python -m benchmarks --help`."""
