"""What the library is compared with: plain formulas, the paper's own listing, and the authors' package."""

import functools
import logging

import torch
import torch.nn.functional as F

from torchdcls import reference_kernel


def slow_kernel(layer):
    """The kernel of a layer, one dense tap at a time, by the reference; in float64, with gradients."""
    kernel = torch.zeros(*layer.weight.shape[:2], *layer.dilated_kernel_size, dtype=torch.float64)
    size = [layer.dilated_kernel_size[axis] for axis in layer.learned_axes]
    dense = [range(layer.dilated_kernel_size[axis]) for axis in layer.dense_axes]
    for tap in torch.cartesian_prod(*map(torch.tensor, dense)).reshape(-1, len(dense)).tolist() if dense else [[]]:
        at = (slice(None), slice(None), *tap)
        sigma = None if layer.sigma is None else layer.sigma.double()[(slice(None), *at)]
        position = layer.position.double()[(slice(None), *at)]
        where = [slice(None)] * layer.axes
        for axis, index in zip(layer.dense_axes, tap, strict=True):
            where[axis] = index
        kernel[(slice(None), slice(None), *where)] = reference_kernel(
            layer.weight.double()[at], position, sigma, size, layer.interpolation
        )
    return kernel


def slow_convolution(x, kernel, bias, stride, padding, groups, padding_mode="zeros", dilation=1):
    """torch's convolution of an input that is padded beforehand, by any padding that `convolve` takes."""
    axes = kernel.dim() - 2
    dilation = (dilation,) * axes if isinstance(dilation, int) else dilation
    size = [(k - 1) * d + 1 for k, d in zip(kernel.shape[2:], dilation, strict=True)]
    if padding == "same":
        pairs = [((k - 1) // 2, k // 2) for k in size]
    elif padding == "valid":
        pairs = [(0, 0)] * axes
    else:
        amounts = [padding] * axes if isinstance(padding, int) else padding
        pairs = [(amount, amount) if isinstance(amount, int) else tuple(amount) for amount in amounts]
    flat = [amount for pair in reversed(pairs) for amount in pair]
    batch = x if x.dim() == axes + 2 else x.unsqueeze(0)
    padded = F.pad(batch, flat, mode="constant" if padding_mode == "zeros" else padding_mode)
    convolution = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    output = convolution(padded, kernel, bias, stride, 0, dilation, groups)
    return output if x.dim() == axes + 2 else output.squeeze(0)


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
