"""The robustness report itself: a small run of it, and that it sees what is wrong."""

import pytest
import torch
from tests.robustness import invalid, run
from tests.robustness.case import NAMES, Case, Draw

from torchdcls import Dcls2d
from torchdcls.convolution import plain


def test_a_small_run_has_no_surprises(capsys):
    counts = run.report(count=60, invalid=30, seed=1)
    text = capsys.readouterr().out
    assert counts == {"agreements": 60, "clear refusals": 30, "surprises": 0}, text
    assert text.endswith("seed 1: 60 agreements, 30 clear refusals, 0 surprises\n")


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_a_number_and_a_seed_name_one_configuration(kind):
    codes = [run.draw(kind, 7, index).code for index in range(40)]
    assert codes == [run.draw(kind, 7, index).code for index in range(40)]
    assert len(set(codes)) > 30
    assert codes != [run.draw(kind, 8, index).code for index in range(40)]


def test_everything_is_drawn():
    assert {run.draw("valid", 0, index).family for index in range(200)} == set(run.FAMILIES)
    drawn = {maker(Draw(0)).family for maker in invalid.FAMILIES}
    assert len(drawn) == len(invalid.FAMILIES)


def test_a_wrong_result_is_a_surprise_that_can_be_repeated(monkeypatch, capsys):
    right = plain.convolve
    monkeypatch.setattr(plain, "convolve", lambda *arguments: right(*arguments) * 1.01)
    assert run.report(count=6, invalid=0, seed=3, family="conv layers")["surprises"] > 0
    text = capsys.readouterr().out
    index, surprise = text.split("\n")[0].removeprefix("SURPRISE valid-").split(", conv layers: ")
    assert surprise.startswith("AssertionError: convolution in torch.float")
    assert f"python -m tests.robustness --seed 3 --show valid-{index} --family 'conv layers'" in text
    code = run.draw("valid", 3, int(index), "conv layers").code
    assert code in text
    monkeypatch.undo()
    exec(code, dict(NAMES))


@pytest.mark.parametrize("wrong", ["gradient", "bias", "sharing"])
def test_other_mistakes_are_surprises_too(wrong, monkeypatch):
    if wrong == "gradient":
        hook = lambda module, _, output: output + (module.weight - module.weight.detach()).sum()  # noqa: E731
        monkeypatch.setattr(Dcls2d, "__call__", lambda self, x: hook(self, x, self.forward(x)), raising=False)
        family = "Dcls layers"
    elif wrong == "bias":
        monkeypatch.setattr("torchdcls.layers.DclsNd.to_conv", lambda layer: torch.nn.Identity())
        family = "from_conv"
    else:
        monkeypatch.setattr("torchdcls.surgery.share_positions", lambda layers: None)
        family = "to_dcls"
    assert run.report(count=12, invalid=0, seed=0, family=family)["surprises"] > 0


@pytest.mark.parametrize(
    ("code", "surprise"),
    [
        ("Dcls2d(4, 4, 3, 0)", None),
        ("Dcls2d(4, 4, 3, 5)", "no error"),
        ("raise ValueError('something is wrong')", "ValueError: something is wrong"),
        ("raise RuntimeError('dilated_kernel_size')", "RuntimeError: dilated_kernel_size"),
    ],
)
def test_only_a_sentence_that_names_the_argument_is_a_clear_refusal(code, surprise):
    assert Case("layer", code, clear=("dilated_kernel_size",)).run() == surprise
