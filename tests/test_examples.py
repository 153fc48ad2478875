import pytest
import torch
from examples import convert_train_fuse_export, fine_tune, hidden_taps

from torchdcls.interpolation import INTERPOLATIONS


def test_hidden_taps_prints_a_row_for_each_start_and_saves_a_png(tmp_path, capsys):
    figure = tmp_path / "figure.png"
    hidden_taps.main(["--steps", "2", "--seed", "3", "--output", str(figure)])
    _, header, *rows, last = capsys.readouterr().out.splitlines()
    names = [row.split()[0] for row in rows]
    assert names == [i.name for i in INTERPOLATIONS for _ in range(2 if i.has_width else 1)]
    assert header.split()[-len(hidden_taps.DISTANCES) :] == [str(d) for d in hidden_taps.DISTANCES]
    assert all(0 <= int(cell) <= 100 for row in rows for cell in row.split()[2:])
    assert last.endswith(str(figure))
    assert figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_one_element_counts_for_one_tap():
    taps = torch.tensor([[0.0, 0.0], [0.0, 0.8], [5.0, 5.0]])
    between = torch.tensor([[0.0, 0.4], [3.0, 3.0], [5.0, 5.6]])
    assert hidden_taps.count_found(taps, between) == 1
    assert hidden_taps.count_found(taps, taps.flip(0) + 0.3) == 3


def test_elements_start_in_the_window_at_their_distance_from_the_nearest_tap():
    for distance in hidden_taps.DISTANCES:
        taps, start = hidden_taps.draw_problem(distance)
        nearest = torch.cdist(start, taps).amin(1)
        torch.testing.assert_close(nearest, torch.full_like(nearest, distance), rtol=0, atol=2e-3)
        assert start.abs().max() <= hidden_taps.SIZE // 2


@pytest.mark.parametrize("interpolation", [i for i in INTERPOLATIONS if i.has_width], ids=lambda i: i.name)
def test_a_wide_start_finds_taps_out_of_reach_of_bilinear(interpolation, monkeypatch):
    monkeypatch.setattr(hidden_taps, "DISTANCES", (3,))
    problems = hidden_taps.draw_problems()
    bilinear, wide = (
        hidden_taps.run(i, hidden_taps.starting_widths(i)[-1], problems, steps=120, smooth=1).found[0]
        for i in (INTERPOLATIONS[0], interpolation)
    )
    assert wide > bilinear + 50


def test_from_a_network_to_an_onnx_file(capsys):
    convert_train_fuse_export.main(images_used=125)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("stages.0.blocks.0.conv_dw  Conv2d 7x7  Dcls2d 17x17 / 8, gauss")
    shares = [line.split()[-1] for line in lines if line.startswith("accuracy")]
    assert len(shares) == 2
    assert shares[0] == shares[1], "the ONNX file recognises what the trained network does"
    assert float(lines[-2].split()[-1]) < 1e-4


def test_fitted_elements_keep_what_a_network_knows(capsys):
    fine_tune.main(images_used=250)
    first, _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    by_start = {(row[0], row[1]): row for row in rows}
    assert by_start["100%", "fit"][2] == "0.0%"
    assert by_start["100%", "fit"][3] == first[-1]
    assert len(by_start) == 6
