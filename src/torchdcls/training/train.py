"""Train one run from a recipe.

    torchdcls train digits
    torchdcls train convnext_tiny_imagenet data.root=/data/imagenet --variant gauss --devices 8
    torchdcls train my.yaml optimizer.lr=1e-3 --folder runs/mine --resume

Any value of the recipe can be given as section.key=value.
"""

import argparse
import textwrap
from pathlib import Path

from .recipe import Recipe, load_recipe, shipped_recipes
from .values import described


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchdcls train``."""
    add_recipe_arguments(parser)
    parser.add_argument("--folder", type=Path, help="of the run; runs/RECIPE/VARIANT-SEED unless given")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the folder")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    parser.add_argument(
        "--check-images", action="store_true", help="read every image once, name those that are damaged"
    )


def add_recipe_arguments(parser: argparse.ArgumentParser, variant: bool = True) -> None:
    """A recipe, its values and where it runs: what several commands take."""
    recipes = "; ".join(f"{name}: {text}" for name, text in shipped_recipes().items())
    parser.add_argument("recipe", help=f"a YAML file, or one of these. {recipes}".replace("%", "%%"))
    if variant:
        parser.add_argument("--variant", help="of the recipe; its own choice unless given")
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Values of a recipe, on any command line that has one."""
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values of the recipe, listed below")
    parser.add_argument("--devices", type=int, help="GPUs or processes on each node: machine.devices")
    parser.add_argument("--nodes", type=int, help="machines: machine.nodes")
    parser.epilog = "values of a recipe:\n" + "\n".join(
        textwrap.fill(f"{text} ({kind})", 110, initial_indent=f"  {key}\n      ", subsequent_indent="      ")
        for key, kind, text in described(Recipe)
    ).replace("%", "%%")


def recipe_words(arguments: argparse.Namespace) -> list[str]:
    """The values given on the line, ``--devices`` and ``--nodes`` among them."""
    options = (("machine.devices", arguments.devices), ("machine.nodes", arguments.nodes))
    return [*arguments.overrides, *(f"{key}={number}" for key, number in options if number is not None)]


def run(arguments: argparse.Namespace) -> int:
    """Train, or say what would be done."""
    recipe = load_recipe(arguments.recipe, recipe_words(arguments), arguments.variant)
    from . import run as runs  # after the recipe, so that a wrong word is answered before Lightning is loaded
    from .data import open_sets
    from .devices import check_batch, count_devices
    from .network import build_network
    from .sampling import set_seed

    if arguments.check_images:
        return check_images(recipe)
    if arguments.dry_run:
        check_batch(recipe, count_devices(recipe))
        set_seed(recipe.seed)
        sets = open_sets(recipe)
        download = recipe.model.pretrained and recipe.model.weights is None
        print(runs.plan(recipe, sets, *build_network(recipe, sets.classes, trained=not download)))
        if download:
            print("the trained weights that the run starts from are not downloaded for this")
        return 0
    folder = arguments.folder or Path("runs") / recipe.name / f"{recipe.variant}-{recipe.seed}"
    if runs.is_complete(folder, recipe):
        print(f"{folder} holds this run to its end; nothing is left to do")
        return 0
    runs.train(recipe, folder, arguments.resume)
    return 0


def check_images(recipe: Recipe) -> int:
    """Read every image of both sets and print those that cannot be read."""
    from torch.utils.data import DataLoader

    from .data import Samples, open_sets
    from .pictures import Readable

    damaged, count = [], 0
    sets = open_sets(recipe)
    for samples in (sets.training, sets.validation):
        if not isinstance(samples, Samples):
            raise ValueError(f"--check-images reads sets with an index, got the stream {recipe.data.name}")
        for error in DataLoader(Readable(samples.pictures), batch_size=None, num_workers=recipe.machine.workers):
            count += 1
            if error:
                damaged.append(error)
                print(error, flush=True)
    print(f"{count:,} images, {len(damaged)} damaged")
    return 1 if damaged else 0
