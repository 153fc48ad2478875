"""Order and randomness as pure functions of where a run is, so that nothing random has to be saved or restored.

The order of an epoch follows from (seed, epoch), what happens to an image from (seed, epoch, index), and what
happens in a step (mixup, dropped paths) from (seed, rank, step). How many processes load images, and whether
the run was interrupted, changes none of them.
"""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.utils.data import Sampler

Key = tuple[int, int]  # (epoch, index) of an image; an index of -1 fills up a batch and counts nowhere


def seed_of(*numbers: int) -> int:
    """A seed of 63 bits that depends on each of the numbers.

    >>> seed_of(0, 1) == seed_of(0, 1), seed_of(0, 1) == seed_of(1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def set_seed(*numbers: int) -> None:
    """Seed python, numpy and torch, on every device, with :func:`seed_of` the numbers."""
    seed = seed_of(*numbers)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what timm's augmentation draws from
    torch.manual_seed(seed)


@contextlib.contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Draw from generators seeded with the numbers, on the CPU, and leave the generators as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    seed = seed_of(*numbers)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    # Not torch.manual_seed, which would seed devices, too; in a process that only loads images that is slow.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


class TrainingBatches(Sampler[list[Key]]):
    """The batches of one process, from where the run is to the end of the epoch.

    Batches are cut from one order, common to all processes; process ``rank`` of ``world`` has its share of each,
    so that an update sees the same images on any number of devices. Images left over after the last full
    update of an epoch are left out, others each time.

    Args:
        length: images in the set.
        update: images in an update, over all processes and steps.
        steps: steps in which an update is computed.
        rank, world: this process, and how many there are.
        seed: of the order.
        done: says how many steps the run has made since it began.

    >>> batches = TrainingBatches(10, update=4, steps=1, rank=1, world=2, seed=0, done=lambda: 2)
    >>> len(batches), [len(batch) for batch in batches]
    (2, [2, 2])
    >>> {epoch for batch in batches for epoch, _ in batch}
    {1}
    """

    def __init__(
        self, length: int, update: int, steps: int, rank: int, world: int, seed: int, done: Callable[[], int]
    ) -> None:
        self.length, self.seed, self.done = length, seed, done
        self.step = update // steps
        self.share = self.step // world
        self.offset = rank * self.share
        self.batches = length // update * steps

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, start = divmod(self.done(), self.batches)
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        order = torch.randperm(self.length, generator=generator)
        for batch in range(start, self.batches):
            first = batch * self.step + self.offset
            yield [(epoch, index) for index in order[first : first + self.share].tolist()]


class ValidationBatches(Sampler[list[Key]]):
    """Every image once, in order, in as many batches on each of the processes.

    >>> list(ValidationBatches(5, batch=4, rank=1, world=2))
    [[(0, 2), (0, 3)], [(0, -1)]]
    """

    def __init__(self, length: int, batch: int, rank: int, world: int) -> None:
        self.length, self.batch, self.rank, self.world = length, batch, rank, world

    def __len__(self) -> int:
        return -(-self.length // self.batch)

    def __iter__(self) -> Iterator[list[Key]]:
        for first in range(0, self.length, self.batch):
            there = min(self.batch, self.length - first)
            share = -(-there // self.world)
            mine = range(first + self.rank * share, first + (self.rank + 1) * share)
            yield [(0, index if index < first + there else -1) for index in mine]
