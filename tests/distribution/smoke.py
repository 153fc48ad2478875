"""Runs where nothing but the installed wheel and torch is there: what a new user tries first."""

import importlib.metadata
import importlib.resources
import sys

import torch
from torch import nn

import torchdcls
from torchdcls import Dcls2d, convolve, fuse, parameter_groups, to_dcls

where = torchdcls.__file__
assert sys.prefix in where, f"{where} is not the installed one"
assert importlib.metadata.version("torchdcls") == torchdcls.__version__

layer = Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=17, padding="same", groups=8)
x = torch.randn(2, 8, 20, 20)
layer(x).square().mean().backward()
assert all(parameter.grad is not None for parameter in layer.parameters())

model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.GELU())
print(to_dcls(model, kernel_count=6, dilated_kernel_size=15))
optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3, weight_decay=0.05))
images = torch.randn(2, 3, 16, 16)
model(images).square().mean().backward()
optimizer.step()
expected = model(images)
torch.testing.assert_close(fuse(model)(images), expected, atol=1e-5, rtol=1e-4)
assert convolve(torch.ones(1, 1, 64), torch.ones(1, 1, 31), padding="same", backend="spectral").shape == (1, 1, 64)

recipes = importlib.resources.files("torchdcls.training") / "recipes"
names = sorted(item.name for item in recipes.iterdir() if item.name.endswith(".yaml"))
assert "convnext_tiny_imagenet.yaml" in names, names
assert (importlib.resources.files("torchdcls") / "py.typed").is_file()
print("works, with the recipes", *names)
