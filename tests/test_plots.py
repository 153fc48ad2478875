import pytest
import torch

from torchdcls import Dcls1d, Dcls2d, Dcls3d, plots


def saved(figure, folder):
    """The bytes of the figure as PNG: drawing errors come out when it is rendered."""
    figure.savefig(folder / "figure.png")
    return (folder / "figure.png").read_bytes()


@pytest.mark.parametrize(("layer", "size"), [(Dcls1d, (25,)), (Dcls2d, (9, 11)), (Dcls3d, (5, 6, 7))])
def test_kernels_of_every_dimension_are_drawn_with_their_positions(layer, size, tmp_path):
    layer = layer(4, 4, 3, size, groups=4)
    figure = plots.new_figure(2, 2)
    plots.draw_kernels(figure, layer.dense_kernel().flatten(0, 1), layer.position.flatten(1, -2))
    assert saved(figure, tmp_path).startswith(b"\x89PNG")
