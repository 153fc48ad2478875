"""Draw configurations by their number, run them, and count."""

import collections
import warnings

import torch
from tests.robustness import networks, valid
from tests.robustness.case import Case, Draw
from tests.robustness.invalid import invalid_case

# What valid configurations are drawn from, and how often.
FAMILIES = {
    "convolve": (valid.convolve_case, 30),
    "conv layers": (valid.conv_case, 12),
    "Dcls layers": (valid.dcls_case, 25),
    "from_conv": (valid.from_conv_case, 10),
    "dense_kernel": (valid.dense_kernel_case, 10),
    "to_dcls": (networks.to_dcls_case, 10),
    "share": (networks.share_case, 3),
}


def draw(kind: str, seed: int, index: int, family: str | None = None) -> Case:
    """The configuration of that number, the same every time."""
    chance = Draw(f"{kind}-{seed}-{index}")
    if kind == "invalid":
        return invalid_case(chance)
    makers, weights = zip(*FAMILIES.values(), strict=True)
    drawn = chance.choices(makers, weights)[0]
    return (FAMILIES[family][0] if family else drawn)(chance)


def report(count: int, invalid: int, seed: int, family: str | None = None) -> collections.Counter:
    """Run so many of each kind, print what surprises, and counts at the end."""
    torch.set_num_threads(1)
    counts: collections.Counter = collections.Counter(agreements=0, **{"clear refusals": 0}, surprises=0)
    tried: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for kind, good, number in (("valid", "agreements", count), ("invalid", "clear refusals", invalid)):
        for index in range(number):
            case = draw(kind, seed, index, family)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                surprise = case.run()
            counts["surprises" if surprise else good] += 1
            tried[case.family]["surprises" if surprise else good] += 1
            if surprise:
                again = f"python -m tests.robustness --seed {seed} --show {kind}-{index}"
                again += f" --family {family!r}" if family else ""
                print(f"SURPRISE {kind}-{index}, {case.family}: {surprise}\n# {again}\n{case.code}\n", flush=True)
    for name, results in tried.items():
        print(f"{name:24}" + ", ".join(f"{number} {result}" for result, number in results.items()))
    print(f"seed {seed}: " + ", ".join(f"{number} {result}" for result, number in counts.items()))
    return counts
