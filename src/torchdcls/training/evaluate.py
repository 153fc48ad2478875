"""Evaluate a trained network: loss, top-1 and top-5, each with its 95% interval.

    torchdcls evaluate runs/digits/gauss-0
    torchdcls evaluate model.onnx data.root=/data/imagenet data.val_split=validation

The model is a run folder, a checkpoint (.ckpt), or what torchdcls export wrote (.safetensors, .onnx). It knows its
recipe; values given as section.key=value replace those of it, the data section above all. Intervals are
Wilson's for shares, and 1.96 standard errors to each side for the loss.
"""

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchdcls evaluate``."""
    from .train import add_override_arguments

    parser.add_argument("model", type=Path, help="a run folder, or a .ckpt, .safetensors or .onnx file")
    add_override_arguments(parser)
    parser.add_argument("--output", type=Path, help="write the numbers to this file, too, as JSON")


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


def wilson(hits: float, count: float, z: float = 1.959964) -> Estimate:
    """A share of hits in percent with Wilson's interval, which stays sensible near 0 and 100%.

    >>> wilson(98, 100)
    Estimate(value=98.0, low=92.99..., high=99.44...)
    """
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Estimate(100 * share, 100 * max(0.0, middle - half), 100 * min(1.0, middle + half))


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    from .recipe import change
    from .train import recipe_words
    from .trained import load_trained

    if arguments.output and not arguments.output.parent.is_dir():
        raise FileNotFoundError(f"--output must be in a folder that is there, found none at {arguments.output.parent}")
    trained = load_trained(arguments.model)
    # A run may have been trained on many devices; one is enough here unless more are asked for.
    single = dataclasses.replace(trained.recipe.machine, devices=1, nodes=1, accumulate=1)
    recipe = change(dataclasses.replace(trained.recipe, machine=single), recipe_words(arguments))
    found = evaluate(dataclasses.replace(trained, recipe=recipe))
    if found is None:  # not the first process
        return 0
    count, estimates = found
    print(f"model   {trained.what}\ndata    {recipe.data.name or recipe.data.root}, {count:,} images")
    for name, estimate in estimates.items():
        unit, digits = ("", 4) if name == "loss" else ("%", 2)
        print(
            f"{name:7} {estimate.value:.{digits}f}{unit} "
            f"(95%: {estimate.low:.{digits}f} to {estimate.high:.{digits}f}{unit})"
        )
    if arguments.output:
        numbers = {name: dataclasses.asdict(estimate) for name, estimate in estimates.items()}
        arguments.output.write_text(json.dumps({"images": count, **numbers}, indent=2) + "\n")
    return 0


def evaluate(trained: Any) -> tuple[int, dict[str, Estimate]] | None:
    """The number of images, and loss, top-1 and top-5; None in all processes but the first.

    Args:
        trained: a :class:`~torchdcls.training.trained.Trained`, whose recipe says on what.
    """
    from lightning.pytorch import LightningModule, Trainer

    from .data import Samples, make_loader, open_set
    from .devices import cluster, count_devices
    from .module import count_hits, exact
    from .run import quiet

    recipe = trained.recipe
    samples = open_set(recipe, training=False)
    if isinstance(samples, Samples) and trained.names and list(samples.pictures.classes) != list(trained.names):
        raise ValueError(
            f"the data must have the classes that the model was trained on, {len(trained.names)} from "
            f"{trained.names[0]} to {trained.names[-1]}, got {len(samples.pictures.classes)}"
        )

    class Evaluation(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = trained.predict
            self.total = torch.zeros(5)

        def val_dataloader(self) -> Any:
            return make_loader(samples, recipe, False, self.trainer.global_rank, self.trainer.world_size, lambda: 0)

        def on_validation_epoch_start(self) -> None:
            self.total = torch.zeros(5, dtype=exact(self.device), device=self.device)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            images, targets = batch
            hits = count_hits(self.network(images), targets)
            self.total += torch.cat([hits, hits[:, :1].square()], dim=1).sum(0)

        def on_validation_epoch_end(self) -> None:
            self.total = self.trainer.strategy.reduce(self.total, reduce_op="sum")

    machine = recipe.machine
    with quiet():
        lightning = Trainer(
            accelerator=machine.accelerator,
            devices=count_devices(recipe),
            num_nodes=machine.nodes,
            precision=recipe.trainer.precision,
            plugins=cluster(recipe),
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=machine.progress,
            enable_model_summary=False,
        )
        module = Evaluation()
        lightning.validate(module, verbose=False)
    if not lightning.is_global_zero:
        return None
    loss, top1, top5, count, squares = module.total.tolist()
    mean = loss / count
    error = 1.959964 * math.sqrt(max(squares / count - mean * mean, 0.0) / count)
    estimates = {"loss": Estimate(mean, mean - error, mean + error)}
    return int(count), estimates | {"top-1": wilson(top1, count), "top-5": wilson(top5, count)}
