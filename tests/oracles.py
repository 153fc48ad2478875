"""What the library is compared with: the paper's own listing, and the authors' package."""

import functools
import logging

import torch


def paper_listing(weight, position, sigma, size, interpolation):
    """The paper's appendix in equations: one (sizes, axes, out, in, m) tensor; square kernels, gauss or triangle.

    Its grid stacks the width first, so its position 0 belongs to the last axis of the kernel.
    """
    grid = torch.meshgrid(*(torch.arange(s, dtype=weight.dtype) for s in size), indexing="ij")
    index = torch.stack(grid[::-1], dim=-1)[..., None, None, None]
    limits = torch.tensor(size, dtype=weight.dtype).view(-1, 1, 1, 1)
    distance = index - (position + limits // 2)
    if interpolation == "gauss":
        share = torch.exp(-0.5 * (distance / (sigma.abs() + 0.27)).norm(2, dim=len(size)) ** 2)
    else:
        share = (sigma.abs() + 1.0 - distance.abs()).relu().prod(len(size))
    axes = tuple(range(len(size)))
    share = share / (share.sum(axes) + 1e-7)
    return (share * weight).sum(-1).permute(len(size), len(size) + 1, *axes)


@functools.cache
def official_modules():
    """The authors' `DCLS.construct.modules`; importing it logs warnings about its CUDA extension."""
    logging.disable(logging.WARNING)
    try:
        import DCLS.construct.modules as modules
    finally:
        logging.disable(logging.NOTSET)
    return modules


# Position row of the official package that belongs to each kernel axis.
OFFICIAL_AXES = {
    (1, "v0"): (0,),
    (1, "other"): (0,),
    (2, "v0"): (0, 1),
    (2, "other"): (1, 0),
    (3, "v0"): (0, 2, 1),
    (3, "other"): (2, 1, 0),
}


def official_kernel(weight, position, sigma, size, version):
    """The official dense kernel of elements given in kernel-axis order."""
    axes = len(size)
    order = OFFICIAL_AXES[axes, version if version == "v0" else "other"]
    construct = getattr(official_modules(), f"ConstructKernel{axes}d")
    out_channels, in_channels, count = weight.shape
    kernel = construct(out_channels, in_channels, 1, count, size, version)
    inverse = [order.index(row) for row in range(axes)]
    position = position[inverse]
    return kernel(weight, position, None if sigma is None else sigma[inverse])
