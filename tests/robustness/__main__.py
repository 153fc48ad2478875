"""`python -m tests.robustness`: try random configurations against the oracles and count what came.

A valid configuration must agree with its oracle, in value and gradient, within the one table of
tolerances (tests/tolerances.py). An invalid one, a valid one with one argument spoilt, must be refused by a
ValueError or TypeError that names the argument. Everything else is a surprise, and there must be none.
"""

import argparse
import sys

from tests.robustness import run


def main() -> int:
    """Print the counts; 1 where there was a surprise."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many valid configurations")
    parser.add_argument("--invalid", type=int, default=500, help="how many invalid ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=run.FAMILIES, help="only these")
    parser.add_argument("--show", metavar="CASE", help="print the code of one configuration, as `valid-17`, and run it")
    arguments = parser.parse_args()
    if arguments.show:
        kind, _, index = arguments.show.partition("-")
        case = run.draw(kind, arguments.seed, int(index), arguments.family)
        print(case.code)
        surprise = case.run()
        print(f"# {surprise or 'as it should be'}")
        return int(surprise is not None)
    counts = run.report(arguments.count, arguments.invalid, arguments.seed, arguments.family)
    return int(counts["surprises"] > 0)


if __name__ == "__main__":
    sys.exit(main())
