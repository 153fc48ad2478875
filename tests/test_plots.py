import io
import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from PIL import Image
from torch import nn

from torchdcls import Dcls1d, Dcls2d, Dcls3d, dense_kernel, plots
from torchdcls.plots.results import _brackets
from torchdcls.plots.tiles import Tiles


def rendered(figure):
    """The pixels of the figure: most drawing errors come out only here."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=60)
    return np.asarray(Image.open(buffer).convert("RGB"))


def dots(axes):
    """All points that are drawn with a marker, as (x, y, hollow)."""
    lines = [line for line in axes.lines if line.get_marker() == "o"]
    return [(x, y, line.get_markerfacecolor() == "none") for line in lines for x, y in line.get_xydata().tolist()]


def test_matplotlib_is_imported_only_when_something_is_drawn():
    script = "import sys, torchdcls.plots; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("layer", "size"), [(Dcls1d, (25,)), (Dcls2d, (9, 11)), (Dcls3d, (5, 6, 7))])
def test_kernels_of_every_dimension_are_drawn_with_their_elements(layer, size):
    layer = layer(4, 4, 3, size, groups=4)
    figure = plots.new_figure(2, 2)
    plots.draw_kernels(figure, layer.dense_kernel().flatten(0, 1), layer.position.flatten(1, -2))
    (axes,) = figure.axes
    assert len(dots(axes)) == 12
    (image,) = axes.images
    assert np.nanmax(np.abs(image.get_array())) == 1, "each kernel is on a scale of its own"
    rendered(figure)


def test_a_dot_lies_on_the_tap_of_its_element():
    position = torch.tensor([[[-2.0, 1.0]], [[3.0, -1.0]]])  # (axes, one kernel, two elements)
    kernel = dense_kernel(torch.tensor([[1.0, -1.0]]), position, None, (7, 9), "bilinear")
    axes = plots.new_figure(2, 2).subplots()
    plots.draw_kernels(axes, kernel, position)
    image = axes.images[0].get_array()
    assert [(image[int(y), int(x)], hollow) for x, y, hollow in dots(axes)] == [(1.0, False), (-1.0, False)]


def test_the_slices_of_a_volume_stand_side_by_side():
    position = torch.tensor([1.0, -2.0, 1.0]).view(3, 1, 1)
    kernel = dense_kernel(torch.ones(1, 1), position, None, (3, 5, 7), "bilinear")
    axes = plots.new_figure(2, 2).subplots()
    plots.draw_kernels(axes, kernel, position)
    (x, y, _), image = dots(axes)[0], axes.images[0].get_array()
    assert image.shape == (5, 3 * 7 + 2)
    assert np.isnan(image.filled(np.nan)[:, [7, 15]]).all(), "a gap between slices"
    assert (image[int(y), int(x)], image.sum()) == (1, 1)


def test_an_element_outside_its_window_is_a_hollow_dot_at_the_edge():
    axes = plots.new_figure(2, 2).subplots()
    plots.draw_kernels(axes, torch.zeros(1, 5, 5), torch.tensor([[[0.0]], [[40.0]]]))
    assert dots(axes) == [(4.5, 2.0, True)]


@pytest.mark.parametrize(("count", "size", "shape"), [(7, (5, 6), (17, 20)), (3, (9,), (3, 9)), (2, (2, 4, 3), (9, 7))])
def test_windows_do_not_overlap(count, size, shape):
    tiles = Tiles.of(size, count, None)
    assert tiles.shape == shape
    whole = torch.zeros(tiles.shape)
    depth, height, width = tiles.size
    for top, left in tiles.corners.tolist():
        for d in range(depth):
            whole[top : top + height, left + d * (width + 1) :][:, :width] += 1
    assert whole.max() == 1
    assert whole.sum() == count * torch.Size(size).numel()


def test_positions_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"positions must be \(M, n, m\) with M = 2 and n = 4, got shape \(2, 3, 5\)"):
        plots.draw_kernels(plots.new_figure(1, 1), torch.zeros(4, 9, 9), torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match=r"one to three axes of size, got shape \(9,\)"):
        plots.draw_kernels(plots.new_figure(1, 1), torch.zeros(9))


def test_a_model_is_drawn_a_row_for_each_stage():
    stage = lambda *layers: nn.Sequential(*layers)  # noqa: E731
    model = nn.Sequential(
        stage(Dcls2d(8, 8, 3, 9, groups=8), Dcls2d(8, 8, 3, 9, groups=8)),
        stage(nn.Conv2d(8, 8, 7, groups=8), nn.Conv2d(8, 8, 1)),
        stage(Dcls3d(8, 8, 3, (3, 3, 9), groups=8, dense_axes=(0, 1))),
    )
    figure = plots.new_figure(4, 4)
    plots.draw_model(figure, model, columns=4)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["0.0, 9x9 / 3 gauss, mean width 0.50", "1.0, 7x7", "2.0, 3x3x9 / 3 gauss, mean width 0.50"]
    assert [len(dots(axes)) for axes in figure.axes] == [12, 0, 0]
    rendered(figure)
    with pytest.raises(ValueError, match="must hold a Dcls or depthwise layer, got a Linear without one"):
        plots.draw_model(figure, nn.Linear(2, 2))


def test_numbers_in_the_cells_are_those_of_the_kernel():
    axes = plots.new_figure(2, 2).subplots()
    plots.draw_numbers(axes, torch.tensor([[0.0, 0.004, -0.254], [1.0, -1.5, 0.996]]))
    assert [text.get_text() for text in axes.texts] == ["−.25", "1.00", "−1.50", "1.00"]
    assert [text.xy for text in axes.texts] == [(1, -1), (-1, 0), (0, 0), (1, 0)]


def test_profiles_are_shares_that_sum_to_one():
    axes = plots.new_figure(2, 2).subplots()
    plots.draw_profiles(axes, width=5)
    for line in axes.lines:
        if line.get_marker() == "o":
            assert abs(line.get_ydata().sum() - 1) < 1e-2
    triangle, _, gauss, _ = axes.lines
    assert triangle.get_ydata().max() == pytest.approx(1 / 5)
    assert gauss.get_ydata().max() == pytest.approx(1 / (5 * np.sqrt(2 * np.pi)), rel=5e-3)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["triangle", "gauss"]


def test_bars_show_means_standard_errors_runs_and_p_values():
    values = {"stock": [1.0, 2.0, 3.0], "gauss": [0.5, 0.7, 0.9], "gauss_17": [0.4]}
    axes = plots.new_figure(3, 3).subplots()
    plots.draw_bars(axes, values, {("stock", "gauss"): 0.0002, ("gauss", "gauss_17"): 0.5, ("stock", "gauss_17"): 0.04})
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
    assert tops == pytest.approx([2.0, 0.7, 0.4])
    errors = [c.get_segments()[0][:, 1] for c in axes.collections if isinstance(c, LineCollection)]
    np.testing.assert_allclose(np.diff(errors)[:, 0], [2 / np.sqrt(3), 0.4 / np.sqrt(3)], rtol=1e-6)
    assert sorted(text.get_text() for text in axes.texts) == ["0.040", "0.500", "< 0.001"]
    assert sorted(y for _, y, _ in dots(axes)) == pytest.approx([0.4, 0.5, 0.7, 0.9, 1.0, 2.0, 3.0])
    assert f"the axis starts at {axes.get_ylim()[0]:.3g}" in axes.get_xlabel(), "a cut axis says so"
    rendered(axes.figure)


@pytest.mark.parametrize("values", [{"stock": [1.5]}, {"stock": [0.0, 0.0], "gauss": [0.0, 0.0]}])
def test_bars_without_a_difference_are_drawn_too(values):
    axes = plots.new_figure(3, 3).subplots()
    plots.draw_bars(axes, values)
    rendered(axes.figure)


def test_brackets_on_one_level_never_overlap():
    placed = _brackets(itertools.combinations(range(5), 2))
    assert len(placed) == 10
    for (a, b, level), (c, d, other) in itertools.combinations(placed, 2):
        assert level != other or b <= c or d <= a
    assert max(level for *_, level in placed) == 5, "as few levels as there can be: six brackets cover the middle"


def test_variants_have_the_colour_of_their_interpolation_and_none_twice():
    names = ["stock", "bilinear", "triangle", "triangle_fixed", "gauss", "gauss_17_26", "gauss_23_34", "mine"]
    colors = plots.colors_of(names)
    assert colors["gauss"] == plots.COLORS["gauss"]
    assert len(set(colors.values())) == len(names)
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors.values())


def test_curves_show_each_run_and_their_mean_where_all_have_come():
    axes = plots.new_figure(3, 3).subplots()
    plots.draw_curves(axes, {"gauss": [([0, 1, 2], [3.0, 2.0, 1.0]), ([0, 1], [5.0, 4.0])]})
    *runs, mean = axes.lines
    assert [line.get_ydata().tolist() for line in runs] == [[3.0, 2.0, 1.0], [5.0, 4.0]]
    assert mean.get_xydata().tolist() == [[0, 4], [1, 3]]


def test_spread_shows_the_median_of_each_history():
    axes = plots.new_figure(3, 3).subplots()
    plots.draw_spread(axes, [0, 4], {"stage 1": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]])})
    assert axes.lines[0].get_xydata().tolist() == [[0, 2], [4, 5]]
    rendered(axes.figure)


@pytest.mark.parametrize("size", [(25,), (9, 11), (5, 6, 7)])
def test_trajectories_end_where_the_elements_are(size):
    history = torch.randn(6, len(size), 4, 3)
    axes = plots.new_figure(3, 3).subplots()
    plots.draw_trajectories(axes, history, size)
    (paths,) = (c for c in axes.collections if isinstance(c, LineCollection))
    segments = np.array(paths.get_segments())
    assert segments.shape == (5 * 4 * 3, 2, 2)
    ends = np.array([(x, y) for x, y, _ in dots(axes)])
    np.testing.assert_allclose(segments[-12:, 1], ends)
    np.testing.assert_allclose(ends[0, 0], size[-1] // 2 + history[-1, -1, 0, 0], rtol=1e-5)
    rendered(axes.figure)


@pytest.mark.parametrize("size", [(25,), (9, 11), (5, 6, 7)])
def test_the_animation_has_frames_between_epochs(size, tmp_path):
    history = torch.randn(3, len(size), 4, 3)
    plots.animate_positions(tmp_path / "positions.gif", history, size, epochs=[0, 1, 2])
    with Image.open(tmp_path / "positions.gif") as animation:
        assert animation.n_frames > 10
        first = np.asarray(animation.convert("RGB"), dtype=float)
        animation.seek(8)
        assert np.abs(first - np.asarray(animation.convert("RGB"), dtype=float)).max() > 50, "the elements move"
