"""Give a trained network a larger window without losing what it knows.

    python -m examples.fine_tune

A small ConvNeXt is trained on digits with its own 7x7 kernels. Then these are replaced by Dcls layers of
15x15 with 100, 70 and 50 elements for each hundred taps, started at random or fitted to the trained
kernels, and trained a little more. Prints the accuracy at each step.
"""

import copy

import torch
from examples.convert_train_fuse_export import accuracy, digits, make_model, train

from torchdcls import to_dcls


def main(images_used: int = 5000) -> None:
    """Train once, convert six times."""
    torch.manual_seed(0)
    images, labels = digits(classes=10)
    training, testing = slice(0, images_used * 4 // 5), slice(images_used * 4 // 5, images_used)
    trained = make_model(classes=10)
    train(trained, images[training], labels[training], epochs=4, lr=3e-3)
    print(f"trained with 7x7 kernels: {accuracy(trained, images[testing], labels[testing]):.1%}")
    print("elements  start   error of kernels  after conversion  after fine-tuning")
    for share in (1.0, 0.7, 0.5):
        for start in ("fit", "random"):
            model = copy.deepcopy(trained)
            report = to_dcls(model, round(49 * share), 15, "triangle", start=start)
            errors = [row.error for row in report if row.error is not None]
            error = f"{sum(errors) / len(errors):16.1%}" if errors else f"{'-':>16}"
            before = accuracy(model, images[testing], labels[testing])
            train(model, images[training], labels[training], epochs=1, lr=5e-4)
            after = accuracy(model, images[testing], labels[testing])
            print(f"{share:8.0%}  {start:6}  {error}  {before:16.1%}  {after:17.1%}", flush=True)


if __name__ == "__main__":
    main()
