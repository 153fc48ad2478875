"""What an operation costs in nanoseconds: three numbers for each, times how much it has to do.

The numbers for the CPU are fitted to measurements by `python -m benchmarks.fit_costs`; those for CUDA
are estimates that nobody has measured yet. They decide which backend is taken, never what it computes,
and they are constants: a problem is solved in the same way every time.
"""

from .problem import Problem

# The widest padding with which torch's depthwise kernel for channels outermost is fast on CPU; with some
# sizes beyond, it fails.
WIDEST_PADDING = 6

# operation: nanoseconds (a call, a product, an element moved)
COSTS: dict[str, dict[str, tuple[float, float, float]]] = {
    "cpu": {
        "operator": (200_000, 0, 0),  # what torch takes to call an operator that is not its own
        "torch depthwise forward": (60_000, 0.008, 0.22),
        "torch depthwise input gradient": (64_000, 0.015, 0.21),
        "torch depthwise kernel gradient": (80_000, 0.38, 0.83),
        "channels last": (68_000, 0.011, 0.24),
        "channels first": (69_000, 0.0055, 0.53),
        "transform": (30_000, 0.022, 1.4),
        "multiply": (6_000, 0.14, 0.085),
        "torch depthwise forward, wide padding": (39_000, 0.25, 0),
        "torch depthwise kernel gradient, 3 taps at most": (52_000, 0.014, 0.21),
        "torch dense forward": (30_000, 0.0082, 0.39),
        "torch dense input gradient": (27_000, 0.0083, 0.41),
        "torch dense kernel gradient": (28_000, 0.0098, 0.29),
        "multiply matrices": (0, 0.35, 2),
        "torch grouped forward": (73_000, 0.0082, 0.28),
        "torch grouped input gradient": (67_000, 0.0082, 0.31),
        "torch grouped kernel gradient": (68_000, 0.012, 0.21),
        "torch depthwise 3-D forward": (95_000, 0.01, 0.32),
        "torch depthwise 3-D input gradient": (23_000, 0.32, 2.7),
        "torch depthwise 3-D kernel gradient": (71_000, 0.39, 0),
    },
    "cuda": {  # estimates
        "operator": (100_000, 0, 0),
        "torch depthwise forward": (10_000, 0.0005, 0.003),
        "torch depthwise forward, wide padding": (10_000, 0.0005, 0.003),
        "torch depthwise input gradient": (10_000, 0.0005, 0.003),
        "torch depthwise kernel gradient": (10_000, 0.002, 0.003),
        "torch depthwise kernel gradient, 3 taps at most": (10_000, 0.002, 0.003),
        "torch depthwise 3-D forward": (10_000, 0.001, 0.003),
        "torch depthwise 3-D input gradient": (10_000, 0.001, 0.003),
        "torch depthwise 3-D kernel gradient": (10_000, 0.004, 0.003),
        "torch grouped forward": (10_000, 0.0002, 0.003),
        "torch grouped input gradient": (10_000, 0.0002, 0.003),
        "torch grouped kernel gradient": (10_000, 0.0004, 0.003),
        "torch dense forward": (10_000, 0.00005, 0.003),
        "torch dense input gradient": (10_000, 0.00005, 0.003),
        "torch dense kernel gradient": (10_000, 0.00005, 0.003),
        "transform": (30_000, 0.0005, 0.02),
        "multiply": (10_000, 0.0005, 0.01),
        "multiply matrices": (20_000, 0.0005, 0.01),
    },
}


def estimate(operation: str, problem: Problem, products: float, elements: float) -> float:
    """Nanoseconds that an operation needs on the problem's device for so many products and elements."""
    call, product, element = COSTS.get(problem.device, COSTS["cpu"])[operation]
    return call + product * products + element * elements
