"""conv_chain against F.conv2d, F.batch_norm and activations."""

import pytest
import reference
import torch
from chains import (
    CHAINS,
    SAME_SIZE,
    Build,
    buffers_of,
    composition,
    input_of,
    leaves_of,
    with_own_buffers,
)
from devices import device
from torch.library import opcheck

import fusedsc
from fusedsc.functional import ConvStage, conv_chain

ops = torch.ops.fusedsc


def assert_the_composition(x, stages, **arguments):
    ours, theirs = with_own_buffers(stages), with_own_buffers(stages)
    y, expected = conv_chain(x, ours, **arguments), composition(x, theirs, **arguments)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    assert y.is_contiguous(memory_format=reference.memory_format(x))
    for buffer, wanted in zip(buffers_of(ours), buffers_of(theirs), strict=True):
        torch.testing.assert_close(buffer, wanted)
    grad_y = torch.randn_like(expected)
    leaves = leaves_of(x, stages)
    for tensor, gradient, wanted in zip(
        leaves, torch.autograd.grad(y, leaves, grad_y), torch.autograd.grad(expected, leaves, grad_y), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-7, atol=1e-8)
        if tensor is not x:
            assert gradient.stride() == tensor.stride()
    with torch.no_grad():  # nothing kept: other kernels in eval mode
        y, expected = (function(x, with_own_buffers(stages), **arguments) for function in (conv_chain, composition))
        torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("name", CHAINS)
def test_is_the_composition(name, training, layout, recompute):
    x = input_of(layout=layout)
    assert_the_composition(x, CHAINS[name](Build(8)).stages, training=training, recompute=recompute)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("input_activation", ["identity", "relu"])
@pytest.mark.parametrize("name", SAME_SIZE)
def test_ends_of_a_branch(name, training, scaled, input_activation):
    scale = torch.tensor([0.0, 1.25, 2.0], dtype=torch.float64) if scaled else None
    stages = SAME_SIZE[name](Build(8)).stages
    for residual in (True, False):
        assert_the_composition(
            input_of(), stages, training=training, residual=residual, branch_scale=scale,
            input_activation=input_activation,
        )  # fmt: skip


def test_xception():
    stages = Build(8).dw(3, bn=False).pw(12).stages
    assert_the_composition(input_of(), stages, training=True, input_activation="relu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_narrow_types(dtype, training):
    """As far from float64 as PyTorch's own computation, give or take a little."""
    x = input_of((4, 16, 9, 9), dtype=dtype)
    stages = Build(16, dtype).pw(32, "silu").dw(3, "silu", bias=True).pw(16).stages
    stages = [stage._replace(bn=tuple(t if i == 4 else t.detach().float() for i, t in enumerate(stage.bn)))
              for stage in stages]  # fmt: skip
    scale = torch.rand(4)
    arguments = {"training": training, "residual": True, "branch_scale": scale}
    y = conv_chain(x, with_own_buffers(stages), **arguments)
    wide = [
        stage._replace(weight=stage.weight.double(), bias=None if stage.bias is None else stage.bias.double(),
                       bn=tuple(t if i == 4 else t.double() for i, t in enumerate(stage.bn)))
        for stage in stages
    ]  # fmt: skip
    expected = composition(x.double(), wide, **{**arguments, "branch_scale": scale.double()})
    assert y.dtype == dtype
    error = (y.double() - expected).abs().max()
    assert error <= 32 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("name", ["universal bottleneck", "biases", "no norms", "untracked"])
def test_gradcheck(name, training, recompute):
    x = input_of((2, 4, 5, 4))
    stages = [stage._replace(activation="silu") for stage in CHAINS[name](Build(4)).stages]
    scale = torch.tensor([0.5, 2.0], dtype=torch.float64)

    def function(*_):
        own_stages = with_own_buffers(stages)
        return conv_chain(x, own_stages, training=training, branch_scale=scale, input_activation="silu",
                          recompute=recompute)  # fmt: skip

    assert torch.autograd.gradcheck(function, leaves_of(x, stages))


@pytest.mark.parametrize("training", [True, False])
def test_only_wanted_gradients_are_computed(training):
    x, stages = input_of(), CHAINS["biases"](Build(8)).stages
    everything = leaves_of(x, stages)

    def gradients(wanted):
        for tensor in everything:
            tensor.requires_grad_(any(tensor is other for other in wanted))
        y = conv_chain(x, with_own_buffers(stages), training=training, residual=True)
        return torch.autograd.grad(y.square().sum(), wanted)

    for tensor, expected in zip(everything, gradients(everything), strict=True):
        torch.testing.assert_close(gradients([tensor])[0], expected)


@pytest.mark.parametrize("training", [True, False])
def test_recomputing_gives_the_same_bits(training):
    x, stages = input_of(dtype=torch.float32), CHAINS["pw-dw-pw"](Build(8, torch.float32)).stages
    results = []
    for recompute in (True, False):
        y = conv_chain(x, with_own_buffers(stages), training=training, recompute=recompute)
        results.append((y, *torch.autograd.grad(y, leaves_of(x, stages), y.detach())))
    for recomputed, stored in zip(*results, strict=True):
        assert torch.equal(recomputed, stored)


def test_recomputing_keeps_x_only():
    x, stages = input_of(dtype=torch.float32), CHAINS["pw-dw-pw"](Build(8, torch.float32)).stages
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        conv_chain(x, with_own_buffers(stages), training=True, recompute=True)
    assert sum(tensor.dim() == 4 and tensor.shape[0] == x.shape[0] and tensor is not x for tensor in kept) <= 1


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", ["universal bottleneck", "no norms"])
def test_nan_of_one_image_stays_there(name, recompute):
    """In eval mode an image's gradient is its own: one that is no number is no other's business."""
    stages = CHAINS[name](Build(8)).stages
    for broken in ("gradient", "image"):
        x = input_of().detach()
        if broken == "image":
            x[1, 0, 2, 2] = float("nan")
        x.requires_grad_()
        gradients = []
        for function in (conv_chain, composition):
            y = function(x, with_own_buffers(stages), training=False, recompute=recompute)
            grad_y = torch.ones_like(y)
            if broken == "gradient":
                grad_y[1, 0, 1, 1] = float("nan")
            gradients.append(torch.autograd.grad(y, x, grad_y)[0])
        ours, expected = gradients
        assert broken == "image" or bool(ours[1].isnan().any())
        for image in (0, 2):
            torch.testing.assert_close(ours[image], expected[image])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_empty_batch(training, recompute):
    x, stages = input_of((0, 8, 7, 6)), CHAINS["universal bottleneck"](Build(8)).stages
    y = conv_chain(x, stages, training=training, recompute=recompute)
    assert y.shape == (0, 12, 4, 3)
    y.sum().backward()
    for tensor in leaves_of(x, stages):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_double_backward_is_an_error_when_asked_for():
    x, stages = input_of(), CHAINS["dw-pw"](Build(8)).stages
    (gradient,) = torch.autograd.grad(conv_chain(x, stages, training=True).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward of conv_chain is not implemented"):
        gradient.sum().backward()


def test_autocast_casts_convolutions_only():
    x = input_of(dtype=torch.float32)
    stages = Build(8, torch.float32).pw(16, "silu").dw(3, "silu", bias=True).pw(8).stages
    arguments = {"training": True, "residual": True, "branch_scale": torch.rand(3)}
    with torch.autocast(device().type, torch.bfloat16):
        y = conv_chain(x, with_own_buffers(stages), **arguments)
    short = [stage._replace(weight=stage.weight.bfloat16(), bias=None if stage.bias is None else stage.bias.bfloat16())
             for stage in with_own_buffers(stages)]  # fmt: skip
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, conv_chain(x.bfloat16(), short, **arguments))
    leaves = leaves_of(x, stages)
    for tensor, gradient in zip(leaves, torch.autograd.grad(y.float().sum(), leaves), strict=True):
        assert gradient.dtype == tensor.dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
def test_opcheck_of_the_public_operator(training):
    x, stages = input_of(), CHAINS["eps and momenta"](Build(8)).stages
    arguments = fusedsc.functional.chain_arguments(x, [stage._replace(momentum=0.1) for stage in stages])
    positional = [arguments.pop(name) for name in ("weights", "biases", "has_bn", "bns")]
    opcheck(ops.conv_chain.default, (x, *positional), {**arguments, "training": training})


class Chain(torch.nn.Module):
    def __init__(self, stages, **arguments):
        super().__init__()
        self.arguments = arguments
        self.fixed = [stage._replace(weight=None, bias=None, bn=None) for stage in stages]
        for i, stage in enumerate(stages):
            self.register_parameter(f"weight{i}", torch.nn.Parameter(stage.weight.detach().clone()))
            self.register_module(f"bn{i}", torch.nn.BatchNorm2d(stage.weight.shape[0], dtype=stage.weight.dtype))

    def forward(self, x):
        stages = []
        for i, stage in enumerate(self.fixed):
            bn = getattr(self, f"bn{i}")
            state = (bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.num_batches_tracked)
            stages.append(stage._replace(weight=getattr(self, f"weight{i}"), bn=state))
        return conv_chain(x, stages, training=self.training, **self.arguments)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_compiles_with_backward(training, momentum):
    torch.compiler.reset()
    stages = [stage._replace(momentum=momentum) for stage in SAME_SIZE["pw-dw-pw"](Build(8)).stages]
    model = Chain(stages, residual=True).train(training)
    x = input_of()
    inputs = [x, *model.parameters()]
    expected_y = model(x)
    expected = torch.autograd.grad(expected_y.square().sum(), inputs)
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, expected_y)
    assert y.stride() == expected_y.stride()
    for actual, wanted in zip(torch.autograd.grad(y.square().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
        assert actual.stride() == wanted.stride()


def test_compiles_with_dynamic_shapes():
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = Chain(Build(8).dw(3, padding="same").pw(24, "silu").dw(5, "silu", stride=2, padding="same").pw(12).stages)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for n, h, w in ((2, 8, 12), (3, 12, 16), (5, 16, 20)):
        x = torch.randn(n, 8, h, w, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(graphs) <= 2


def test_compiles_with_a_dropped_branch():
    """Stochastic depth: the scale is made in the compiled graph."""
    torch.compiler.reset()
    model = Chain(SAME_SIZE["pw-dw-pw"](Build(8)).stages, residual=True)

    def step(x):
        model.arguments["branch_scale"] = (x.detach().mean((1, 2, 3)) > 0).to(x.dtype) / 0.8
        return model(x)

    x = input_of()
    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(x), step(x))


@pytest.mark.parametrize("training", [True, False])
def test_exported_as_pytorch_has_it(training):
    model = Chain(SAME_SIZE["dw-pw"](Build(8)).stages, residual=True).train(training)
    x = input_of().detach()
    traced = torch.jit.trace(model, x, check_trace=False)
    assert "fusedsc::" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), model(x))


def test_explained():
    x, stages = input_of(), CHAINS["pw-dw-pw"](Build(8)).stages
    assert fusedsc.explain("conv_chain", x, stages, training=True).taken() == "composed"
    explanation = fusedsc.explain("conv_chain", x, stages, training=False)
    assert explanation.taken() == "inference"
    assert explanation.taken("backward") == "composed"


def dense(build):
    build.stages.append(ConvStage(build.numbers(8, build.channels, 3, 3), padding=1))
    return build


WRONG = [
    (lambda b: b, {}, "stages: there are none"),
    (dense, {}, r"stages\[0\].groups: it is 1, with 8 input channels and a kernel of 3 x 3"),
    (lambda b: b.pw(8, stride=2), {}, r"stages\[0\].groups: "),
    (lambda b: b.pw(8, "gelu2"), {}, r'stages\[0\].activation: unknown name "gelu2"'),
    (lambda b: b.pw(8).dw(3, stride=0), {}, r"stages\[1\].stride: .* is 0"),
    (lambda b: b.pw(8).dw(3, padding=(1, 2, 3)), {}, r"stages\[1\].padding: 3 numbers given"),
    (lambda b: b.pw(8).dw(3, padding="full"), {}, r'stages\[1\].padding: unknown name "full"'),
    (lambda b: b.pw(8).dw(3, stride=(1, 2, 3)), {}, r"stages\[1\].stride: 3 numbers given"),
    (lambda b: b.pw(8).dw(9, padding=0), {}, r"stages\[1\].kernel: .*larger than the padded input"),
    (lambda b: b.pw(8, eps=-1.0), {}, r"stages\[0\].eps: it is -1; it must not be negative"),
    (lambda b: b.pw(12), {"residual": True}, "residual: x has sizes .* and the result"),
    (lambda b: b.pw(8), {"branch_scale": torch.ones(2)}, r"branch_scale: its sizes are \[2\]; give one number per"),
    (lambda b: b.pw(8), {"branch_scale": torch.ones(3, requires_grad=True)}, "branch_scale: it requires a gradient"),
    (lambda b: b.pw(8), {"input_activation": "tanh"}, 'activation: unknown name "tanh"'),
]


@pytest.mark.parametrize(("chain", "arguments", "message"), WRONG)
def test_wrong_arguments(chain, arguments, message):
    with pytest.raises(ValueError, match=message):
        conv_chain(input_of(), chain(Build(8)).stages, training=True, **arguments)


def test_wrong_stages():
    x = input_of()
    (right,) = Build(8).pw(8, bias=True).stages
    weight, vector = right.weight, torch.ones(3, dtype=torch.float64)
    for change, message in (
        ({"weight": weight[0]}, r"stages\[0\].weight: its sizes are"),
        ({"weight": weight.float()}, r"stages\[0\].weight: its dtype is Float"),
        ({"weight": weight[:, :3]}, r"stages\[0\].weight|channels"),
        ({"bias": vector}, r"stages\[0\].bias: its sizes are \[3\]; give one number per channel, \[8\]"),
        ({"bn": right.bn[:4]}, r"stages\[0\].bn: 4 tensors given; give five"),
        ({"bn": (vector, *right.bn[1:])}, r"stages\[0\].bn weight: its sizes are \[3\]"),
        ({"bn": (*right.bn[:2], vector, vector, None)}, r"stages\[0\].running_mean: its sizes are \[3\]"),
        ({"bn": (*right.bn[:4], None), "momentum": None}, r"stages\[0\].momentum: None .* needs num_batches_tracked"),
    ):
        with pytest.raises(ValueError, match=message):
            conv_chain(x, [right._replace(**change)], training=True)
    with pytest.raises(ValueError, match="expected more than 1 value per channel when training"):
        conv_chain(input_of((1, 8, 1, 1)), [right], training=True)
    mixed = [right, right._replace(bn=(*right.bn[:2], None, None, None))]
    with pytest.raises(ValueError, match="running_mean: some of the BatchNorms have running statistics"):
        conv_chain(x, mixed, training=False)
