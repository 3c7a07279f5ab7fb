"""`python -m benchmarks`: a tiny run gives valid records; wrong options give a sentence."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

import fusedsc

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from benchmarks import __main__ as benchmarks
from benchmarks import compare, measure, report, suites, timeline, workloads
from benchmarks.records import CASE_KEYS, by_batch, file_name, mean_ratio, opponents, write_json
from benchmarks.tables import print_slower
from benchmarks.workloads.ablation import Ablation
from benchmarks.workloads.block import Block, InvertedResidual
from benchmarks.workloads.epilogue import DepthwiseEpilogue
from benchmarks.workloads.network import NamedNetwork, Network, SlidingChannelMobileNet
from benchmarks.workloads.sliding_channel import SlidingChannel

KEYS = [
    "suite",
    "case",
    "op",
    "direction",
    "dtype",
    "layout",
    "device",
    "ours_us",
    "pytorch_us",
    "pytorch_variant",
    "ratio",
    "floor_us",
]
pytestmark = pytest.mark.xdist_group("benchmarks")  # they share a run
TINY = ["--batch", "1", "--rounds", "1", "--malloc", "system"]


@pytest.fixture(autouse=True)
def short_samples(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmarks") / "tiny.json"
    suites = ["--suite", "depthwise", "pointwise", "dsc_block"]
    assert benchmarks.main([*TINY, *suites, "--case", "c960*", "--output", str(output)]) == 0
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return json.loads(output.read_text())


def test_records_are_valid(records):
    assert len(records) == 3 * 2 * 2, "three operators, two layouts, two directions"
    for record in records:
        assert list(record)[: len(KEYS)] == KEYS
        assert record["ours_us"] > 0
        assert record["pytorch_us"] > 0
        assert record["floor_us"] > 0
        assert math.isclose(record["ratio"], record["pytorch_us"] / record["ours_us"], rel_tol=0.01)
        assert record["pytorch_us"] == min(record["pytorch_us_of_all"].values())


def test_blocks_meet_both_layouts_of_pytorch(records):
    variants = {variant for record in records if record["op"] == "dsc_block" for variant in record["pytorch_us_of_all"]}
    assert variants == {"eager contiguous", "eager channels_last"}


def test_slower_cases_are_named(records, capsys):
    slow, even, fast = (
        {**records[0], "case": name, "ratio": ratio} for name, ratio in (("A", 0.5), ("B", 0.95), ("C", 2))
    )
    print_slower([fast, even], Console())
    assert capsys.readouterr().out == ""
    print_slower([fast, slow, even], Console(width=150))
    lines = capsys.readouterr().out.splitlines()
    assert "1 of 3" in lines[0]
    assert [line.split()[1] for line in lines if line.split()[:1] == [slow["suite"]]] == ["A"]


def test_results_side_by_side(records, tmp_path, capsys):
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    slower, faster, same = ({**records[0], "case": name} for name in ("A", "B", "C"))
    write_json(before, [slower, faster, same])
    slower, faster = ({**record, "ours_us": record["ours_us"] * by} for record, by in ((slower, 2), (faster, 0.5)))
    write_json(now, [same, faster, slower, {**same, "case": "is new"}])
    assert compare.main([str(before), str(now)]) == 0
    out = capsys.readouterr().out
    changes = out[out.index("Changed") :]
    assert "2 of 3" in changes
    assert [line.split()[1] for line in changes.splitlines() if line.split()[:1] == [same["suite"]]] == ["A", "B"]
    assert [ratio for ratio in ("0.500", "2.000") if ratio in changes] == ["0.500", "2.000"]
    assert compare.main([str(now), str(now)]) == 0
    assert "No case changed" in capsys.readouterr().out


def test_results_with_and_without_tf32_are_kept_apart(records, tmp_path):
    first, other = ({**records[0], "case": name} for name in ("A", "B"))
    with_tf32, without = {**first, "tf32": True}, {**first, "tf32": False, "ours_us": 2 * first["ours_us"]}
    newer = {**without, "ours_us": 3 * first["ours_us"]}
    failed = {key: first[key] for key in (*CASE_KEYS, "batch")} | {"tf32": False, "error": "out of memory"}
    for run in ([with_tf32, failed], [without, {**other, "tf32": False}], [newer]):
        report.keep(tmp_path, run, "title")
    name = with_tf32["suite"]
    assert json.loads((tmp_path / f"{name}.json").read_text()) == [with_tf32]
    assert json.loads((tmp_path / f"{name}_without_tf32.json").read_text()) == [newer, {**other, "tf32": False}]


FOREIGN = [None, "", "[]", "[1]", "{}", "[" * 100_000, '[{"suite": "pointwise"}]']


@pytest.mark.parametrize("content", FOREIGN, ids=range(len(FOREIGN)))
def test_results_that_cannot_be_compared(records, tmp_path, capsys, content):
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    write_json(now, records)
    if content is not None:
        before.write_text(content)
    assert compare.main([str(before), str(now)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {before} ")


@pytest.mark.parametrize(
    "change", [{"ours_us": "1"}, {"operations": []}, {"case": 3}, {"pytorch_us_of_all": None}], ids=str
)
def test_results_with_values_of_other_types(records, tmp_path, capsys, change):
    path = tmp_path / "results.json"
    write_json(path, [*records, records[0] | change])
    assert report.main([str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path} holds no results")


@pytest.mark.parametrize("content", [*FOREIGN, '[{"error": "no"}]'], ids=range(len(FOREIGN) + 1))
def test_results_that_cannot_be_drawn(tmp_path, capsys, content):
    path = tmp_path / "MISSING.json"
    if content is not None:
        path.write_text(content)
    assert report.main([str(path)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {path} {'cannot be read' if content is None else 'holds no results'}")


def test_results_are_drawn_again(records, tmp_path):
    path = tmp_path / "results.json"
    write_json(path, records)
    assert report.main([str(path)]) == 0
    assert (tmp_path / "results_ratio.png").read_bytes().startswith(b"\x89PNG")


def test_kept_results_that_are_damaged(records, tmp_path):
    """What was measured is not written over something that cannot be read, and it is said where that is."""
    path = tmp_path / file_name(records[0])
    path.write_text("[")
    with pytest.raises(ValueError, match=f"{path} holds no results"):
        report.keep(tmp_path, records, "title")
    assert path.read_text() == "["


@pytest.mark.parametrize(
    ("arguments", "option", "parts"),
    [
        (["--suite", "depthwise", "--direction", "input gradient"], "--direction", ("'forward', 'backward'",)),
        (["--suite", "network", "--direction", "forward"], "--direction", ("'training step'",)),
        (["--suite", "network", "--layout", "contiguous"], "--layout", ("'channels_last'",)),
        (["--suite", "depthwise", "--case", "nothing*"], "--case", ("nothing*", "--list")),
        (["--suite", "inference_autocast", "--dtype", "float32"], "--dtype", ("'float16', 'bfloat16'",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_option_that_leaves_no_case_is_named(capsys, arguments, option, parts):
    assert benchmarks.main(arguments) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {option}: ")
    for part in parts:
        assert part in errors


def test_direction_that_does_not_exist(capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmarks.main(["--suite", "depthwise", "--direction", "sideways"])
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert "--direction" in errors
    assert "--case:" not in errors
    for direction in ("sideways", "forward", "backward", "input gradient", "training step"):
        assert direction in errors


def test_training_step(tmp_path):
    output = tmp_path / "network.json"
    arguments = ["--suite", "network", "--case", "* 32x32 *", "--batch", "16", "--rounds", "1", "--malloc", "system"]
    assert benchmarks.main([*arguments, "--output", str(output)]) == 0
    (record,) = json.loads(output.read_text())
    assert record["direction"] == "training step"
    assert record["floor_us"] is None


def test_modules_by_batch(tmp_path, capsys):
    output = tmp_path / "modules.json"
    options = ["--rounds", "1", "--malloc", "system", "--layout", "channels_last"]
    suites = ["--suite", "depthwise_module", "pointwise_module"]
    assert benchmarks.main([*options, *suites, "--batch", "1", "2", "--case", "c960*", "--output", str(output)]) == 0
    records = json.loads(output.read_text())
    assert [(record["suite"], record["batch"], record["direction"]) for record in records] == [
        (suite, batch, "forward") for suite in ("depthwise_module", "pointwise_module") for batch in (1, 2)
    ]
    for record in records:
        assert list(record)[: len(KEYS)] == KEYS
        assert list(record["pytorch_us_of_all"]) == ["eager channels_last"]
    for suite in ("depthwise_module", "pointwise_module"):
        assert (tmp_path / f"modules_{suite}_batches.png").read_bytes().startswith(b"\x89PNG")
    assert "modules_pointwise_module_batches.png" in capsys.readouterr().out.replace("\n", "")


def test_mean_times_are_of_layers_with_all_batches():
    common = {"suite": "s", "direction": "forward", "dtype": "float32", "layout": "contiguous", "operations": 1}
    records = [
        common | {"case": f"{layer} n{batch}", "batch": batch, "ours_us": ours, "pytorch_us": 2 * ours}
        for layer, batch, ours in (("A", 8, 5.0), ("A", 1, 1.0), ("B", 1, 3.0), ("B", 8, 9.0), ("C", 1, 100.0))
    ]
    key = ("s", "forward", "float32", "contiguous")
    assert by_batch(records) == {key: {1: (2.0, 4.0), 8: (7.0, 14.0)}}
    assert by_batch([record for record in records if record["batch"] == 1]) == {}
    assert by_batch([record for record in records if record["case"] in ("A n1", "B n8")]) == {}
    assert by_batch([record | {"operations": None} for record in records]) == {}


EPILOGUES = tuple(DepthwiseEpilogue("T1", 8, 6, 3, 2, fused) for fused in (False, True))


def test_epilogue(monkeypatch, tmp_path):
    monkeypatch.setattr(suites, "EPILOGUES", EPILOGUES)
    output = tmp_path / "epilogue.json"
    options = ["--rounds", "1", "--malloc", "system", "--layout", "contiguous"]
    assert benchmarks.main([*options, "--suite", "epilogue", "--output", str(output)]) == 0
    alone, fused = json.loads(output.read_text())
    assert (alone["case"], fused["case"]) == ("T1:k3m2 c8 6x6 n1", "T1:k3m2+scale-shift-relu c8 6x6 n1")
    assert "us_beside" not in alone
    assert set(fused["us_beside"]) == {"ours, convolution alone", "ours, separate"}
    assert fused["configuration"] == "k3 m2 scale-shift-relu"
    assert fused["bytes"] == alone["bytes"] + 2 * 16 * 4, "scale and shift"
    assert (tmp_path / "epilogue_epilogue_opponents.png").exists()


def test_a_wrong_epilogue_is_not_timed(monkeypatch, tmp_path):
    monkeypatch.setattr(suites, "EPILOGUES", EPILOGUES[1:])
    right = fusedsc.functional.depthwise_conv2d
    monkeypatch.setattr(fusedsc.functional, "depthwise_conv2d", lambda *args, **more: right(*args, **more) + 0.01)
    output = tmp_path / "epilogue.json"
    assert benchmarks.main([*TINY, "--suite", "epilogue", "--output", str(output)]) == 1
    assert all("results differ" in record["error"] for record in json.loads(output.read_text()))


ABLATIONS = tuple(
    Ablation(NamedNetwork("torchvision", "shufflenet_v2_x0_5", batch=1, size=64), whole) for whole in (False, True)
)


def test_ablation(monkeypatch, tmp_path):
    monkeypatch.setattr(suites, "ABLATIONS", ABLATIONS)
    output = tmp_path / "ablation.json"
    options = ["--rounds", "1", "--malloc", "system", "--against", "*channels_last"]
    assert benchmarks.main([*options, "--suite", "ablation", "--output", str(output)]) == 0
    convolutions, whole = json.loads(output.read_text())
    assert convolutions["case"] == "shufflenet_v2_x0_5:convolutions 64x64 n1"
    assert list(convolutions["us_beside"]) == ["depthwise only", "pointwise only"]
    assert list(whole["us_beside"]) == ["depthwise only", "pointwise only", "both"]
    assert (tmp_path / "ablation_ablation_opponents.png").exists()


@pytest.mark.parametrize(
    ("options", "dtypes"),
    [
        (["--suite", "inference"], ["float32"]),
        (["--suite", "inference_autocast"], ["bfloat16"]),
        (["--suite", "inference_autocast", "--dtype", "float32", "float16"], ["float16"]),
    ],
)
def test_inference(monkeypatch, tmp_path, options, dtypes):
    seen = set()
    run = torch.nn.Conv2d.forward

    def noting(self, x):
        y = run(self, x)
        seen.add((self.weight.dtype, y.dtype))
        return y

    monkeypatch.setattr(torch.nn.Conv2d, "forward", noting)
    network = NamedNetwork("torchvision", "mnasnet0_5", batch=2, size=32)
    monkeypatch.setattr(suites, "INFERENCE_NETWORKS", (network,))
    output = tmp_path / "inference.json"
    options = [*options, "--rounds", "1", "--malloc", "system", "--against", "*channels_last"]
    assert benchmarks.main([*options, "--output", str(output)]) == 0
    records = json.loads(output.read_text())
    assert [record["dtype"] for record in records] == dtypes
    (record,) = records
    assert (record["suite"], record["direction"]) == (options[1], "inference")
    assert list(record["pytorch_us_of_all"]) == ["eager channels_last"]
    assert list(record.get("us_beside", ())) == (["ours folded"] if "autocast" in options[1] else [])
    computed = getattr(torch, dtypes[0])
    assert (torch.float32, computed) in seen, "PyTorch's parameters, and its results"
    assert {kinds[0] for kinds in seen} == {torch.float32}


def test_an_ablation_has_convolutions_of_its_kinds_only():
    fused = {}
    for ablation in ABLATIONS:
        models = ablation.models()
        for column, model in models.beside.items():
            own = [module for module in model.modules() if isinstance(module, fusedsc.FusedModule)]
            assert all(type(part).__name__ == "Single" for module in own for part in module.fusedsc_program.parts)
            fused[ablation.whole, column] = {module.groups > 1 for module in own}, len(own)
    for whole in (False, True):
        assert fused[whole, "depthwise only"][0] == {True}
        assert fused[whole, "pointwise only"][0] == {False}
        assert fused[whole, "depthwise only"] == fused[not whole, "depthwise only"], "all of them are in both"
    assert fused[True, "both"] == (
        {True, False},
        sum(fused[True, f"{kind} only"][1] for kind in ("depthwise", "pointwise")),
    )


def test_sparse(tmp_path):
    output = tmp_path / "sparse.json"
    assert benchmarks.main([*TINY, "--suite", "sparse", "--case", "*-conv2*", "--output", str(output)]) == 0
    records = json.loads(output.read_text())
    assert [record["layout"] for record in records] == ["contiguous", "channels_last"]
    for record in records:
        assert list(record)[: len(KEYS)] == KEYS
        assert set(record["pytorch_us_of_all"]) == {"eager contiguous", "eager channels_last"}
        assert record["zeros"] == pytest.approx(0.95, abs=0.02)
        assert record["us_beside"]["ours, ones"] > 0


def test_a_wrong_sparse_convolution_is_not_timed(monkeypatch, tmp_path):
    right = fusedsc.functional.ecr_conv2d
    monkeypatch.setattr(fusedsc.functional, "ecr_conv2d", lambda *args, **kwargs: 1.01 * right(*args, **kwargs))
    output = tmp_path / "sparse.json"
    assert benchmarks.main([*TINY, "--suite", "sparse", "--case", "LeNet*", "--output", str(output)]) == 1
    assert all("results differ" in record["error"] for record in json.loads(output.read_text()))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("AMD Instinct MI250X/MI250", "mi250x-mi250"),
        ("AMD Radeon Graphics", "graphics"),
    ],
)
def test_a_gpus_results_are_named_after_its_model(name, short):
    assert measure.short_name(name) == short


class FakeGpu(measure.Cpu):
    """What is measured on a GPU, in small, and on the CPU."""

    device = "fake"

    def sets_of(self, touched_bytes):
        return 2


@pytest.fixture
def gpu_run(monkeypatch, tmp_path):
    """Runs the command line as with a GPU: its exit status, and the records that each suite leaves."""
    monkeypatch.setattr(benchmarks, "prepare", lambda options: None)
    monkeypatch.setattr(benchmarks, "machine_of", lambda device: FakeGpu())
    monkeypatch.setattr(suites, "GPU_BLOCKS", (Block(8, 6, 2, 4, batch=3, label="B1"),))
    residuals = (InvertedResidual("R1", 8, 1, 6, 1, 6, batch=3), InvertedResidual("R2-4", 8, 2, 6, 1, 8, 3, batch=3))
    monkeypatch.setattr(suites, "INVERTED_RESIDUALS", residuals)
    gated = (InvertedResidual("E1", 8, 2, 6, 2, 4, batch=3, kernel=5, activation="hardswish", squeezed=4),)
    monkeypatch.setattr(suites, "SQUEEZE_EXCITE_BLOCKS", gated)
    unusual = (Block(5, 9, 3, 1, 2, "stride 3", kernel=4, dilation=2), Block(8, 1, 1, 3, 9, "map of 1x1"))
    monkeypatch.setattr(suites, "UNUSUAL_BLOCKS", unusual)
    monkeypatch.setattr(suites, "GPU_NETWORKS", (Network(size=32, batch=8),))
    monkeypatch.setattr(suites, "SLIDING_CHANNEL_LAYERS", ((8, 12, 3), (12, 8, 2)))
    monkeypatch.setattr(suites, "SLIDING_CHANNEL_CONFIGURATIONS", {"cuda": ((2, 25), (4, 50))})
    monkeypatch.setattr(suites, "SLIDING_CHANNEL_BATCH", {"cuda": 3})
    monkeypatch.setattr(suites, "SLIDING_CHANNEL_NETWORKS", (SlidingChannelMobileNet(batch=4),))

    def run(*options):
        place = ["--device", "cuda", "--rounds", "1", "--layout", "channels_last", "--output", str(tmp_path)]
        status = benchmarks.main([*place, *options])
        return status, {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}

    return run


def assert_measured(records):
    for record in records:
        assert list(record)[: len(KEYS)] == KEYS
        assert record["ratio"] > 0
        assert record["pytorch_variant"] == "eager channels_last"


def test_blocks_on_a_gpu(gpu_run, tmp_path):
    status, records = gpu_run("--suite", "dsc_block", "inverted_residual", "squeeze_excite")
    assert status == 0
    assert len(records["squeeze_excite"]) == 2 * 3
    assert len(records["dsc_block"]) == 2 * 3, "directions and types"
    assert len(records["inverted_residual"]) == 2 * 2 * 3
    assert_measured(records["dsc_block"] + records["inverted_residual"] + records["squeeze_excite"])
    assert [r["occurrences"] for r in records["inverted_residual"] if r["case"].startswith("R2-4 ")] == [3] * 6
    assert (tmp_path / "dsc_block_ratio.png").exists()


def test_leanest_blocks_on_a_gpu(gpu_run, monkeypatch):
    recomputed = []
    for name in ("dsc_block", "inverted_residual"):
        function = getattr(fusedsc.functional, name)

        def noting(*arguments, function=function, **options):
            recomputed.append(options["recompute"])
            return function(*arguments, **options)

        monkeypatch.setattr(fusedsc.functional, name, noting)
    status, records = gpu_run("--suite", "dsc_block_leanest", "inverted_residual_leanest", "--dtype", "float32")
    assert status == 0
    assert len(records["dsc_block_leanest"]) == 2
    assert len(records["inverted_residual_leanest"]) == 2 * 2
    assert_measured(records["dsc_block_leanest"] + records["inverted_residual_leanest"])
    assert recomputed
    assert set(recomputed) == {True}


def test_unusual_blocks_on_a_gpu(gpu_run):
    status, records = gpu_run("--suite", "unusual", "--dtype", "float32")
    assert status == 0
    assert [r["case"].split(" c")[0] for r in records["unusual"]] == ["stride 3"] * 2 + ["map of 1x1"] * 2
    assert_measured(records["unusual"])


def test_training_step_on_a_gpu(gpu_run):
    status, records = gpu_run("--suite", "network", "--dtype", "bfloat16")
    assert status == 0
    (record,) = records["network"]
    assert_measured([record])
    assert record["dtype"] == "bfloat16"


def test_sliding_channel_on_a_gpu(gpu_run, tmp_path, capsys):
    status, records = gpu_run("--suite", "sliding_channel", "--dtype", "float32", "float16")
    assert status == 0
    assert len(records["sliding_channel"]) == 2 * 2 * 2 * 2, "layers, configurations, types, directions"
    for record in records["sliding_channel"]:
        assert list(record)[: len(KEYS)] == KEYS
        names = ["dense pointwise", "grouped pointwise", "convolution-stack", "channel-stack"]
        assert list(record["pytorch_us_of_all"]) == names
        assert record["pytorch_us"] == min(record["pytorch_us_of_all"].values())
        assert record["configuration"] in record["case"].replace("cg2co", "cg2 co").replace("cg4co", "cg4 co")
    assert "each variant's time over ours" in capsys.readouterr().out
    assert (tmp_path / "sliding_channel_opponents.png").exists()


def test_only_some_of_pytorchs_variants(gpu_run):
    options = ["--suite", "sliding_channel", "--dtype", "float32", "--direction", "forward"]
    status, records = gpu_run(*options, "--against", "dense*")
    assert status == 0
    for record in records["sliding_channel"]:
        assert list(record["pytorch_us_of_all"]) == [record["pytorch_variant"]] == ["dense pointwise"]
    status, records = gpu_run(*options, "--against", "sparse*")
    assert status == 1
    assert all("--against: no variant matches 'sparse*'" in record["error"] for record in records["sliding_channel"])


def test_sliding_channel_network_on_a_gpu(gpu_run):
    status, records = gpu_run("--suite", "sliding_channel_network", "--dtype", "float32")
    assert status == 0
    (record,) = records["sliding_channel_network"]
    assert record["op"] == "mobilenet"
    assert set(record["us_beside"]) == {"fused dense pointwise"}
    assert list(record["pytorch_us_of_all"]) == ["eager channels_last", "dense pointwise eager channels_last"]


def test_opponents_are_sums_over_layers():
    common = {"suite": "s", "direction": "forward", "dtype": "float32", "layout": "contiguous", "batch": 8}
    records = [
        common | {"case": f"S{i}", "configuration": "cg2 co50", "ours_us": ours, "pytorch_us_of_all": {"dense": dense}}
        for i, (ours, dense) in enumerate(((1.0, 4.0), (3.0, 4.0)))
    ]
    key = ("s", "forward", "float32", "contiguous", "n8", "cg2 co50")
    assert opponents([*records, {"error": "no"}]) == {key: {"dense": 2.0}}
    records[0]["pytorch_us_of_all"]["stack"] = 5.0
    assert opponents(records) == {key: {"dense": 2.0}}


def test_a_wrong_sliding_channel_is_not_timed(gpu_run, monkeypatch):
    monkeypatch.setattr(SlidingChannel, "ours", lambda self, x, weight: x.new_zeros(self.y_shape) + weight.sum())
    status, records = gpu_run("--suite", "sliding_channel", "--dtype", "float32", "--direction", "forward")
    assert status == 1
    assert all("results differ" in record["error"] for record in records["sliding_channel"])


def test_a_case_that_fails_is_reported_and_the_others_measured(gpu_run, monkeypatch, capfd):
    def fail(self, x, parameters):
        raise RuntimeError("it does not work")

    monkeypatch.setattr(Block, "fused", fail)
    options = ["--dtype", "float32", "--direction", "forward"]
    status, records = gpu_run("--suite", "dsc_block", "inverted_residual", *options)
    assert status == 1
    assert [record["error"] for record in records["dsc_block"]] == ["RuntimeError: it does not work"]
    assert all(record["ratio"] > 0 for record in records["inverted_residual"])
    errors = capfd.readouterr().err
    assert "B1 c8 6x6 s2 m4 n3 float32 channels_last forward: RuntimeError: it does not work" in errors
    assert "1 of 3 cases failed" in errors


def test_filtered_runs_keep_the_results_of_full_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path)
    assert benchmarks.main([*TINY, "--suite", "pointwise", "--case", "c960*"]) == 0
    assert not list(tmp_path.iterdir())


def test_no_case_matches(capfd):
    assert benchmarks.main(["--case", "nothing"]) == 1
    assert "error: --case: no case" in capfd.readouterr().err


def test_output_that_cannot_be_written(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "results.json"
    assert benchmarks.main([*TINY, "--suite", "pointwise", "--case", "c960*", "--output", str(output)]) == 1
    printed, errors = capfd.readouterr()
    assert f"error: {output}: cannot be written" in errors
    assert "--output" in errors
    assert "geometric mean" in printed, "what was measured is lost"


def test_files_are_written_before_the_tables(monkeypatch, tmp_path):
    """A run that is ended while it prints has lost nothing."""

    def ended(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmarks, "print_tables", ended)
    output = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        benchmarks.main([*TINY, "--suite", "pointwise", "--case", "c960*", "--output", str(output)])
    assert [record["suite"] for record in json.loads(output.read_text())] == ["pointwise"] * 4


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--rounds", "x"], ["--threads", "-1"], ["--batch", "1.5"]])
def test_options_that_make_no_sense(capfd, arguments):
    with pytest.raises(SystemExit) as stopped:
        benchmarks.parse(arguments)
    assert stopped.value.code == 2
    assert f"{arguments[0]}: it is {arguments[1]}; it must be" in capfd.readouterr().err


def test_a_wrong_result_is_not_timed():
    with pytest.raises(AssertionError, match="results differ"):
        workloads.check_same(torch.ones(3), torch.zeros(3) + 1.1)
    with pytest.raises(AssertionError, match="results differ"):
        workloads.check_same(torch.tensor([1.0, torch.inf]), torch.tensor([1.0, 2.0]))
    workloads.check_same(torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.inf]))


def test_geometric_mean():
    records = [{"ratio": 4.0}, {"ratio": 1.0}]
    assert math.isclose(mean_ratio(records), 2.0)


def test_timeline_sums_and_draws(tmp_path):
    names = {
        "void fusedsc::gpu::(anonymous namespace)::depthwise_rows_kernel<...>(fusedsc::gpu::DepthwiseParameters)": 3.0,
        "void fusedsc::gpu::merge_moments_kernel<float>(fusedsc::gpu::MergeMomentsParameters)": 1.0,
        "void fusedsc::gpu::hopper::weight_kernel<...>(fusedsc::gpu::hopper::PointwiseWeightParameters)": 4.0,
        "void cudnn::batchnorm_fwtr_nhwc_semiPersist<...>": 2.0,
    }
    launches, begin = [], 100.0
    for name, duration in names.items():
        launches.append((begin, duration, name))
        begin += duration + 0.5
    launches[1] = (102.0, 2.0, launches[1][2])  # starts before the first has ended
    times = timeline.by_kind(timeline.one_after_the_other(launches))
    assert times["depthwise forward"] == 3
    assert times["sums and preparations"] == 1
    assert times["pointwise backward"] == 4
    assert times["PyTorch: head, loss, casts, optimizer"] == 2
    assert times["between kernels"] == pytest.approx(1.5)
    timeline.picture(timeline.one_after_the_other(launches), "four kernels").savefig(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_timeline_needs_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert timeline.main([]) == 1
    assert "no GPU" in capsys.readouterr().err
