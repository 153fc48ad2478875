"""The package as users get it: built, checked, installed on its own and used: `python -m tests.distribution`."""
