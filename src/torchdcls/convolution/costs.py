"""What an operation costs in nanoseconds: three numbers for each, times how much it has to do.

They are fitted to measurements by `python -m benchmarks.fit_costs`: for the CPU on two cores of an AMD EPYC,
for CUDA on an H200. They decide which backend is taken, never what it computes, and they are constants: a
problem is solved in the same way every time.
"""

from .problem import Problem

# The widest padding of the last axis with which torch's depthwise kernel for channels outermost is fast on CPU; with
# some sizes beyond, it fails.
WIDEST_PADDING = 6

# The widest kernel for which torch has fast kernels on CPU where the convolution is not depthwise; beyond, it unfolds
# the input.
WIDEST_DENSE = 14

# operation: nanoseconds (a call, a product, an element moved)
COSTS: dict[str, dict[str, tuple[float, float, float]]] = {
    "cpu": {
        "operator": (80_000, 0, 0),
        "torch depthwise forward": (49_000, 0.0062, 0.089),
        "torch depthwise input gradient": (48_000, 0.016, 0.076),
        "torch depthwise kernel gradient": (120_000, 0.44, 0),
        "channels last": (30_000, 0.0092, 0.027),
        "channels last, moved": (50_000, 0.0081, 0.31),
        "channels first": (48_000, 0.0063, 0.085),
        "channels first, moved": (56_000, 0.0066, 0.42),
        "channels last, kernel gradient": (52_000, 0.011, 0.75),
        "channels first, kernel gradient": (56_000, 0.0075, 0.46),
        "transform": (17_000, 0, 1.2),
        "transform, 1-D": (17_000, 0.066, 0.06),
        "transform, 3-D": (0, 0, 1.8),
        "transform, channels last": (15_000, 0.0053, 1.3),
        "transform, dense": (30_000, 0.023, 1.7),
        "transform, dense, 1-D": (17_000, 0, 1.2),
        "transform, dense, 3-D": (47_000, 0, 2.4),
        "transform kernels, dense": (42_000, 0, 1.5),
        "transform kernels, dense, 1-D": (17_000, 0, 0.99),
        "transform kernels, dense, 3-D": (70_000, 0, 2.3),
        "transform kernels": (15_000, 0, 1.1),
        "transform kernels, 1-D": (8_900, 0.065, 0),
        "transform kernels, 3-D": (35_000, 0, 1.4),
        "multiply": (3_400, 0.0099, 0.08),
        "torch depthwise forward, wide padding": (94_000, 0.37, 18),
        "torch depthwise kernel gradient, 3 columns at most": (46_000, 0.00028, 0.099),
        "torch depthwise forward, 1-D": (60_000, 0, 0.097),
        "torch depthwise forward, wide padding, 1-D": (50_000, 0.19, 0),
        "torch depthwise input gradient, 1-D": (61_000, 0.008, 0.079),
        "torch depthwise kernel gradient, 1-D": (34_000, 0.3, 0),
        "torch depthwise kernel gradient, 3 columns at most, 1-D": (56_000, 0, 0.094),
        "torch dense forward": (57_000, 0.005, 0.071),
        "torch dense input gradient": (56_000, 0.0051, 0.071),
        "torch dense kernel gradient": (57_000, 0.0056, 0.035),
        "torch wide forward": (41_000, 0.0055, 0.2),
        "torch wide input gradient": (2_200, 0.0034, 0.55),
        "torch wide kernel gradient": (410_000, 0.058, 0.56),
        "torch wide kernel gradient, 1-D": (7_100, 0.0056, 0.36),
        "multiply matrices": (8_600, 0.022, 0.3),
        "torch grouped forward": (53_000, 0.0045, 0.19),
        "torch grouped input gradient": (52_000, 0.0045, 0.19),
        "torch grouped kernel gradient": (54_000, 0.0055, 0.2),
        "torch grouped forward, uneven": (54_000, 0.017, 0.25),
        "torch grouped input gradient, uneven": (55_000, 0.017, 0.26),
        "torch grouped kernel gradient, uneven": (28_000, 0.11, 0),
        "torch depthwise forward, 3-D": (100_000, 0.01, 0.12),
        "torch depthwise input gradient, 3-D": (100_000, 0.44, 1.7),
        "torch depthwise kernel gradient, 3-D": (14_000, 0.37, 0.019),
    },
    "cuda": {
        "operator": (200_000, 0, 0),  # measured: 500_000, much of which passes while the device works
        "torch depthwise forward": (18_000, 0.00061, 0.0023),
        "torch depthwise forward, wide padding": (21_000, 0.00057, 0),
        "torch depthwise input gradient": (24_000, 0.0011, 0.0018),
        "torch depthwise kernel gradient": (30_000, 0.0024, 0),
        "torch depthwise kernel gradient, 3 columns at most": (22_000, 0.0016, 0.0008),
        # cuDNN's, with channels innermost: fast up to 7x7, and faster still in half precision
        "torch depthwise forward, channels last": (25_000, 0, 0.0094),
        "torch depthwise input gradient, channels last": (38_000, 0.0001, 0.0065),
        "torch depthwise kernel gradient, channels last": (59_000, 0.0027, 0.073),
        "torch depthwise forward, channels last, half": (21_000, 0, 0.0037),
        "torch depthwise input gradient, channels last, half": (23_000, 0, 0.0094),
        "torch depthwise kernel gradient, channels last, half": (41_000, 0, 0.0024),
        "torch depthwise forward, channels last, 8 taps at least": (50_000, 0.0043, 0.0018),
        "torch depthwise input gradient, channels last, 8 taps at least": (110_000, 0.0016, 0.023),
        "torch depthwise kernel gradient, channels last, 8 taps at least": (63_000, 0.0065, 0.045),
        "torch depthwise forward, channels last, half, 8 taps at least": (42_000, 0.0036, 0.038),
        "torch depthwise input gradient, channels last, half, 8 taps at least": (71_000, 0.0016, 0.036),
        "torch depthwise kernel gradient, channels last, half, 8 taps at least": (80_000, 0.0013, 0.13),
        "torch depthwise forward, 3-D": (16_000, 0.0011, 0),
        "torch depthwise input gradient, 3-D": (17_000, 0.0033, 0),
        "torch depthwise kernel gradient, 3-D": (23_000, 0.0025, 0),
        "torch grouped forward": (37_000, 0.0012, 0.002),
        "torch grouped input gradient": (49_000, 0.00058, 0.02),
        "torch grouped kernel gradient": (27_000, 0.0017, 0.046),
        "torch dense forward": (27_000, 9.1e-05, 0),
        "torch dense forward, 1-D": (24_000, 4.9e-05, 0),
        "torch dense forward, 3-D": (19_000, 0.00066, 0),
        "torch dense input gradient": (28_000, 0.00019, 0),
        "torch dense input gradient, 1-D": (29_000, 5.1e-05, 0),
        "torch dense input gradient, 3-D": (26_000, 0.00041, 0),
        "torch dense kernel gradient": (35_000, 0.00012, 0),
        "torch dense kernel gradient, 1-D": (29_000, 0, 0.036),
        "torch dense kernel gradient, 3-D": (38_000, 0.00027, 0),
        "transform": (41_000, 0.00046, 0),
        "transform kernels": (41_000, 0.00054, 0),
        "multiply": (21_000, 0.004, 0),
        "multiply matrices": (46_000, 0.00029, 0.0079),
    },
}


def by_axes(operation: str, problem: Problem) -> str:
    """The name of an operation for the problem's number of axes; 2-D is the general one."""
    return operation if problem.axes == 2 else f"{operation}, {problem.axes}-D"


def estimate(operation: str, problem: Problem, products: float, elements: float) -> float:
    """Nanoseconds that an operation needs on the problem's device for so many products and elements."""
    call, product, element = _table(problem.device)[row(operation, problem.device)]
    return call + product * products + element * elements


def row(operation: str, device: str) -> str:
    """Where an operation stands in a device's table.

    Operations are named from the general to the particular, with commas between; where the table does not tell
    particular forms of one apart, the general row holds.

    >>> row("transform, channels last, 3-D", "cpu")
    'transform, channels last'
    """
    table = _table(device)
    while operation not in table:
        operation = operation[: operation.rindex(", ")]
    return operation


def _table(device: str) -> dict[str, tuple[float, float, float]]:
    return COSTS.get(device, COSTS["cpu"])
