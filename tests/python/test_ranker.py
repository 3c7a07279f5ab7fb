"""What a ranker says is taken, where nothing was measured; on a CPU, with trees of one leaf."""

import json

import pytest
import torch

import fusedsc

ROLE = "depthwise_conv2d.forward"

pytestmark = pytest.mark.cpu_only("asks for the CPU's kernels")


@pytest.fixture
def ranker(store, monkeypatch, tmp_path):
    """Writes one and makes it count: of each kernel log(time / roofline)."""

    def counts(times: dict[str, float], margin: float = 0.0, role: str = ROLE) -> None:
        leaf = {"roots": [0], "feature": [-1], "right": [0]}
        trees = json.dumps({"role": role, "kernels": {k: {**leaf, "value": [time]} for k, time in times.items()}})
        head = {
            "version": 2,
            "features": torch.ops.fusedsc._tune_feature_names(),
            "roles": [{"role": role, "margin": margin, "bytes": len(trees)}],
        }
        file = tmp_path / "ranker.jsonl"
        file.write_text(f"{json.dumps(head)}\n{trees}\n")
        monkeypatch.setenv("FUSEDSC_RANKER", str(file))
        fusedsc.tuning.reload_choices()

    return counts


def taken() -> tuple[str, str]:
    explained = fusedsc.explain("depthwise_conv2d", torch.randn(1, 24, 28, 28), torch.randn(24, 1, 3, 3), None, 1, 1)
    (line,) = [line for line in explained.candidates if line.taken and line.direction == "forward"]
    return line.implementation, line.why


def others() -> tuple[str, str]:
    """The prior's kernel, and another one."""
    prior, why = taken()
    assert why == "prior"
    (other,) = {"cpu", "cpu_planes"} - {prior}
    return prior, other


def test_what_is_predicted_to_be_faster_is_taken(ranker):
    ranker({}, role="pointwise_conv2d.forward")
    prior, other = others()
    ranker({prior: 0.0, other: -0.2})
    kernel, why = taken()
    assert kernel == other
    assert why.startswith("predicted, ")
    x, weight = torch.randn(2, 24, 28, 28), torch.randn(24, 1, 3, 3)
    found = fusedsc.functional.depthwise_conv2d(x, weight, padding=1)
    torch.testing.assert_close(found, torch.nn.functional.conv2d(x, weight, padding=1, groups=24))


def test_the_prior_stays_within_the_margin(ranker):
    ranker({}, role="pointwise_conv2d.forward")
    prior, other = others()
    ranker({prior: 0.0, other: -0.2}, margin=0.3)
    assert taken() == (prior, "prior")
    ranker({prior: 0.0, other: 0.0})
    assert taken() == (prior, "prior")


def test_nothing_is_known_of_the_priors_kernel(ranker):
    ranker({}, role="pointwise_conv2d.forward")
    prior, other = others()
    ranker({other: -5.0})
    assert taken() == (prior, "prior")


def test_what_is_measured_counts_more(ranker):
    ranker({}, role="pointwise_conv2d.forward")
    prior, other = others()
    ranker({prior: 0.0, other: -3.0})
    x, weight = torch.randn(1, 24, 28, 28), torch.randn(24, 1, 3, 3)
    fusedsc.tune(lambda: fusedsc.functional.depthwise_conv2d(x, weight, None, 1, 1), backward=False, progress=False)
    assert taken()[1].startswith("tuned")


def test_kernels_that_the_ranker_does_not_know_are_tried(ranker):
    """However many configs of others it puts first."""
    ranker({}, role="pointwise_conv2d.forward")
    for known, other in (("cpu", "cpu_planes"), ("cpu_planes", "cpu")):
        ranker({known: -3.0})
        torch.ops.fusedsc._tune_record(True)
        try:
            fusedsc.functional.depthwise_conv2d(torch.randn(1, 24, 28, 28), torch.randn(24, 1, 3, 3), None, 1, 1)
            kernels = [name.split("/")[0] for name in torch.ops.fusedsc._tune_candidates(0, 12)]
        finally:
            torch.ops.fusedsc._tune_record(False)
        assert kernels.count(known) > 4  # more of them than a list without it would have
        assert kernels.count(other) >= 3


def test_trees_are_read_where_another_kernel_may_be_taken(ranker, tmp_path):
    """With a margin of 1 the prior's stays: what is wrong with the trees is not found, as they are not read."""
    for margin in (1.0, 0.5):
        ranker({"cpu": 0.0, "cpu_planes": 0.0}, margin=margin)
        file = tmp_path / "ranker.jsonl"
        file.write_text(file.read_text().replace('"feature": [-1]', '"feature": [99]'))
        fusedsc.tuning.reload_choices()
        if margin == 1:
            assert taken()[1] == "prior"
        else:
            with pytest.raises(ValueError, match=r"FUSEDSC_RANKER: .*ranker\.jsonl is no ranker: a node asks for"):
                taken()


def test_none_counts(ranker, monkeypatch):
    ranker({}, role="pointwise_conv2d.forward")
    prior, other = others()
    ranker({prior: 0.0, other: -3.0})
    monkeypatch.setenv("FUSEDSC_RANKER", "none")
    fusedsc.tuning.reload_choices()
    assert taken() == (prior, "prior")


@pytest.mark.parametrize("contents", [None, "{", '{"version": 1}'])
def test_a_file_that_is_no_ranker(ranker, monkeypatch, tmp_path, contents):
    file = tmp_path / "other.json"
    if contents is not None:
        file.write_text(contents)
    monkeypatch.setenv("FUSEDSC_RANKER", str(file))
    fusedsc.tuning.reload_choices()
    with pytest.raises(ValueError, match=r"FUSEDSC_RANKER: .*other\.json is no ranker: "):
        taken()
    monkeypatch.setenv("FUSEDSC_RANKER", "")
    fusedsc.tuning.reload_choices()
    assert taken()[1] == "prior"


def features(problem: str, choice: str) -> tuple[dict[str, float], float]:
    names = torch.ops.fusedsc._tune_feature_names()
    table, roofline = torch.ops.fusedsc._tune_features(problem, [choice], 100.0)
    return dict(zip(names, table[0].tolist(), strict=True)), roofline


def test_what_is_read_from_a_problem():
    found, roofline = features(
        "x=float16[64,32,112,112] channels_last align=64 gpu, weight=float16[96,32,1,1] contiguous align=64 gpu, "
        "groups=1, prologue{scale=float32[32] align=64 gpu, shift=float32[32] align=64 gpu, activation=relu6}, "
        "statistics{mean=float32[96] align=64 gpu}, y=float16[64,96,112,112] channels_last align=64 gpu, allow_tf32",
        "hopper_sliced_k/rows=128 channels=64 depth=32 splits=3",
    )
    positions = 64 * 112 * 112
    moved = 2 * (positions * (32 + 96) + 96 * 32) + 4 * (32 + 32 + 96)
    assert 2 ** found["positions"] == pytest.approx(positions)
    assert 2 ** found["bytes"] == pytest.approx(moved)
    assert 2 ** found["products_of_byte"] == pytest.approx(positions * 96 * 32 / moved)
    assert roofline == pytest.approx(2 + moved / 3e6)
    expected = {"element_bytes": 2, "channels_last": 1, "prologues": 1, "behind": 1, "gradients": 0, "k_rows": 128,
                "k_splits": 3, "tiles_of_positions": positions / 128, "tiles_of_outputs": 2,
                "waste_of_outputs": 128 / 96, "steps_of_channels": 1}  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert 2 ** found["blocks_of_product"] == pytest.approx(positions / 128 * 2 * 3 / 100)


def test_what_is_read_from_a_gradients_problem():
    found, _ = features(
        "x=float32[2,24,9,11] contiguous align=16 gpu, weight=float32[24,1,5,5] contiguous align=64 gpu, "
        "window{kernel=[5,5], stride=[2,2], dilation=[1,1], padding{left=2, right=2, top=2, bottom=2}}, "
        "grad_y=float32[2,24,5,6] contiguous align=64 gpu, "
        "gradient_prologue{output=float32[2,24,5,6] contiguous align=64}, "
        "grad_add=float32[2,24,9,11] contiguous align=16 gpu, grad_x=float32[2,24,9,11] contiguous align=16 gpu",
        "gpu_taps",
    )
    expected = {"kernel": 5, "stride": 2, "dilation": 1, "prologues": 2, "behind": 8, "gradients": 1,
                "channels_last": 0, "element_bytes": 4, "k_rows": 0, "tiles_of_height": 0}  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert 2 ** found["positions"] == pytest.approx(2 * 5 * 6)
    assert 2 ** found["bytes"] == pytest.approx(4 * (3 * 2 * 24 * 99 + 24 * 25 + 2 * 2 * 24 * 30))
