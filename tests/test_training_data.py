"""Order, augmentation and images: what a run reads, and what it refuses to read."""

import io
import random
import tarfile
from functools import partialmethod

import numpy as np
import pytest
import torch
from PIL import Image
from tests.test_training import TINY

from torchdcls.training import cli
from torchdcls.training.checkpoints import read_checkpoint
from torchdcls.training.data import Stream, make_loader, make_transform, open_set, open_sets
from torchdcls.training.module import Training
from torchdcls.training.pictures import Cached, Digits, Pictures, open_source
from torchdcls.training.recipe import change, load_recipe
from torchdcls.training.run import train
from torchdcls.training.sampling import TrainingBatches, ValidationBatches, seed_of, seeded, set_seed

CLASSES = ("cat", "dog", "emu")


def write_folder(root, splits=("train", "validation"), classes=CLASSES, each=4, size=(20, 20)):
    generator = np.random.default_rng(0)
    for split in splits:
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(each):
                pixels = generator.integers(0, 256, (size[1], size[0], 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")


def recipe_of(root, *words):
    colour = ["model.channels=3", "augmentation.mean=[0.5, 0.5, 0.5]", "augmentation.std=[0.2, 0.2, 0.2]"]
    words = [f"data.root={root}", "data.name=''", "data.subset=null", "data.val_subset=null", *colour, *words]
    return load_recipe(TINY, ["augmentation.auto_augment=rand-m9-mstd0.5-inc1", *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_folder(root)
    return root


# ---- order


def all_batches(world, steps, done=0, length=50, update=16):
    return [list(TrainingBatches(length, update, steps, rank, world, 7, lambda: done)) for rank in range(world)]


@pytest.mark.parametrize(("world", "steps"), [(1, 1), (2, 1), (4, 2), (1, 4)])
def test_an_update_sees_the_same_images_on_any_number_of_devices(world, steps):
    (whole,) = all_batches(1, 1)
    shares = all_batches(world, steps)
    for update in range(3):
        together = [
            key for step in range(steps) for rank in range(world) for key in shares[rank][update * steps + step]
        ]
        assert together == whole[update]


def test_every_epoch_has_another_order_and_no_image_twice():
    (first,), (second,) = all_batches(1, 1), all_batches(1, 1, done=3)
    indices = [index for batch in first for _, index in batch]
    assert len(indices) == len(set(indices)) == 48
    assert [epoch for batch in second for epoch, _ in batch] == [1] * 48
    assert indices != [index for batch in second for _, index in batch]
    assert indices != sorted(indices)


def test_order_goes_on_from_any_step():
    (whole,) = all_batches(1, 2)
    for done in range(6):
        assert all_batches(1, 2, done=done) == [whole[done:]]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 17])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_validation_sees_every_image_once_in_as_many_batches_on_each_device(length, world):
    shares = [list(ValidationBatches(length, 8, rank, world)) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    assert all(batch for share in shares for batch in share), "no device may be left without a batch"
    indices = [index for share in shares for batch in share for _, index in batch if index >= 0]
    assert sorted(indices) == list(range(length))
    assert all(len(share) == len(ValidationBatches(length, 8, 0, world)) for share in shares)


# ---- randomness


def draw():
    legacy = float(np.random.rand())  # noqa: NPY002 - what timm draws from
    return random.random(), legacy, float(torch.rand(()))


def test_seeded_draws_the_same_each_time_and_leaves_no_trace():
    set_seed(1)
    expected = draw(), draw()
    set_seed(1)
    first = draw()
    with seeded(3, 4):
        inside = draw()
    assert (first, draw()) == expected
    with seeded(3, 4):
        assert draw() == inside
    with seeded(4, 3):
        assert all(a != b for a, b in zip(draw(), inside, strict=True))
    assert seed_of(1, 2) != seed_of(12)


def test_augmentation_depends_on_seed_epoch_and_image_alone(folder):
    samples = open_set(recipe_of(folder), training=True)
    image, target = samples[2, 5]
    random.random(), torch.rand(3)
    again = open_set(recipe_of(folder), training=True)
    again[0, 0]
    assert torch.equal(again[2, 5][0], image)
    assert target == 1
    for other in (samples[3, 5], open_set(recipe_of(folder, "seed=1"), training=True)[2, 5]):
        assert not torch.equal(other[0], image)
    validation = open_set(recipe_of(folder), training=False)
    assert torch.equal(validation[0, 5][0], validation[1, 5][0])


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_same_whatever_loads(folder, workers):
    recipe = recipe_of(folder, f"machine.workers={workers}", "trainer.batch_size=4")
    samples = open_set(recipe, training=True)
    loader = make_loader(samples, recipe, True, 0, 1, lambda: 3)
    batches = list(loader)
    assert len(loader) == 3
    expected = [[samples[key] for key in keys] for keys in loader.batch_sampler]
    for (images, targets), batch in zip(batches, expected, strict=True):
        assert torch.equal(images, torch.stack([image for image, _ in batch]))
        assert targets.tolist() == [target for _, target in batch]


# ---- transforms


def test_transforms_are_timms(folder):
    training = str(make_transform(recipe_of(folder).augmentation, True))
    for part in ("RandomResizedCrop", "RandomHorizontalFlip", "RandAugment", "Normalize", "RandomErasing"):
        assert part in training
    validation = str(make_transform(load_recipe("convnext_tiny_imagenet").augmentation, False))
    assert "Resize(size=256, interpolation=bicubic" in validation
    assert "CenterCrop(size=(224, 224))" in validation
    plain = str(make_transform(change(recipe_of(folder), ["augmentation.enabled=false"]).augmentation, True))
    assert "Random" not in plain


def test_random_crops_of_the_padded_image():
    recipe = load_recipe("cifar10", ["augmentation.auto_augment=null", "augmentation.hflip=0", "augmentation.erase=0"])
    transform = make_transform(recipe.augmentation, True)
    image = Image.fromarray(np.full((32, 32, 3), 255, np.uint8))
    black = -torch.tensor(recipe.augmentation.mean) / torch.tensor(recipe.augmentation.std)
    borders = set()
    for seed in range(30):
        with seeded(seed):
            padded = transform(image)[0] == black[0]
        assert padded.shape == (32, 32)
        borders.add((int(padded.all(1).sum()), int(padded.all(0).sum())))
    assert {rows for rows, _ in borders} | {columns for _, columns in borders} == {0, 1, 2, 3, 4}


# ---- sets


def test_digits_are_split_once_and_for_all():
    training, validation = Digits(training=True), Digits(training=False)
    assert (len(training), len(validation)) == (4000, 1000)
    seen = {training.pixels[i].tobytes() for i in range(4000)}
    assert sum(image.tobytes() in seen for image in validation.pixels) == 0
    assert training[0][0].size == (28, 28)
    assert min(np.bincount(validation.labels)) > 80


def test_folders(folder):
    sets = open_sets(recipe_of(folder))
    assert (sets.classes, sets.images, sets.names) == (3, 12, CLASSES)
    with pytest.raises(ValueError, match="batch_size must be at most the number of training images, 12, got 13"):
        sets.updates(recipe_of(folder, "trainer.batch_size=13"))
    image, target = Pictures(open_source(recipe_of(folder), True, "L"), "L")[4]
    assert (image.mode, target) == ("L", 1)


def test_a_subset_is_the_same_each_time(folder):
    recipes = [recipe_of(folder, "data.subset=5", f"seed={seed}") for seed in (0, 1)]
    chosen = [list(open_set(recipe, training=True).chosen) for recipe in recipes]
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 5
    with pytest.raises(ValueError, match=r"data.val_subset must be from 1 to the number of images, 12, got 13"):
        open_set(recipe_of(folder, "data.val_subset=13"), training=False)


def test_cached_images_are_the_same(folder):
    plain, cached = (open_set(recipe_of(folder, f"data.cache={cache}"), True) for cache in ("false", "true"))
    assert isinstance(cached.pictures, Cached)
    assert all(torch.equal(plain[1, i][0], cached[1, i][0]) and plain[1, i][1] == cached[1, i][1] for i in range(12))


# ---- faults


def test_images_of_two_sizes_cannot_be_cached(tmp_path):
    write_folder(tmp_path)
    Image.new("RGB", (30, 20)).save(tmp_path / "train" / "dog" / "1.png")
    with pytest.raises(ValueError, match=r"one size, got \(20, 20\) in .*cat/0.png and \(20, 30\) in .*dog/1.png"):
        open_set(recipe_of(tmp_path, "data.cache=true"), training=True)


@pytest.mark.parametrize("content", [b"", b"not an image", None], ids=["empty", "text", "truncated"])
def test_a_damaged_image_is_named(tmp_path, content, capsys):
    write_folder(tmp_path)
    path = tmp_path / "train" / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:-300] if content is None else content)
    samples = open_set(recipe_of(tmp_path), training=True)
    with pytest.raises(ValueError, match=r"image .*train/dog/1.png cannot be read"):
        samples[0, 5]
    words = [word for word in recipe_words(tmp_path) if not word.startswith("seed")]
    assert cli.main(["train", str(TINY), *words, "--check-images"]) == 1
    out = capsys.readouterr().out
    assert "train/dog/1.png cannot be read" in out
    assert "24 images, 1 damaged" in out


def recipe_words(root):
    colour = ["model.channels=3", "augmentation.mean=[0.5, 0.5, 0.5]", "augmentation.std=[0.2, 0.2, 0.2]"]
    return [f"data.root={root}", "data.name=''", "data.subset=null", "data.val_subset=null", *colour]


def test_a_damaged_image_ends_a_run_with_one_sentence(tmp_path, capsys):
    write_folder(tmp_path / "images", each=8)
    (tmp_path / "images" / "train" / "dog" / "1.png").write_bytes(b"")
    words = [*recipe_words(tmp_path / "images"), "machine.workers=1", "trainer.epochs=1"]
    assert cli.main(["train", str(TINY), *words, "--folder", str(tmp_path / "run")]) == 1
    message = capsys.readouterr().err.strip()
    assert message.startswith("torchdcls train: image ")
    assert "dog/1.png cannot be read" in message
    assert "\n" not in message


FOLDERS = {
    "no root": (lambda root: None, ["data.root=null"], ValueError, "data.root must be the folder that holds"),
    "wrong root": (lambda root: None, ["data.root=/nowhere"], FileNotFoundError, "found none at /nowhere"),
    "wrong split": (
        lambda root: None,
        ["data.train_split=training"],
        FileNotFoundError,
        "must hold a folder 'training' to read images from, found train, validation",
    ),
    "no classes": (
        lambda root: (root / "flat").mkdir(),
        ["data.train_split=flat"],
        ValueError,
        "flat must hold a folder of images for each class, found none",
    ),
    "empty class": (
        lambda root: [path.unlink() for path in (root / "train" / "emu").iterdir()],
        [],
        ValueError,
        r"class folder .*train/emu must hold an image, found none",
    ),
    "other classes": (
        lambda root: (root / "validation" / "emu").rename(root / "validation" / "owl"),
        [],
        ValueError,
        "got emu only in training and owl only in validation",
    ),
    "other count": (
        lambda root: None,
        ["model.classes=10"],
        ValueError,
        "model.classes must be the number of classes in the data, 3, got 10",
    ),
    "name": (lambda root: None, ["data.name=imagenet"], ValueError, "data.name must be empty, digits or begin with"),
    "not installed": (lambda root: None, ["data.name=tfds/x", "model.classes=3"], ValueError, "could not be opened"),
    "stream": (lambda root: None, ["data.name=wds/x"], ValueError, "model.classes must be given for wds/x"),
}


@pytest.mark.parametrize(("spoil", "words", "error", "message"), FOLDERS.values(), ids=FOLDERS)
def test_wrong_folders_are_refused(spoil, words, error, message, tmp_path):
    write_folder(tmp_path, each=1)
    spoil(tmp_path)
    with pytest.raises(error, match=message):
        open_sets(recipe_of(tmp_path, *words))


# ---- streams


def write_shards(root, split, shards=2, each=6):
    root.mkdir(exist_ok=True)
    for shard in range(shards):
        with tarfile.open(root / f"{split}-{shard}.tar", "w") as tar:
            for number in range(each):
                image = io.BytesIO()
                Image.new("RGB", (20, 20), (10 * number, 0, 0)).save(image, "png")
                for ending, content in (("png", image.getvalue()), ("cls", str(number % 3).encode())):
                    entry = tarfile.TarInfo(f"{shard}{number}.{ending}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # in webdataset
def test_webdataset_shards(tmp_path):
    pytest.importorskip("webdataset")
    write_shards(tmp_path, "train")
    write_shards(tmp_path, "val", shards=1)
    words = ["data.name=wds/x", "model.classes=3", "trainer.batch_size=4"]
    recipe = recipe_of(tmp_path, *words, "data.train_split=train-{0..1}.tar|12", "data.val_split=val-0.tar|6")
    sets = open_sets(recipe)
    assert isinstance(sets.training, Stream)
    assert (sets.images, sets.updates(recipe)) == (12, 3)
    batches = list(make_loader(sets.training, recipe, True, 0, 1, lambda: 0))
    assert len(batches) == 3
    assert batches[0][0].shape == (4, 3, 16, 16)
    counted = [
        target for _, targets in make_loader(sets.validation, recipe, False, 0, 1, lambda: 0) for target in targets
    ]
    assert sorted(map(int, counted)) == [0, 0, 1, 1, 2, 2]
    shares = [list(make_loader(open_set(recipe, True), recipe, True, rank, 2, lambda: 0)) for rank in range(2)]
    assert all(len(images) == 2 for share in shares for images, _ in share)
    few = open_set(change(recipe, ["model.classes=2"]), training=False)
    with pytest.raises(ValueError, match=r"classes must be from 0 to model.classes - 1 = 1, got 2"):
        list(few)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # in webdataset
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_to_the_bit(tmp_path, workers, monkeypatch):
    pytest.importorskip("webdataset")
    write_shards(tmp_path, "train", shards=4, each=8)
    write_shards(tmp_path, "val", shards=1)
    words = ["data.name=wds/x", "model.classes=3", "trainer.epochs=2", "machine.save_every=1", "trainer.batch_size=4"]
    words += ["data.train_split=train-{0..3}.tar|32", "data.val_split=val-0.tar|6", f"machine.workers={workers}"]
    recipe = recipe_of(tmp_path, *words)
    seen = []

    def watched(self, batch, number, end=None, original=Training.training_step):
        seen.append(batch[0].sum().item())
        if len(seen) == end:
            raise RuntimeError("stopped")
        return original(self, batch, number)

    monkeypatch.setattr(Training, "training_step", watched)
    train(recipe, tmp_path / "whole")
    whole, seen[:] = list(seen), []
    assert len(set(whole)) == 16
    monkeypatch.setattr(Training, "training_step", partialmethod(watched, end=12))
    with pytest.raises(RuntimeError, match="stopped"):
        train(recipe, tmp_path / "stopped")
    monkeypatch.setattr(Training, "training_step", watched)
    train(recipe, tmp_path / "stopped", resume=True)
    assert seen[:11] + seen[12:] == whole  # what the stop cut off is done again
    found, expected = (read_checkpoint(tmp_path / each / "checkpoints" / "last.ckpt") for each in ("stopped", "whole"))
    for name, tensor in expected["state_dict"].items():
        assert torch.equal(found["state_dict"][name], tensor), name


def test_classes_that_the_map_leaves_out_are_named(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "map.txt").write_text("cat\ndog\n")
    recipe = recipe_of(tmp_path, f"data.class_map={tmp_path / 'map.txt'}")
    left_out = "data.class_map does not name emu: images of these are left out of"
    with pytest.warns(match=f"{left_out} train"), pytest.warns(match=f"{left_out} validation"):
        sets = open_sets(recipe)
    assert (sets.classes, sets.images) == (2, 8)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("train/stray.png", "must hold images in class folders only, found stray.png beside them"),
        ("train/cat/thumbs/small.png", "class folder .*cat must hold its images itself, found some in thumbs"),
    ],
)
def test_images_that_are_in_no_class_folder_are_refused(tmp_path, place, message):
    write_folder(tmp_path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    Image.new("RGB", (20, 20)).save(tmp_path / place)
    with pytest.raises(ValueError, match=message):
        open_sets(recipe_of(tmp_path))
