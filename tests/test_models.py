import pytest
import timm
import torch

import torchdcls.models
from torchdcls import Dcls2d
from torchdcls.models import NETWORKS


def test_timm_finds_them():
    assert set(timm.list_models("*dcls*")) == set(NETWORKS)
    assert "convnext_tiny_dcls.fb_in1k" in timm.list_models("*dcls*", pretrained=True)
    assert set(NETWORKS) <= set(torchdcls.models.__all__)


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_match_the_stock_network(name):
    stock, interpolation, size = NETWORKS[name]
    with torch.device("meta"):
        model, plain = timm.create_model(name), timm.create_model(stock)
    ours, theirs = (sum(p.numel() for p in m.parameters()) for m in (model, plain))
    assert 0.995 * theirs < ours <= theirs
    layer = next(module for module in model.modules() if isinstance(module, Dcls2d))
    assert layer.dilated_kernel_size == (size, size)
    assert layer.interpolation.name == interpolation
    assert model.pretrained_cfg["architecture"] == name


def test_arguments_are_those_of_any_timm_model():
    model = timm.create_model("convnext_tiny_dcls", in_chans=1, num_classes=7, drop_path_rate=0.2)
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 7)
    assert model.stages[3].blocks[2].drop_path.drop_prob == pytest.approx(0.2)
    features = timm.create_model("convformer_s18_dcls17_bilinear", features_only=True, out_indices=(0, 3))
    assert [tuple(f.shape) for f in features(torch.randn(1, 3, 64, 64))] == [(1, 64, 16, 16), (1, 512, 2, 2)]
    assert features.feature_info.channels() == [64, 512]


def test_pretrained_weights_from_a_file_are_fitted(tmp_path, monkeypatch):
    monkeypatch.setattr("torchdcls.fitting._STEPS", 3)
    stock = timm.create_model("convnext_tiny", num_classes=1000)
    torch.save(stock.state_dict(), tmp_path / "stock.pth")
    model = timm.create_model(
        "convnext_tiny_dcls.fb_in1k", pretrained=True, pretrained_cfg_overlay={"file": str(tmp_path / "stock.pth")}
    )
    assert torch.equal(model.stem[0].weight, stock.stem[0].weight)
    assert model.pretrained_cfg["tag"] == "fb_in1k"
    layer, conv = model.stages[0].blocks[0].conv_dw, stock.stages[0].blocks[0].conv_dw
    kept = layer.dense_kernel()[..., 8:15, 8:15]
    assert (kept - conv.weight).norm() < 0.6 * conv.weight.norm()
    torch.save(model.state_dict(), tmp_path / "own.pth")
    own = timm.create_model("convnext_tiny_dcls", checkpoint_path=str(tmp_path / "own.pth"))
    assert torch.equal(own.stages[0].blocks[0].conv_dw.position, layer.position)


def test_a_hub_that_cannot_be_reached_gives_timms_own_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    errors = []
    for name in ("convnext_tiny", "convnext_tiny_dcls"):
        with pytest.raises(Exception, match=r"(?s).+") as caught:
            timm.create_model(name, pretrained=True, cache_dir=str(tmp_path))
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
