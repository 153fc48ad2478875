"""Images: timm's data sets and transforms, read so that order and augmentation are the same each time."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms

from .pictures import STREAMS, Cached, Digits, Pictures, listed, open_source
from .recipe import Augmentation, Recipe
from .sampling import Key, TrainingBatches, ValidationBatches, seed_of, seeded

Transform = Callable[[Image.Image], Tensor]


class Samples(Dataset[tuple[Tensor, int]]):
    """Transformed images, ``samples[epoch, index] -> (image, class)``, a pure function of seed, epoch and index.

    Without a seed the transform is one that draws nothing.
    """

    def __init__(
        self, pictures: Pictures | Cached, transform: Transform, seed: int | None, chosen: Sequence[int]
    ) -> None:
        self.pictures, self.transform, self.seed, self.chosen = pictures, transform, seed, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        epoch, index = key
        number = self.chosen[max(index, 0)]
        image, target = self.pictures[number]
        target = target if index >= 0 else -1
        if self.seed is None:
            return self.transform(image), target
        with seeded(self.seed, epoch, number):
            return self.transform(image), target


class Stream(IterableDataset[tuple[Tensor, int]]):
    """A set that can only be read in its own order: webdataset shards, tfds, Hugging Face streams."""

    def __init__(self, source: Any, transform: Transform, seed: int, classes: int) -> None:
        self.source, self.transform, self.seed, self.classes, self.epoch = source, transform, seed, classes, 0

    @property
    def images(self) -> int:
        """Images in the set, as the shards or the recipe say."""
        return int(self.source.reader.num_samples)

    def share(self, rank: int, world: int, workers: int) -> None:
        """Read the share of one process; timm would find out too early, before processes know of each other."""
        self.source.reader.dist_rank, self.source.reader.dist_num_replicas = rank, world
        self.source.set_loader_cfg(num_workers=workers)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is read next, for the order of shards and for augmentation."""
        self.epoch = epoch
        self.source.set_epoch(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = torch.utils.data.get_worker_info()
        number = worker.id if worker else 0
        # A reader remembers how it has shuffled; a copy forgets, so that each epoch is the same wherever a run begins.
        source = copy.copy(self.source)
        source.reader = copy.copy(self.source.reader)
        for count, (image, target) in enumerate(source):
            with seeded(self.seed, self.epoch, source.reader.dist_rank, number, count):
                if not 0 <= target < self.classes:
                    raise ValueError(f"classes must be from 0 to model.classes - 1 = {self.classes - 1}, got {target}")
                yield self.transform(image), int(target)


class ResumableLoader(DataLoader[Any]):
    """A loader whose sampler knows where the run is; Lightning asks for these two before it trusts it."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the place of the run is in the module's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class StreamLoader(ResumableLoader):
    """A loader of a stream, which reads what has been before in an epoch once more, to leave it out.

    ``before`` says how many batches that are.
    """

    def __init__(self, stream: Stream, before: Callable[[], int], **settings: Any) -> None:
        super().__init__(stream, generator=torch.Generator(), **settings)
        self.stream, self.before = stream, before

    def __iter__(self) -> Any:
        self.generator.manual_seed(seed_of(self.stream.seed, self.stream.epoch))  # of the seeds of workers
        batches = super().__iter__()
        for _ in itertools.islice(batches, self.before()):
            continue
        return batches


@dataclass(frozen=True)
class Sets:
    """The training and the validation set of a run."""

    training: Samples | Stream
    validation: Samples | Stream
    classes: int
    images: int
    names: tuple[str, ...] = ()

    def updates(self, recipe: Recipe) -> int:
        """Updates in an epoch."""
        found = self.images // recipe.trainer.batch_size
        if not found:
            raise ValueError(
                f"trainer.batch_size must be at most the number of training images, {self.images}, "
                f"got {recipe.trainer.batch_size}"
            )
        return found


def open_sets(recipe: Recipe) -> Sets:
    """Open both sets of a recipe and check that they belong together and to the model."""
    data = recipe.data
    training, validation = (open_set(recipe, training) for training in (True, False))
    if isinstance(training, Stream) or isinstance(validation, Stream):
        images = training.images if isinstance(training, Stream) else len(training)
        assert recipe.model.classes is not None
        return Sets(training, validation, recipe.model.classes, images)
    ours, theirs = (list(samples.pictures.classes) for samples in (training, validation))
    if ours and theirs and ours != theirs:
        raise ValueError(
            f"classes must be the same in data.train_split={data.train_split} and data.val_split={data.val_split}, "
            f"got {listed(set(ours) - set(theirs))} only in training and {listed(set(theirs) - set(ours))} only in "
            "validation"
        )
    classes = recipe.model.classes
    if classes is not None and ours and len(ours) != classes:
        raise ValueError(
            f"model.classes must be the number of classes in the data, {len(ours)}, got {classes}; "
            "null takes what the data has"
        )
    if not (classes or ours):
        raise ValueError(f"model.classes must be given for {data.name}, which does not say how many classes it has")
    return Sets(training, validation, classes or len(ours), len(training), tuple(ours))


def open_set(recipe: Recipe, training: bool) -> Samples | Stream:
    """One set of a recipe, with the transforms of training or of validation."""
    data, mode = recipe.data, "RGB" if recipe.model.channels == 3 else "L"
    transform = make_transform(recipe.augmentation, training)
    seed = seed_of(recipe.seed, int(training))
    if data.name == "digits":
        pictures: Pictures | Cached = Pictures(Digits(training), mode)
    else:
        source = open_source(recipe, training, mode)
        if data.name.startswith(STREAMS):
            assert recipe.model.classes is not None
            return Stream(source, transform, seed, recipe.model.classes)
        pictures = Pictures(source, mode)
    if data.cache:
        pictures = Cached(cast(Pictures, pictures))
    chosen: Sequence[int] = range(len(pictures))
    key, subset = ("data.subset", data.subset) if training else ("data.val_subset", data.val_subset)
    if subset is not None:
        if not 0 < subset <= len(pictures):
            raise ValueError(f"{key} must be from 1 to the number of images, {len(pictures)}, got {subset}")
        chosen = np.random.default_rng(0).permutation(len(pictures))[:subset].tolist()
    return Samples(pictures, transform, seed if training and recipe.augmentation.enabled else None, chosen)


def make_transform(augmentation: Augmentation, training: bool) -> Transform:
    """What timm makes of the augmentation section."""
    a = augmentation
    padded = training and a.enabled and a.crop == "pad"
    made = cast(Any, create_transform)(  # which takes None for no colour jitter
        a.image_size,
        is_training=training,
        no_aug=not a.enabled,
        train_crop_mode=None if a.crop == "pad" else a.crop,
        scale=a.scale,
        ratio=a.ratio,
        hflip=a.hflip,
        vflip=a.vflip,
        color_jitter=a.color_jitter or None,
        auto_augment=a.auto_augment,
        interpolation=a.interpolation if training or a.interpolation != "random" else "bicubic",
        mean=a.mean,
        std=a.std,
        re_prob=a.erase if a.enabled else 0.0,
        re_mode=a.erase_mode,
        re_count=a.erase_count,
        crop_pct=a.crop_pct,
        separate=padded,
    )
    if padded:
        first, *rest = made
        crop = transforms.RandomCrop(a.image_size, padding=a.padding)
        made = transforms.Compose([crop, *first.transforms[1:], *rest])
    return cast(Transform, made)


def make_loader(
    samples: Samples | Stream, recipe: Recipe, training: bool, rank: int, world: int, done: Callable[[], int]
) -> DataLoader[Any]:
    """The batches of one process, as (images, classes)."""
    trainer, machine = recipe.trainer, recipe.machine
    settings: dict[str, Any] = {
        "num_workers": machine.workers,
        "persistent_workers": machine.workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    step = trainer.batch_size // machine.accumulate
    batch = step if training else trainer.val_batch_size or step
    if isinstance(samples, Stream):
        samples.share(rank, world, machine.workers)
        settings["persistent_workers"] = False  # new ones know the epoch
        steps = samples.images // trainer.batch_size * machine.accumulate  # of an epoch
        before = (lambda: done() % steps) if training else (lambda: 0)
        return StreamLoader(samples, before, batch_size=max(1, batch // world), drop_last=training, **settings)
    batches: TrainingBatches | ValidationBatches
    if training:
        batches = TrainingBatches(
            len(samples), trainer.batch_size, machine.accumulate, rank, world, seed_of(recipe.seed), done
        )
    else:
        batches = ValidationBatches(len(samples), max(batch, world), rank, world)
    return ResumableLoader(samples, batch_sampler=batches, **settings)
