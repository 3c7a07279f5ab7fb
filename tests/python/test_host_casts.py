"""What autocast leaves to a chain: it casts weights and biases itself, and gradients come back in their dtypes."""

import warnings
from collections import Counter
from itertools import pairwise

import pytest
import torch
from chains import Build, buffers_of, leaves_of, with_own_buffers
from devices import device
from torch import nn
from torch.library import opcheck
from torch.profiler import ProfilerActivity, profile

import fusedsc
from fusedsc.functional import chain_arguments, conv_chain

ops = torch.ops.fusedsc
DTYPE = torch.bfloat16


def chain_and_x(bias=True):
    stages = Build(8, torch.float32).pw(16, "relu6").dw(3, "silu", bias=bias).pw(8).stages
    x = torch.randn(4, 8, 6, 6, device=device()).to(DTYPE).requires_grad_()
    return stages, x


def under_autocast(x, stages, **arguments):
    with torch.autocast(device().type, DTYPE):
        return conv_chain(x, with_own_buffers(stages), training=True, residual=True, **arguments)


def cast_outside(x, stages, **arguments):
    """The same, of weights that PyTorch casts, and differentiates the cast of."""
    short = [
        stage._replace(weight=stage.weight.to(DTYPE), bias=None if stage.bias is None else stage.bias.to(DTYPE))
        for stage in with_own_buffers(stages)
    ]
    return conv_chain(x, short, training=True, residual=True, **arguments)


def gradients_of(function, x, stages, **arguments):
    y = function(x, stages, **arguments)
    leaves = leaves_of(x, stages)
    return y, torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel(), device=y.device, dtype=DTYPE).view_as(y))


@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("bias", [True, False])
def test_the_same_bits_as_weights_that_pytorch_casts(recompute, bias):
    stages, x = chain_and_x(bias)
    y, gradients = gradients_of(under_autocast, x, stages, recompute=recompute)
    expected_y, expected = gradients_of(cast_outside, x, stages, recompute=recompute)
    assert torch.equal(y, expected_y)
    for leaf, gradient, wanted in zip(leaves_of(x, stages), gradients, expected, strict=True):
        assert gradient.dtype == leaf.dtype
        assert gradient.stride() == leaf.stride()
        assert torch.equal(gradient, wanted)


def test_only_some_weights_are_cast():
    """A weight that has autocast's dtype already is read as it is, and so is its gradient."""
    stages, x = chain_and_x()
    stages[1] = stages[1]._replace(weight=stages[1].weight.detach().to(DTYPE).requires_grad_())
    y, gradients = gradients_of(under_autocast, x, stages)
    expected_y, expected = gradients_of(cast_outside, x, stages)
    assert torch.equal(y, expected_y)
    for leaf, gradient, wanted in zip(leaves_of(x, stages), gradients, expected, strict=True):
        assert gradient.dtype == leaf.dtype
        assert torch.equal(gradient, wanted)


def test_a_weight_in_another_order_of_memory():
    stages, x = chain_and_x()
    turned = stages[0].weight.detach().reshape(16, 8).t().contiguous().t().reshape(16, 8, 1, 1).requires_grad_()
    assert turned.stride() != stages[0].weight.stride()
    others = [stages[0]._replace(weight=turned), *stages[1:]]
    y, gradients = gradients_of(under_autocast, x, others)
    expected_y, expected = gradients_of(under_autocast, x, stages)
    for i, (result, wanted) in enumerate(zip((y, *gradients), (expected_y, *expected), strict=True)):
        if i == 2 or device().type == "cuda":  # another kernel may write it, or read it, in that order
            torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2 * wanted.abs().max().item())
        else:
            assert torch.equal(result, wanted)
    assert gradients[1].stride() == turned.stride()


def is_of_chain(event):
    """Whether the operators or gradients of a chain make it: a profiler on a GPU makes tensors itself."""
    while event is not None:
        if event.name.startswith("fusedsc::") or "ConvChainBackward" in event.name:
            return True
        event = event.cpu_parent
    return False


def test_no_cast_is_a_node_or_an_operator():
    stages, x = chain_and_x()
    x = x.detach().to(memory_format=torch.channels_last).requires_grad_()  # GPUs would change another layout
    gradient = torch.ones_like(x)
    under_autocast(x, stages).backward(gradient)
    owned = with_own_buffers(stages)
    with profile(activities=[ProfilerActivity.CPU]) as events:
        with torch.autocast(device().type, DTYPE):
            y = conv_chain(x, owned, training=True, residual=True)
        y.backward(gradient)
    counts = Counter(event.name for event in events.events() if is_of_chain(event))
    assert counts["fusedsc::_conv_chain_backward"] == counts["fusedsc::_conv_chain_forward"] == 1
    made = ("fusedsc::_cast", "aten::to", "aten::_to_copy", "aten::empty", "aten::empty_like", "aten::empty_strided")
    assert {name: counts[name] for name in made if counts[name]} == {}
    # Where no kernel casts all of them at once they are copies, each way.
    assert counts["aten::copy_"] == (0 if device().type == "cuda" else 8)
    behind = {function.name() for function, _ in y.grad_fn.next_functions if function is not None}
    assert behind == {"torch::autograd::AccumulateGrad"}


def test_parameters_gradients_share_an_allocation():
    stages, x = chain_and_x()
    parameters = leaves_of(x, stages)[1:]
    under_autocast(x, stages).square().sum().backward()
    assert len({parameter.grad.untyped_storage().data_ptr() for parameter in parameters}) == 1
    ranges = sorted(
        (parameter.grad.data_ptr(), parameter.grad.data_ptr() + parameter.grad.nbytes) for parameter in parameters
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
    assert all(begin % 64 == 0 for begin, _ in ranges)


def test_gradients_are_added_up_and_kept():
    stages, x = chain_and_x()
    parameters = leaves_of(x, stages)[1:]
    under_autocast(x, stages).square().sum().backward()
    once = [parameter.grad.clone() for parameter in parameters]
    kept = parameters[0].grad
    under_autocast(x, stages).square().sum().backward()
    for parameter, gradient in zip(parameters, once, strict=True):
        assert torch.equal(parameter.grad, 2 * gradient)
    assert parameters[0].grad is kept
    for parameter in parameters:
        parameter.grad = None
    under_autocast(x, stages).square().sum().backward()
    assert torch.equal(kept, 2 * once[0])  # nobody writes there any more
    parameters[1].grad.zero_()
    for parameter, gradient in zip(parameters[2:], once[2:], strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_hooks_see_gradients_in_their_dtypes():
    stages, x = chain_and_x()
    weight, seen = stages[0].weight, []
    weight.register_hook(lambda gradient: seen.append(gradient.dtype) or 2 * gradient)
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    under_autocast(x, stages).square().sum().backward()
    assert seen[0] == torch.float32
    assert torch.equal(seen[1], weight.grad)


def test_saved_tensors_may_be_elsewhere():
    stages, x = chain_and_x()
    _, expected = gradients_of(under_autocast, x, stages)
    packed, home = [], device()  # the thread that runs backward has a default device of its own
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.cpu(), lambda t: t.to(home)):
        _, gradients = gradients_of(under_autocast, x, stages)
    assert len(packed) >= 8
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, wanted)


def test_a_second_backward_and_a_changed_weight_are_errors():
    stages, x = chain_and_x()
    y = under_autocast(x, stages)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    y = under_autocast(x, stages)
    with torch.no_grad():
        stages[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_weight_of_another_dtype_is_an_error_without_autocast():
    stages, x = chain_and_x()
    with pytest.raises(ValueError, match=r"stages\[0\].weight: its dtype is Float, but x has BFloat16"):
        conv_chain(x, stages, training=True)
    short = [stage._replace(weight=stage.weight.to(DTYPE)) for stage in stages]
    with pytest.raises(ValueError, match=r"stages\[1\].bias: its dtype is Float, but x has BFloat16"):
        conv_chain(x, short, training=True)


def core_arguments(stages, x):
    arguments = chain_arguments(x, stages)
    parameters = [tensor for i, tensor in enumerate(arguments["bns"]) if i % 5 < 2]
    tensors = (x, arguments["weights"], arguments["biases"], arguments["has_bn"], parameters)
    options = [arguments[key] for key in ("activations", "strides", "paddings", "dilations", "groups")]
    return tensors, arguments["eps"], options


@pytest.mark.parametrize("recompute", [True, False])
def test_opcheck_of_the_functional_core(recompute):
    stages, x = chain_and_x()
    tensors, eps, options = core_arguments(stages, x)
    core = (*tensors, None, eps, *options, False, None, "identity", recompute)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*may not alias")  # results that share memory
        opcheck(ops._conv_chain_forward.default, core, test_utils=tests, rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        y, statistics, raw = ops._conv_chain_forward(*core)
    assert len(raw) == (0 if recompute else 4)
    if recompute:
        return
    mask = [True, *(part for stage in stages for part in (True, stage.bias is not None, True, True))]
    backward = (y, tensors[0].detach(), *([None if t is None else t.detach() for t in part] for part in tensors[1:3]),
                tensors[3], [t.detach() for t in tensors[4]], statistics, raw, True, *options, False, None, "identity",
                mask)  # fmt: skip
    opcheck(ops._conv_chain_backward.default, backward, test_utils=("test_schema", "test_faketensor"))
    gradients = ops._conv_chain_backward(*backward)
    assert len({gradient.untyped_storage().data_ptr() for gradient in gradients}) == len(gradients)
    with pytest.raises(ValueError, match="raw: it has 3 elements; give the 4 that forward returned"):
        ops._conv_chain_backward(*backward[:7], raw[:3], *backward[8:])


def test_compiled_as_it_is_in_eager_mode():
    torch.compiler.reset()
    stages, x = chain_and_x()
    weights = [nn.Parameter(stage.weight.detach().clone()) for stage in stages]
    where = device().type

    def step(x, *weights):
        replaced = [stage._replace(weight=weight, bn=None) for stage, weight in zip(stages, weights, strict=True)]
        with torch.autocast(where, DTYPE):
            return conv_chain(x, replaced, training=True)

    expected = step(x, *weights)
    wanted = torch.autograd.grad(expected.float().square().sum(), [x, *weights])
    y = torch.compile(step, fullgraph=True, backend="aot_eager")(x, *weights)
    assert torch.equal(y, expected)
    for gradient, other in zip(torch.autograd.grad(y.float().square().sum(), [x, *weights]), wanted, strict=True):
        assert gradient.dtype == other.dtype
        torch.testing.assert_close(gradient, other)


# ------------------------------------------------------------------------------------------------------- kept chains


def kept(stages, x):
    arguments = chain_arguments(x, stages)
    options = [arguments[key] for key in ("has_bn", "activations", "strides", "paddings", "dilations", "groups")]
    number = ops._keep_conv_chain(*options, True, "identity")
    assert number == ops._keep_conv_chain(*options, True, "identity")
    assert number != ops._keep_conv_chain(*options, False, "identity")
    convolutions = [tensor for stage in stages for tensor in (stage.weight, stage.bias)]
    return number, (convolutions, arguments["bns"]), (arguments["momenta"], arguments["eps"])


@pytest.mark.parametrize("training", [True, False])
def test_a_kept_chain_is_the_chain(training):
    stages, x = chain_and_x()
    ours, theirs = with_own_buffers(stages), with_own_buffers(stages)
    number, tensors, numbers = kept(ours, x)
    with torch.autocast(device().type, DTYPE):
        y = ops._conv_chain_kept(x, *tensors, number, training, *numbers)
        expected = conv_chain(x, theirs, training=training, residual=True)
    assert torch.equal(y, expected)
    for buffer, wanted in zip(buffers_of(ours), buffers_of(theirs), strict=True):
        assert torch.equal(buffer, wanted)


@pytest.mark.parametrize("training", [True, False])
def test_opcheck_of_a_kept_chain(training):
    stages = Build(8).pw(16, "relu6").dw(3, "silu", bias=True).pw(8).stages
    x = torch.randn(4, 8, 6, 6, device=device(), dtype=torch.float64, requires_grad=True)
    number, tensors, numbers = kept(stages, x)
    opcheck(ops._conv_chain_kept.default, (x, *tensors, number, training, *numbers))


def test_what_was_not_kept_is_an_error():
    stages, x = chain_and_x()
    number, (convolutions, bns), numbers = kept(stages, x)
    with pytest.raises(ValueError, match="chain: there is none with the number -1; give one that _keep_conv_chain"):
        ops._conv_chain_kept(x, convolutions, bns, -1, True, *numbers)
    with pytest.raises(ValueError, match="convolutions: it has 5 elements; give weight and bias of each of the 3"):
        ops._conv_chain_kept(x, convolutions[:-1], bns, number, True, *numbers)
    with pytest.raises(ValueError, match="convolutions: the weight of stage 0 is None"):
        ops._conv_chain_kept(x, [None, *convolutions[1:]], bns, number, True, *numbers)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 8, 1, bias=False),
            nn.BatchNorm2d(8),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x)


def test_a_swapped_block_calls_the_kept_chain_with_what_is_there_now():
    plain = Block().to(device())
    fused = fusedsc.swap(plain, verbose=False, replace_slower=True)
    x = torch.randn(4, 8, 6, 6, device=device())

    def same(count=1):
        with profile(activities=[ProfilerActivity.CPU]) as events:
            y = fused(x)
        counts = Counter(event.name for event in events.events())
        assert (counts["fusedsc::_conv_chain_kept"], counts["fusedsc::conv_chain"]) == (count, 1 - count)
        torch.testing.assert_close(y, plain(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dict(fused.named_buffers()), dict(plain.named_buffers()), rtol=1e-4, atol=1e-5)

    same()
    weight = nn.Parameter(torch.randn(16, 8, 1, 1, device=device()))
    for model in (plain, fused):
        model.conv[0].weight = weight
        model.conv[1].momentum = 0.7
        model.conv[4].eps = 0.1
    same()
    for model in (plain, fused):
        model.eval()
    same()
    for model in (plain, fused):
        model.train()
        model.conv[1].momentum = None  # the cumulative average: by the operator that takes all
    same(count=0)
