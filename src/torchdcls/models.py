"""The paper's networks as timm models: importing this module registers them.

    import timm, torchdcls.models
    model = timm.create_model("convnext_tiny_dcls", num_classes=10)

Each is timm's own network with its depthwise convolutions replaced by :func:`~torchdcls.to_dcls`, and takes
every argument of that network, ``features_only``, ``in_chans`` and ``drop_path_rate`` among them. The count
of elements is the largest that adds no parameter. With ``pretrained=True`` the weights are those of the
stock network, under the same tags, and the elements are fitted to its kernels: fine-tune from there.
"""

import dataclasses
from typing import Any, cast

from timm.models import generate_default_cfgs, get_arch_pretrained_cfgs, model_entrypoint, register_model
from torch import nn

from .surgery import matching_kernel_count, to_dcls

# name -> (the network that it is made of, interpolation, size)
NETWORKS = {
    f"{stock}_dcls{suffix}": (stock, interpolation, size)
    for stock in ("convnext_tiny", "convnext_small", "convnext_base", "convformer_s18")
    for suffix, interpolation, size in (("", "gauss", 23), ("17_bilinear", "bilinear", 17))
}

default_cfgs = generate_default_cfgs(
    {
        name.replace(stock, converted, 1): dataclasses.replace(cfg, architecture=None)
        for converted, (stock, _, _) in NETWORKS.items()
        for name, cfg in get_arch_pretrained_cfgs(stock).items()
    }
)


def _create(name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    stock, interpolation, size = NETWORKS[name]
    model: Any = model_entrypoint(stock)(pretrained=pretrained, **arguments)
    count = matching_kernel_count(model, interpolation)
    to_dcls(model, count, size, interpolation, start="fit" if pretrained else "random")
    # What timm saves with the weights names the network that they belong to.
    model.pretrained_cfg = model.default_cfg = {**model.pretrained_cfg, "architecture": name}
    return cast(nn.Module, model)


def _register(name: str) -> None:
    def create(pretrained: bool = False, **arguments: Any) -> nn.Module:
        return _create(name, pretrained, **arguments)

    stock, interpolation, size = NETWORKS[name]
    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"Timm's {stock} with {interpolation} Dcls layers of {size}x{size}."
    globals()[name] = register_model(create)


__all__ = ["NETWORKS"]  # and each name in it, which registration adds
for _name in NETWORKS:
    _register(_name)
