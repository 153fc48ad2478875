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
        "operator": (93_000, 0, 0),
        "torch depthwise forward": (42_000, 0.003, 0.12),
        "torch depthwise input gradient": (45_000, 0.0078, 0.099),
        "torch depthwise kernel gradient": (27_000, 0.23, 1.4),
        "channels last": (35_000, 0.006, 0.13),
        "channels first": (41_000, 0.0017, 0.28),
        "channels last, kernel gradient": (45_000, 0.0052, 0.4),
        "channels first, kernel gradient": (49_000, 0.0053, 0.55),
        "transform": (17_000, 0, 0.95),
        "transform kernels": (15_000, 0.059, 0.46),
        "multiply": (3_400, 0, 0.083),
        "torch depthwise forward, wide padding": (44_000, 0.17, 0.11),
        "torch depthwise kernel gradient, 3 taps at most": (39_000, 0.0038, 0.13),
        "torch dense forward": (52_000, 0.0036, 0.12),
        "torch dense input gradient": (46_000, 0.0038, 0.14),
        "torch dense kernel gradient": (50_000, 0.0044, 0.067),
        "multiply matrices": (16_000, 0.027, 0.7),
        "torch grouped forward": (61_000, 0.006, 0.22),
        "torch grouped input gradient": (58_000, 0.0062, 0.22),
        "torch grouped kernel gradient": (52_000, 0.0084, 0.26),
        "torch depthwise 3-D forward": (93_000, 0.0065, 0.16),
        "torch depthwise 3-D input gradient": (36_000, 0.31, 2.1),
        "torch depthwise 3-D kernel gradient": (23_000, 0.25, 0.8),
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
        "transform kernels": (30_000, 0.0005, 0.02),
        "multiply": (10_000, 0.0005, 0.01),
        "multiply matrices": (20_000, 0.0005, 0.01),
    },
}


def estimate(operation: str, problem: Problem, products: float, elements: float) -> float:
    """Nanoseconds that an operation needs on the problem's device for so many products and elements."""
    call, product, element = COSTS.get(problem.device, COSTS["cpu"])[operation]
    return call + product * products + element * elements
