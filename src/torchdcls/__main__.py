"""``python -m torchdcls``: the command line, as ``torchdcls`` is."""

import sys

if __name__ == "__main__":
    from .training.cli import main

    sys.exit(main())
