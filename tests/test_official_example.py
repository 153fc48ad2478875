import pytest
import torch
from examples import spiking_delays
from tests.tolerances import assert_close

from torchdcls.official import from_official


def test_delays_are_found_by_both_layers_and_with_a_schedule_alone(capsys):
    scheduled, official, narrow, wide = spiking_delays.main(epochs=16)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert [line.split()[0] for line in lines[2:]] == ["torchdcls", "torchdcls.official", "torchdcls", "torchdcls"]
    assert scheduled.shares[-1] == official.shares[-1] >= 0.9
    assert scheduled.error < 1
    assert scheduled.agreement > 0.7
    assert max(narrow.shares[-1], wide.shares[-1]) < 0.7
    assert_close(official.layer.P, scheduled.layer.position, "gradient")
    spikes = spiking_delays.draw_spikes()
    assert_close(from_official(official.layer)(spikes), scheduled.layer(spikes), "gradient")


def test_a_place_in_the_window_is_a_delay():
    spikes = torch.zeros(1, spiking_delays.INPUTS, spiking_delays.STEPS)
    spikes[0, 3, 40] = 1.0
    layer = spiking_delays.native_layer(0.0)
    layer.weight.data[2, 3] = 0.5
    layer.position.data[0, 2, 3] = 5.2
    assert spiking_delays.delays(layer.position)[2, 3] == pytest.approx(6.8)
    whole = spiking_delays.native_with_whole_delays(layer)
    padded = torch.nn.functional.pad(spikes, (spiking_delays.WINDOW - 1, (spiking_delays.WINDOW - 1) // 2))
    current = whole(padded)[0, 2].detach()
    assert current.abs().argmax() == 47, "a whole number of steps later"
    assert current[47] == pytest.approx(0.5, abs=1e-6)
    assert current.count_nonzero() == 1


def test_neurons_fire_at_their_threshold():
    current = torch.tensor([[[0.9, 0.8, 0.0, 2.2, 0.0]]])
    assert spiking_delays.output_spikes(current).int().tolist() == [[[0, 1, 0, 1, 0]]]
