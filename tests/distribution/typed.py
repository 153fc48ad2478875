"""A user's typed code: a type checker must find the types of the installed package, and the mistake below."""

from torch import Tensor

from torchdcls import Dcls1d, convolve, dense_kernel

layer = Dcls1d(4, 4, kernel_count=3, dilated_kernel_size=9)
kernel: Tensor = layer.dense_kernel()
again: Tensor = dense_kernel(layer.weight, layer.position, layer.sigma, 9)
output: Tensor = convolve(kernel, again, padding=(4,), padding_mode="zeros")
# Unused, this comment would itself be an error: without types nothing is wrong with a count in words.
wrong = Dcls1d(4, 4, kernel_count="three", dilated_kernel_size=9)  # type: ignore[arg-type]
