"""What swap leaves to PyTorch by measurement, and the program that measures."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fusedsc
from fusedsc.matching import measured
from fusedsc.matching.measured import Geometry, Measurements, Row

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import parts as program

pytestmark = pytest.mark.cpu_only("of files; test_swap_gpu.py trains what is swapped")

PACKAGE = measured.FOLDER
ROW = Row("depthwise", 64, 64, 3, 1, 28, 2, "float32", "train", ours_us=120.0, pytorch_us=100.0)
SLOWER = "PyTorch is faster here, measured: 1.20 times (cpu; train)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where measurements are; there are none yet."""
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    measured._read.cache_clear()
    yield tmp_path
    measured._read.cache_clear()


def write(folder, *rows, device="cpu"):
    (folder / f"{device}.json").write_text(json.dumps({"rows": [asdict(row) for row in rows]}))


def layer(channels=64):
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.Tanh())


def left(model, **options):
    options = {"input_size": (64, 28, 28), "verbose": False} | options
    return fusedsc.swap_report(fusedsc.swap(model, **options)).left


def test_a_slower_part_stays(folder):
    write(folder, ROW)
    plain = layer()
    assert left(plain) == {"0": SLOWER}
    assert not isinstance(fusedsc.swap(plain, input_size=(64, 28, 28), verbose=False)[0], fusedsc.FusedModule)
    assert left(plain, replace_slower=True) == {}
    assert isinstance(fusedsc.swap(plain, verbose=False, replace_slower=True)[0], fusedsc.FusedModule)


def test_without_measurements_everything_is_replaced(folder):
    assert left(layer()) == {}


DAMAGED = {
    "empty": b"",
    "truncated": json.dumps({"rows": [asdict(ROW)]}).encode()[:-9],
    "no text": b"\xff\xfe\x00\x80",
    "too deep": b"[" * 100_000,
    "a list": b"[]",
    "no rows": b'{"machine": "x"}',
    "rows of another kind": json.dumps({"rows": [{"case": "A"}]}).encode(),
    "a number as text": json.dumps({"rows": [asdict(ROW) | {"channels": "64"}]}).encode(),
    "a time of nothing": json.dumps({"rows": [asdict(ROW), asdict(ROW) | {"ours_us": 0}]}).encode(),
    "a time that is none": json.dumps({"rows": [asdict(ROW) | {"ours_us": float("nan")}]}).encode(),
    "a folder": None,
}


@pytest.fixture(params=DAMAGED)
def damaged(folder, request):
    path = folder / "cpu.json"
    content = DAMAGED[request.param]
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    return path


def test_a_damaged_file_is_as_none_and_said_so_once(damaged):
    with pytest.warns(UserWarning, match="measured") as warned:
        assert [left(layer()) for _ in range(2)] == [{}, {}]
    (warning,) = warned
    assert str(damaged) in str(warning.message)
    assert "Remove the file" in str(warning.message)


def test_the_program_measures_nothing_for_a_damaged_file(damaged, capsys):
    assert program.main(["--passes", "1"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"error: {damaged} ")
    assert output.err.endswith("; remove it, and measure all parts\n")


@pytest.mark.parametrize(
    ("row", "stays"),
    [
        (ROW, True),
        (replace(ROW, ours_us=117.0), False),  # less than 15% is noise on a CPU
        (replace(ROW, ours_us=80.0), False),
        (replace(ROW, inputs=300, channels=300), False),  # another factor than four
        (replace(ROW, inputs=200, channels=200), True),
        (replace(ROW, inputs=14), False),  # another expansion
        (replace(ROW, inputs=128, channels=128, size=56, kernel=5), False),  # nor is it in all
        (replace(ROW, mode="eval"), False),
        (replace(ROW, dtype="float16"), False),
        (replace(ROW, part="pointwise"), False),
    ],
)
def test_only_what_was_measured_nearby_counts(folder, row, stays):
    write(folder, row)
    assert bool(left(layer())) == stays


def test_the_nearest_counts(folder):
    less, least = replace(ROW, inputs=48, channels=48), replace(ROW, inputs=40, channels=40)
    write(folder, least, replace(less, ours_us=50.0), replace(ROW, size=100))
    assert left(layer()) == {}
    write(folder, less, replace(least, ours_us=50.0))
    measured._read.cache_clear()
    assert left(layer()) == {"0": SLOWER}


def test_of_an_unknown_size_the_median(folder):
    rows = [replace(ROW, size=size, ours_us=ours) for size, ours in ((7, 120.0), (14, 90.0), (28, 125.0))]
    write(folder, *rows)
    module = layer()[0]
    part = fusedsc.matching.fused.single("depthwise")
    assert "1.20 times" in Measurements(module, {}).slower(part, module)
    assert Measurements(module, {module: 14.0**2}).slower(part, module) is None
    assert "1.25 times" in Measurements(module, {module: 30.0 * 28.0}).slower(part, module)


def test_modes_and_types(folder):
    write(folder, ROW, replace(ROW, mode="eval", ours_us=150.0))
    assert "1.50 times (cpu; eval)" in left(layer().eval())["0"]
    assert left(layer().double()) == {}
    assert left(layer().half()) == {}
    write(folder, ROW, replace(ROW, dtype="float16"))
    measured._read.cache_clear()
    assert left(layer()) == {"0": SLOWER}
    assert left(layer().bfloat16()) == {"0": SLOWER}
    write(folder, ROW, replace(ROW, dtype="float16", ours_us=50.0))  # which it may be under autocast
    measured._read.cache_clear()
    assert left(layer()) == {}


def test_a_model_may_go_to_the_gpu(folder, monkeypatch):
    write(folder, ROW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H100 80GB HBM3")
    assert left(layer()) == {}  # nothing is known of it
    write(folder, replace(ROW, ours_us=115.0), device="h100")
    measured._read.cache_clear()
    assert left(layer()) == {"0": "PyTorch is faster here, measured: 1.15 times (cpu, h100; train)"}
    write(folder, replace(ROW, ours_us=102.0), device="h100")  # less than 3% is noise
    measured._read.cache_clear()
    assert left(layer()) == {}


def test_of_a_gpu_it_must_be_slower_at_every_batch(folder, monkeypatch):
    """And shapes further away than twice say nothing: its last layer of 320 channels to 1280 is no layer of 960."""
    monkeypatch.setattr(Measurements, "_devices", lambda self: iter(["h100"]))
    large = replace(ROW, batch=256, ours_us=110.0)
    write(folder, ROW, large, device="h100")
    assert left(layer()) == {"0": "PyTorch is faster here, measured: 1.10 times (h100; train)"}
    write(folder, ROW, replace(large, ours_us=90.0), device="h100")
    measured._read.cache_clear()
    assert left(layer()) == {}
    wide = Row("pointwise", 960, 960, 1, 1, 7, 64, "float32", "train", 140.0, 100.0)
    write(folder, wide, device="h100")
    measured._read.cache_clear()
    for inputs, outputs, stays in ((960, 960, True), (960, 1280, True), (320, 1280, False), (400, 400, False)):
        one = nn.Sequential(nn.Conv2d(inputs, outputs, 1))
        assert bool(left(one, input_size=(inputs, 7, 7))) == stays


def block():
    return nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 96, 1)
    )


def test_convolutions_of_a_slower_chain_must_gain(folder):
    chain = Row("depthwise-pointwise, norm", 64, 96, 3, 1, 28, 2, "float32", "train", 120.0, 100.0)
    write(folder, chain)
    assert left(block()) == dict.fromkeys(("0", "3"), SLOWER)  # nothing is known of them
    gain = Row("depthwise, norm", 64, 64, 3, 1, 28, 2, "float32", "train", 99.0, 100.0)
    write(folder, chain, gain)
    measured._read.cache_clear()
    fused = fusedsc.swap(block(), input_size=(64, 28, 28), verbose=False)
    report = fusedsc.swap_report(fused)
    assert report.left == dict.fromkeys(("0", "3"), SLOWER)  # there is no such part in the block
    write(folder, chain, replace(ROW, ours_us=99.0), replace(ROW, part="pointwise", channels=96, kernel=1))
    measured._read.cache_clear()
    fused = fusedsc.swap(block(), input_size=(64, 28, 28), verbose=False)
    report = fusedsc.swap_report(fused)
    assert report.operators == {"depthwise_conv2d": 1}
    assert report.left == {"3": SLOWER}
    assert report.shares == {"depthwise": 1.0, "pointwise": 0.0}
    x = torch.randn(2, 64, 9, 9)
    torch.testing.assert_close(fused(x), fusedsc.unswap(fused)(x), rtol=1e-4, atol=1e-5)


def test_layers_within_a_slower_block_are_tried_as_chains(folder):
    """Each in a module of its own, as torchvision's are; what is replaced is not reported to be left."""
    models = pytest.importorskip("torchvision.models")
    network = models.mobilenet_v2(num_classes=10).features[3]
    whole = Row("pointwise-depthwise-pointwise, norm", 24, 144, 3, 1, 28, 2, "float32", "train", 120.0, 100.0)
    write(folder, whole, Row("depthwise, norm", 144, 144, 3, 1, 28, 2, "float32", "train", 50.0, 100.0))
    report = fusedsc.swap_report(fusedsc.swap(network, input_size=(24, 28, 28), verbose=False))
    assert report.operators == {"conv_chain": 1}
    assert report.replaced == ["conv.1"]
    assert report.left == dict.fromkeys(("conv.0.0", "conv.2"), SLOWER)


def test_synchronised_parts_are_not_measured(folder):
    write(folder, Row("depthwise-pointwise, norm", 64, 96, 3, 1, 28, 2, "float32", "train", 120.0, 100.0))
    assert fusedsc.swap_report(
        fusedsc.swap(nn.SyncBatchNorm.convert_sync_batchnorm(block()), input_size=(64, 28, 28), verbose=False)
    ).operators == {"conv_chain": 1}


@pytest.mark.parametrize("shape", program.SHAPES, ids=str)
def test_what_is_timed_is_what_swap_finds(shape, monkeypatch):
    """Each shape is one part, and its row is at no distance from it."""
    asked = []

    def slower(self, part, module, must_gain=False):
        asked.append((self, part, module))

    monkeypatch.setattr(Measurements, "slower", slower)
    with torch.device("meta"):
        model = nn.Sequential(*program.BUILDERS[shape.part](shape))
    inputs = next(m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d))
    size = shape.size * shape.stride
    fusedsc.swap(model, inplace=True, input_size=(inputs, size, size), verbose=False)
    ((measurements, part, module),) = asked
    geometry = measured.geometry_of(part, module, measurements.positions)
    assert geometry == Geometry(shape.part, shape.inputs, shape.channels, shape.kernel, shape.stride, shape.size)


def test_the_files_of_the_package(monkeypatch):
    monkeypatch.setattr(measured, "FOLDER", PACKAGE)
    paths = list(PACKAGE.glob("*.json"))
    assert "cpu.json" in [path.name for path in paths]
    for path in paths:
        rows = measured.rows_of(path.stem)
        assert {row.part for row in rows} <= set(program.BUILDERS)
        assert {row.mode for row in rows} == {"train", "eval"}
        assert all(row.ours_us > 0 and row.pytorch_us > 0 for row in rows)
        assert len({replace(row, ours_us=0.0, pytorch_us=0.0) for row in rows}) == len(rows)


def test_the_program_writes_what_swap_reads(folder, monkeypatch, capsys):
    shapes = [program.Shape("depthwise", 8, 6), program.Shape("depthwise-pointwise, norm", 16, 6, stride=2)]
    monkeypatch.setattr(program, "SHAPES", shapes)
    assert program.main(["--passes", "2", "--print"]) == 0
    assert not list(folder.iterdir())
    assert program.main(["--passes", "2"]) == 0
    found = measured.rows_of("cpu")
    assert {(row.part, row.channels, row.size, row.stride, row.mode) for row in found} == {
        (shape.part, shape.channels, shape.size, shape.stride, mode) for shape in shapes for mode in ("train", "eval")
    }
    written = json.loads((folder / "cpu.json").read_text())
    assert written["torch"] == torch.__version__
    write(folder, ROW, *found)
    assert program.main(["--passes", "2", "--part", "depthwise"]) == 0
    measured._read.cache_clear()
    assert ROW in measured.rows_of("cpu")
    assert len(measured.rows_of("cpu")) == 5
    assert "2 of 5 rows are new" in capsys.readouterr().out
    write(folder, *(replace(row, ours_us=0.5) for row in found))
    assert program.main(["--passes", "1", "--more"]) == 0
    measured._read.cache_clear()
    assert {row.ours_us for row in measured.rows_of("cpu")} == {0.5}


def test_the_program_says_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as error:
        program.main(["--device", "cuda"])
    assert error.value.code == 2
    assert "PyTorch finds no GPU" in capsys.readouterr().err
