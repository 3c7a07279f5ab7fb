"""`fusedsc bench`: what it times, checks and writes."""

import json

import pytest
import torch

import fusedsc
from fusedsc.cli import bench, main

pytestmark = pytest.mark.cpu_only("what it times is tested there by itself")

MODEL = ("torchvision:mobilenet_v3_small", "num_classes=3", "--batch", "2", "--input-size", "32", "--seconds", "0.1")


@pytest.fixture(autouse=True)
def torchvision():
    pytest.importorskip("torchvision")


def test_a_training_step(capsys):
    assert main(["bench", *MODEL]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == ("torchvision:mobilenet_v3_small, training step of 2 images 3x32x32, float32, contiguous")
    rows = {line[:20].strip(): line[20:].split() for line in said[4:]}
    assert set(rows) == {"PyTorch", "fusedsc"}
    assert all(float(row[0]) > 0 and float(row[2]) > 0 for row in rows.values())
    assert rows["PyTorch"][3].endswith("x")


@pytest.mark.parametrize("options", [("--eval",), ("--channels-last", "--autocast", "bfloat16")])
def test_results_as_json(options, tmp_path, capsys):
    file = tmp_path / "result.json"
    assert main(["bench", *MODEL, *options, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["step"] == ("inference" if "--eval" in options else "training")
    assert result["autocast"] == ("bfloat16" if "bfloat16" in options else None)
    assert result["layout"] == ("channels_last" if "--channels-last" in options else "contiguous")
    for name, row in result["variants"].items():
        assert row["images_per_second"] == pytest.approx(2e3 / row["ms"]), name
    capsys.readouterr()
    assert main(["bench", *MODEL, *options, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == MODEL[0]


def test_wrong_outputs_end_with_1(monkeypatch, capsys):
    swap = fusedsc.swap

    def wrong(model, **options):
        fused = swap(model, **options)
        torch.nn.init.constant_(fused.classifier[-1].bias, 1e3)
        return fused

    monkeypatch.setattr("fusedsc.cli._passes.swap", wrong)
    assert main(["bench", *MODEL]) == 1
    assert "the outputs differ by" in capsys.readouterr().err


def test_what_is_timed_trains():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    of = bench.Pass(model, torch.randn(2, 3, 4, 4), training=True, autocast=None)
    before = of.model[0].weight.detach().clone()
    bench._step_of(of, of.model)()
    assert not torch.equal(before, of.model[0].weight)
    assert of.model[1].num_batches_tracked == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--seconds", "0"), "--seconds: it is 0"),
        (("--graph",), "--graph: a step can be captured on a GPU only"),
        (("--batch", "0"), "--batch: it is 0"),
        (("--input-size", "0x3"), '--input-size: "0x3" has a size of 0; sizes must be at least 1'),
        # PyTorch would warn, and go on without autocast.
        (("--autocast", "float32"), '--autocast: unknown name "float32"; use one of float16, bfloat16'),
        (("--json", "/no/such/folder/x.json"), "--json: '/no/such/folder/x.json' cannot be written: No such file"),
    ],
)
def test_wrong_arguments(options, sentence, capsys):
    assert main(["bench", *MODEL, *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_model_with_nothing_to_fuse(capsys, tmp_path, monkeypatch):
    (tmp_path / "plain_model.py").write_text("import torch\ndef build(): return torch.nn.Flatten()\n")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "plain_model:build", "--batch", "1", "--input-size", "8", "--eval"]) == 2
    assert "plain_model:build: nothing of it is fused" in capsys.readouterr().err
