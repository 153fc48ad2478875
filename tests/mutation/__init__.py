"""Small faults put into the library, one at a time, to see whether tests find them: `python -m tests.mutation -h`."""
