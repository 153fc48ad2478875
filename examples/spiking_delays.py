"""Learn the delays of synapses: known delays in, the same delays out.

    python -m examples.spiking_delays

Each of 8 neurons hears 16 spike trains, every one through a synapse with a weight and a delay of 0 to 24
time steps. A ``Dcls1d`` layer with one element for each synapse hears the same spikes, sees the membrane
potentials that they cause, and has to find weights and delays. A delay is a place in a window of 25 taps:
with K - 1 steps of silence before the spikes and (K - 1) // 2 after them, it is (K - 1) // 2 - position.

Widths are not learned. They start at half the window, so that a synapse feels a delay far from its own, and
shrink by the same factor each epoch until they are as narrow as the interpolation allows. At the end
positions are rounded and each element becomes one tap: a synapse with a whole number of steps, as
neuromorphic hardware has them. The neurons, which did not fire while they learned, then do; the table says
how many of their spikes are those of the true synapses. It also shows what the schedule is worth, by the
same layer with narrow widths all along, and with wide ones. The official package's layer, by
``torchdcls.official`` and in the words of its users, learns the same.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchdcls
from torchdcls import convolve, official
from torchdcls.interpolation import triangle

INPUTS, NEURONS, WINDOW, STEPS = 16, 8, 25, 150
EPOCHS, BATCHES, BATCH = 40, 25, 8
WIDE, NARROW, LAST = WINDOW // 2, 0.23, 0.01  # sigma, to which gauss adds 0.27
FIRING, RATE = 0.04, 0.015  # spikes in a step; learning rate of weights, that of positions is 100 times larger
DECAY, THRESHOLD = 0.3, 1.0  # of the membrane: the less it remembers, the less far delays are felt


class Synapses(NamedTuple):
    """What is to be found."""

    delay: Tensor  # (NEURONS, INPUTS), whole numbers
    kernel: Tensor  # (NEURONS, INPUTS, WINDOW), one tap a synapse


def draw_synapses() -> Synapses:
    delay = torch.randint(WINDOW, (NEURONS, INPUTS))
    weight = torch.empty(NEURONS, INPUTS).uniform_(0.2, 1) * (2 * torch.randint(2, (NEURONS, INPUTS)) - 1)
    kernel = F.one_hot(WINDOW - 1 - delay, WINDOW) * weight.unsqueeze(-1)
    return Synapses(delay, kernel)


def draw_spikes() -> Tensor:
    """Spike trains, with the silence around them that makes places in the window delays."""
    spikes = (torch.rand(BATCH, INPUTS, STEPS) < FIRING).float()
    return F.pad(spikes, (WINDOW - 1, (WINDOW - 1) // 2))


def membrane(current: Tensor) -> Tensor:
    """The potential of leaky neurons that never fire: what came in, decaying."""
    memory = 15
    response = DECAY ** torch.arange(memory - 1, -1, -1.0).expand(NEURONS, 1, memory)
    return convolve(current, response, padding=((memory - 1, 0),), groups=NEURONS)


def output_spikes(current: Tensor) -> Tensor:
    """The spikes of leaky neurons that fire at a threshold, and start again from there."""
    potential, fired = torch.zeros_like(current[..., 0]), []
    for arriving in current.unbind(-1):
        potential = DECAY * potential + arriving
        fired.append(potential >= THRESHOLD)
        potential = potential - THRESHOLD * fired[-1]
    return torch.stack(fired, dim=-1)


def native_layer(sigma: float) -> torchdcls.Dcls1d:
    layer = torchdcls.Dcls1d(INPUTS, NEURONS, kernel_count=1, dilated_kernel_size=WINDOW, bias=False)
    assert layer.sigma is not None
    nn.init.zeros_(layer.weight)  # so that no synapse moves before it has found its sign
    nn.init.uniform_(layer.position, -(WINDOW // 2), WINDOW // 2)
    nn.init.constant_(layer.sigma, sigma).requires_grad_(False)
    return layer


def native_with_whole_delays(layer: torchdcls.Dcls1d) -> nn.Module:
    layer = copy.deepcopy(layer)
    layer.interpolation = triangle  # which is one tap, at whole positions and no more than its smallest width
    assert layer.sigma is not None
    with torch.no_grad():
        layer.sigma.zero_()
        layer.position.round_().clamp_(-(WINDOW // 2), WINDOW // 2)
    return layer.to_conv()


def official_layer(sigma: float) -> official.Dcls1d:
    layer = official.Dcls1d(INPUTS, NEURONS, kernel_count=1, dilated_kernel_size=WINDOW, bias=False, version="gauss")
    assert layer.SIG is not None
    nn.init.zeros_(layer.weight)
    nn.init.uniform_(layer.P, -(WINDOW // 2), WINDOW // 2)
    nn.init.constant_(layer.SIG, sigma)
    layer.SIG.requires_grad = False
    return layer


def official_with_whole_delays(layer: official.Dcls1d) -> nn.Module:
    layer = copy.deepcopy(layer)
    layer.version = layer.DCK.version = "max"
    assert layer.SIG is not None
    with torch.no_grad():
        layer.SIG.zero_()
        layer.P.round_()
        layer.clamp_parameters()
    return layer


def positions_and_widths(layer: nn.Module) -> list[nn.Parameter]:
    """Under the names of either kind of layer."""
    names = ("P", "SIG") if isinstance(layer, official.Dcls1d) else ("position", "sigma")
    return [getattr(layer, name) for name in names]


class Result(NamedTuple):
    """What a layer has learned."""

    shares: list[float]  # of delays found, after each quarter of the epochs
    error: float  # mean distance of a delay from the true one, in steps
    agreement: float  # of the output spikes of either, those of both
    layer: nn.Module


def learn(layer: nn.Module, discrete: Callable[..., nn.Module], synapses: Synapses, last: float, epochs: int) -> Result:
    """Train ``layer``, whose widths shrink to ``last``, and try it with whole delays."""
    position, width = positions_and_widths(layer)
    optimizer = torch.optim.Adam([{"params": [layer.weight], "lr": RATE}, {"params": [position], "lr": 100 * RATE}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * BATCHES)
    factor = (last / width.max().item()) ** (1 / epochs)
    shares = []
    for epoch in range(epochs):
        for _ in range(BATCHES):
            spikes = draw_spikes()
            loss = (membrane(layer(spikes)) - membrane(convolve(spikes, synapses.kernel))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                position.clamp_(-(WINDOW // 2), WINDOW // 2)
        with torch.no_grad():
            width.mul_(factor)
        if (epoch + 1) * 4 % epochs < 4:
            shares.append((delays(position).round() == synapses.delay).float().mean().item())
    with torch.no_grad():
        spikes = draw_spikes()
        ours, theirs = output_spikes(discrete(layer)(spikes)), output_spikes(convolve(spikes, synapses.kernel))
    agreement = ((ours & theirs).sum() / (ours | theirs).sum()).item()
    error = (delays(position) - synapses.delay).abs().mean().item()
    return Result(shares, error, agreement, layer)


def delays(position: Tensor) -> Tensor:
    """The delay that each synapse has learned, (NEURONS, INPUTS)."""
    return (WINDOW - 1) // 2 - position[0, :, :, 0].detach()


def main(epochs: int = EPOCHS, seed: int = 0) -> list[Result]:
    """Train three native layers and an official one from the same start, on the same spikes."""
    torch.set_num_threads(1)  # with tensors this small a second thread mostly waits
    torch.manual_seed(seed)
    synapses = draw_synapses()
    print(f"{NEURONS * INPUTS} delays of 0 to {WINDOW - 1} steps; % found after each quarter of {epochs} epochs")
    print("layer                widths           1/4   1/2   3/4   end   error  same spikes  seconds")
    results = []
    for name, make, discrete, first, last in (
        ("torchdcls", native_layer, native_with_whole_delays, WIDE, LAST),
        ("torchdcls.official", official_layer, official_with_whole_delays, WIDE, LAST),
        ("torchdcls", native_layer, native_with_whole_delays, NARROW, NARROW),
        ("torchdcls", native_layer, native_with_whole_delays, WIDE, WIDE),
    ):
        torch.manual_seed(seed)
        begin = time.perf_counter()
        result = learn(make(first), discrete, synapses, last, epochs)
        seconds = time.perf_counter() - begin
        shares = "".join(f"{share:6.0%}" for share in result.shares)
        widths = f"{first + 0.27:.2f} -> {last + 0.27:.2f}"
        print(
            f"{name:19}  {widths:14}{shares}  {result.error:6.2f}  {result.agreement:11.0%}  {seconds:7.1f}", flush=True
        )
        results.append(result)
    return results


if __name__ == "__main__":
    main()
