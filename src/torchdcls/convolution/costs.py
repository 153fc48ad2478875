"""What an operation costs in nanoseconds: three numbers for each, times how much it has to do.

They are fitted to measurements by `python -m benchmarks.fit_costs`: for the CPU on two cores of an AMD EPYC,
for CUDA on an H200. They decide which backend is taken, never what it computes, and they are constants: a
problem is solved in the same way every time.
"""

from .problem import Problem

# The widest padding of the last axis with which torch's depthwise kernel for channels outermost is fast on CPU; with
# some sizes beyond, it fails.
WIDEST_PADDING = 6

# operation: nanoseconds (a call, a product, an element moved)
COSTS: dict[str, dict[str, tuple[float, float, float]]] = {
    "cpu": {
        "operator": (85_000, 0, 0),
        "torch depthwise forward": (56_000, 0.0052, 0.075),
        "torch depthwise input gradient": (56_000, 0.014, 0.061),
        "torch depthwise kernel gradient": (36_000, 0.45, 0.15),
        "channels last": (30_000, 0.0086, 0.025),
        "channels last, moved": (43_000, 0.012, 0.28),
        "channels first": (42_000, 0.0058, 0.12),
        "channels first, moved": (45_000, 0.0074, 0.65),
        "channels last, kernel gradient": (45_000, 0.01, 0.75),
        "channels first, kernel gradient": (46_000, 0.0095, 0.52),
        "transform": (14_000, 0, 0.91),
        "transform, channels last": (17_000, 0, 1.1),
        "transform kernels": (32_000, 0.11, 0),
        "multiply": (3_100, 0.092, 0.057),
        "torch depthwise forward, wide padding": (26_000, 0.36, 0),
        "torch depthwise kernel gradient, 3 columns at most": (44_000, 0.0053, 0.23),
        "torch dense forward": (48_000, 0.0043, 0.05),
        "torch dense 1-D forward": (49_000, 0.0045, 0.048),
        "torch dense 3-D forward": (22_000, 0.0064, 0.094),
        "torch dense input gradient": (50_000, 0.0044, 0.051),
        "torch dense 1-D input gradient": (44_000, 0.0045, 0.066),
        "torch dense 3-D input gradient": (47_000, 0.0061, 0.069),
        "torch dense kernel gradient": (55_000, 0.0049, 0.0094),
        "torch dense 1-D kernel gradient": (44_000, 0.005, 0.053),
        "torch dense 3-D kernel gradient": (12_000, 0.0076, 0.061),
        "multiply matrices": (9_800, 0.016, 0.73),
        "torch grouped forward": (57_000, 0.0051, 0.18),
        "torch grouped input gradient": (58_000, 0.0052, 0.18),
        "torch grouped kernel gradient": (56_000, 0.007, 0.14),
        "torch depthwise 3-D forward": (88_000, 0.0085, 0.12),
        "torch depthwise 3-D input gradient": (63_000, 0.39, 1.2),
        "torch depthwise 3-D kernel gradient": (20_000, 0.32, 0),
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
        "torch depthwise 3-D forward": (16_000, 0.0011, 0),
        "torch depthwise 3-D input gradient": (17_000, 0.0033, 0),
        "torch depthwise 3-D kernel gradient": (23_000, 0.0025, 0),
        "torch grouped forward": (37_000, 0.0012, 0.002),
        "torch grouped input gradient": (49_000, 0.00058, 0.02),
        "torch grouped kernel gradient": (27_000, 0.0017, 0.046),
        "torch dense forward": (27_000, 9.1e-05, 0),
        "torch dense 1-D forward": (24_000, 4.9e-05, 0),
        "torch dense 3-D forward": (19_000, 0.00066, 0),
        "torch dense input gradient": (28_000, 0.00019, 0),
        "torch dense 1-D input gradient": (29_000, 5.1e-05, 0),
        "torch dense 3-D input gradient": (26_000, 0.00041, 0),
        "torch dense kernel gradient": (35_000, 0.00012, 0),
        "torch dense 1-D kernel gradient": (29_000, 0, 0.036),
        "torch dense 3-D kernel gradient": (38_000, 0.00027, 0),
        "transform": (41_000, 0.00046, 0),
        "transform, channels last": (41_000, 0.00046, 0),  # taken to be the same
        "transform kernels": (41_000, 0.00054, 0),
        "multiply": (21_000, 0.004, 0),
        "multiply matrices": (46_000, 0.00029, 0.0079),
    },
}


def estimate(operation: str, problem: Problem, products: float, elements: float) -> float:
    """Nanoseconds that an operation needs on the problem's device for so many products and elements."""
    call, product, element = COSTS.get(problem.device, COSTS["cpu"])[operation]
    return call + product * products + element * elements
