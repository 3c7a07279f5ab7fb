"""fusedsc.check_gradients finds what is right right, and every kind of mistake."""

import io

import pytest
import torch
import torch.nn.functional as F
import torchvision
from devices import device

import fusedsc
from fusedsc import functional, nn
from fusedsc.matching.parts import Chain


def tensors(dtype=torch.float32):
    x, dw, pw = torch.randn(2, 8, 6, 7), torch.randn(8, 1, 3, 3), torch.randn(5, 8, 1, 1)
    return [t.to(dtype) for t in (x, dw, pw)]


def norm(channels, tracked=True):
    weight, bias, mean, var = torch.rand(4, channels) + 0.5
    return (weight, bias, *((mean, var, torch.tensor(0)) if tracked else (None,) * 3))


def calls(dtype=torch.float32):
    x, dw, pw = tensors(dtype)
    yield "depthwise_conv2d", (x, dw, torch.randn(8).to(dtype)), {"stride": 2, "padding": "same"}
    yield "pointwise_conv2d", (x, pw), {}
    yield "sliding_channel_conv2d", (x, torch.randn(5, 4, 1, 1).to(dtype)), {"groups": 2, "overlap": 0.25}
    dense = torch.randn(8, 8, 3, 3).to(dtype)
    project = torch.randn(8, 8, 1, 1).to(dtype)
    for training in (True, False):
        yield "dsc_block", (x, dw, *norm(8)[:4], pw), {"training": training, "dw_bias": torch.randn(8).to(dtype)}
        yield "dsc_block", (x, dw, *norm(8)[:4], pw), {"training": training, "activation": "gelu"}
        yield "conv_bn_act", (x, dense, *norm(8)[:4]), {"training": training, "activation": "hardswish"}
        norms = {"expand_bn": None, "dw_bn": norm(8), "project_bn": norm(8)}
        gate = {
            "se_reduce_weight": torch.randn(3, 8, 1, 1).to(dtype),
            "se_expand_weight": torch.randn(8, 3, 1, 1).to(dtype),
        }
        named = {"dw_weight": dw, "project_weight": project, **norms, "training": training, "residual": True}
        stages = [
            functional.ConvStage(dw, torch.randn(8).to(dtype), norm(8), activation="relu6", stride=2, groups=8),
            functional.ConvStage(pw, None, norm(5)),
        ]
        yield "conv_chain", (x, stages), {"training": training, "branch_scale": torch.tensor([0.0, 2.0], dtype=dtype)}
        yield "inverted_residual", (x, None), named
        yield "inverted_residual", (x, None), {**named, **gate, "activation": "silu"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_operators(dtype):
    for name, arguments, named in calls(dtype):
        report = fusedsc.check_gradients(name, *arguments, **named)
        assert report, f"{name}\n{report}"
        checked = {check.tensor for check in report}
        assert {"x", "y"} <= checked
        assert not any("running" in tensor or "branch_scale" in tensor for tensor in checked)
        if name == "conv_chain":
            assert {"stages[0].weight", "stages[0].bias", "stages[1].bn.bias"} <= checked
        assert "all" in report.headline()


def test_names_of_what_is_checked():
    (x, dw, _), project = tensors(), torch.randn(4, 8, 1, 1)
    report = fusedsc.check_gradients(
        functional.inverted_residual, x, None, None, dw, norm(8), project, norm(4), training=True
    )
    names = {check.tensor for check in report} - {"y"}
    norms = {f"{bn}.{part}" for bn in ("dw_bn", "project_bn") for part in ("weight", "bias")}
    assert names == {"x", "dw_weight", "project_weight", *norms}
    by_elements = {check.tensor for check in report if check.against == "differences, all"}
    assert by_elements == norms | {"project_weight"}
    sizes = {check.tensor: check.sizes for check in report if check.against == "differences, 4"}
    assert sizes == {"x": (2, 8, 6, 7), "dw_weight": (8, 1, 3, 3)}


def test_only_what_requires_a_gradient():
    x, dw, _ = tensors()
    report = fusedsc.check_gradients("depthwise_conv2d", x, dw.requires_grad_())
    assert {check.tensor for check in report} == {"y", "weight"}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_modules_are_checked_and_left_as_they_are(training, dtype):
    modules = [
        nn.DepthwiseConv2d(8, 8, (3, 5), padding="same"),
        nn.DSCBlock(8, 8, stride=2, activation="hardswish", bias=True),
        nn.InvertedResidual(8, 8, 1, 3, squeeze_channels=4),
        nn.ConvBnAct(8, 6),
    ]
    model = torch.nn.Sequential(*modules[:3]).to(dtype).train(training)
    for module in (model, modules[3].to(dtype).train(training)):
        before = {name: value.clone() for name, value in module.state_dict().items()}
        report = fusedsc.check_gradients(module, tensors(dtype)[0], directions=2)
        assert report, str(report)
        assert {name for name, _ in module.named_parameters()} <= {check.tensor for check in report}
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name])
        assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_small"])
def test_swapped_networks(name):
    model = fusedsc.swap(torchvision.models.get_model(name, width_mult=0.25, num_classes=5)).to(device())
    report = fusedsc.check_gradients(model, torch.randn(2, 3, 64, 64), directions=1)
    assert report, str(report)
    assert len(report.checks) == 2 * len(list(model.parameters())) + 3


class Altered(torch.autograd.Function):
    """The tensor itself; its gradient is `change` of the right one."""

    @staticmethod
    def forward(ctx, y, change):
        ctx.change = change
        return y.clone()

    @staticmethod
    def backward(ctx, grad_y):
        return ctx.change(grad_y.clone()), None


def without_a_corner(gradient):
    gradient[0, 0, 0, 0] = 0
    return gradient


MISTAKES = {
    "a sign": lambda g: -g,
    "a factor": lambda g: g * 1.001,
    "nothing": torch.zeros_like,
    "a NaN": lambda g: g * float("nan"),
    "one element": without_a_corner,
    "an image": lambda g: g.roll(1, 0),
}


@pytest.mark.parametrize("change", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_of_gradients(change):
    x, dw, _ = tensors()

    def mistaken(x, weight):
        return functional.depthwise_conv2d(Altered.apply(x, change), weight, padding=1)

    def right(x, weight):
        return F.conv2d(x, weight, padding=1, groups=8)

    report = fusedsc.check_gradients(mistaken, x, dw, reference=right)
    wrong = {(check.tensor, check.against.split(",")[0]) for check in report.wrong}
    assert not report
    assert wrong == {("x", "unfused"), ("x", "differences")}
    assert f"2 of {len(report.checks)} are wrong" in str(report)
    assert "WRONG" in str(report)
    # What the composition does wrong alike only differences can tell, but for a NaN.
    against = {check.against for check in fusedsc.check_gradients(mistaken, x, dw).wrong}
    assert against - {"unfused, float32"} == {"differences, 4"}


def test_mistakes_of_results():
    x, dw, _ = tensors()

    def mistaken(x, weight):
        return functional.depthwise_conv2d(x, weight, padding=1) * 1.001

    report = fusedsc.check_gradients(mistaken, x, dw, reference=lambda x, w: F.conv2d(x, w, padding=1, groups=8))
    assert {check.tensor for check in report.wrong} == {"y", "x", "weight"}
    assert {check.against for check in report.wrong} == {"unfused, float32"}


def test_mistakes_of_swapped_blocks(monkeypatch):
    """The block's children are what is right: another activation, say, was fused."""
    block = fusedsc.swap(torchvision.models.mobilenet_v2(width_mult=0.25, num_classes=5).features[2].to(device()))
    x, right = torch.randn(2, 8, 8, 8), Chain.run
    assert fusedsc.check_gradients(block, x, directions=1)
    monkeypatch.setattr(Chain, "run", lambda part, module, x: right(part, module, x.relu()))
    report = fusedsc.check_gradients(block, x, directions=1)
    assert {check.against for check in report.wrong} == {"unfused, float32"}


def test_kinks_are_kept_away_from():
    """Zeros on a kink: the derivative there is nobody's, and a thousandth away it is right."""
    x, dw, pw = tensors()
    block = {"training": False, "activation": "relu"}
    report = fusedsc.check_gradients(
        "dsc_block", torch.zeros_like(x), dw, *[None] * 4, pw, dw_bias=torch.zeros(8), **block
    )
    assert all(check.ok for check in report if check.against.startswith("differences"))


def test_random_layers_draw_the_same():
    model = torch.nn.Sequential(nn.DepthwiseConv2d(8, 8, 3), torch.nn.Dropout(0.5)).to(device())
    x, numbers = tensors()[0], torch.random.get_rng_state()
    assert fusedsc.check_gradients(model, x)
    assert torch.equal(numbers, torch.random.get_rng_state())


def test_results_of_several_tensors():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.DepthwiseConv2d(8, 8, 3)

        def forward(self, x, scale):
            y = self.conv(x)
            return {"first": y, "rest": [y.mean() * scale, y.argmax()]}

    report = fusedsc.check_gradients(Two().to(device()), tensors()[0], scale=2)
    assert report
    assert {"y0", "y1", "x", "conv.weight", "conv.bias"} == {check.tensor for check in report}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fusedsc.check_gradients("conv3d", torch.ones(1)), 'module_or_op: unknown name "conv3d"; use one of '),
        (lambda: fusedsc.check_gradients("pointwise_conv2d", torch.ones(1)), "pointwise_conv2d: missing .*'weight'"),
        (
            lambda: fusedsc.check_gradients(torch.nn.ReLU(), torch.ones(1, dtype=torch.int64)),
            "inputs: no tensor of ReLU",
        ),
        (lambda: fusedsc.check_gradients("pointwise_conv2d", torch.ones(2, 2), torch.ones(2, 2, 1, 1)), "x: its sizes"),
    ],
)
def test_wrong_usage(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_operators_of_torch_ops():
    x, dw, _ = tensors()
    assert fusedsc.check_gradients(torch.ops.fusedsc.depthwise_conv2d, x, dw, padding=1)


def test_rich_tables():
    console = pytest.importorskip("rich.console").Console(width=200, record=True, file=io.StringIO())
    x, dw, _ = tensors()
    report = fusedsc.check_gradients("depthwise_conv2d", x, dw)
    console.print(report)
    text = console.export_text()
    assert report.headline() in text
    assert "2x8x6x7" in text


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("made_there", [True, False])
def test_where_nothing_has_gradients(context, made_there):
    """What is checked is the same as elsewhere, and is found to be right."""

    def subjects():
        torch.manual_seed(0)
        x, dw, _ = tensors()
        model = torch.nn.Sequential(nn.DSCBlock(8, 6), torch.nn.BatchNorm2d(6)).to(device())
        return (model, x), ("depthwise_conv2d", x, dw)

    given = subjects()
    expected = [fusedsc.check_gradients(*subject) for subject in given]
    with context():
        reports = [fusedsc.check_gradients(*subject) for subject in (subjects() if made_there else given)]
        assert not torch.is_grad_enabled()
    for report, outside in zip(reports, expected, strict=True):
        assert report, str(report)
        assert [check.tensor for check in report] == [check.tensor for check in outside]
        assert [check.size for check in report] == pytest.approx([check.size for check in outside])
