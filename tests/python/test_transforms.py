"""torch.func's transforms, forward-mode derivatives and second derivatives: what works is right, and what does not says
so in a sentence of fusedsc's, with the remedy."""

import functools

import pytest
import torch
from devices import device
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile

from fusedsc import functional


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64)


def norm(channels):
    return rand(channels), rand(channels), rand(channels), rand(channels).square() + 0.5


def blocks(training):
    dw, pw, dense = rand(4, 1, 3, 3), rand(4, 4, 1, 1), rand(6, 4, 3, 3)
    named, narrow, wide = {"training": training}, norm(4), norm(6)
    residual = functools.partial(
        functional.inverted_residual, expand_weight=None, expand_bn=None, dw_weight=dw, dw_bn=(*norm(4), None),
        project_weight=pw, project_bn=(*norm(4), None), **named,
    )  # fmt: skip
    stages = [
        functional.ConvStage(dw, bn=(*norm(4), None), activation="silu", groups=4),
        functional.ConvStage(pw, bn=(*norm(4), None)),
    ]
    gate = {"se_reduce_weight": rand(2, 4, 1, 1), "se_expand_weight": rand(4, 2, 1, 1)}
    return {
        "dsc_block": lambda x: functional.dsc_block(x, dw, *narrow, pw, **named),
        "conv_bn_act": lambda x: functional.conv_bn_act(x, dense, *wide, **named),
        "conv_chain": lambda x: functional.conv_chain(x, stages, **named),
        "inverted_residual": residual,
        "inverted_residual, gated": functools.partial(residual, **gate),
    }


def convolutions():
    dw, pw, windows = rand(4, 1, 3, 3), rand(6, 2, 1, 1), rand(5, 2, 1, 1)
    return {
        "depthwise_conv2d": lambda x: functional.depthwise_conv2d(x, dw, stride=2, padding="same"),
        "pointwise_conv2d": lambda x: functional.pointwise_conv2d(x, pw, groups=2),
        "sliding_channel_conv2d": lambda x: functional.sliding_channel_conv2d(x, windows),
    }


EVERYTHING = {
    **{name: (convolutions, name) for name in convolutions()},
    **{f"{name}, training": (functools.partial(blocks, True), name) for name in blocks(True)},
    **{f"{name}, eval": (functools.partial(blocks, False), name) for name in blocks(True)},
}
BLOCKS = [name for name in EVERYTHING if "conv2d" not in name]


def operator(case):
    torch.manual_seed(0)
    make, name = EVERYTHING[case]
    return make()[name]


def image():
    return rand(2, 4, 6, 6)


def dual(function, x):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, x))


def forward_over_reverse(function, x):
    with forward_ad.dual_level():
        y = function(x.requires_grad_())
        return torch.autograd.grad(y, x, forward_ad.make_dual(y.detach(), y.detach()))


def under_autocast(function, x):
    with torch.autocast(device().type, torch.bfloat16):
        return torch.func.grad(lambda x: function(x).sum().float())(x.float())


def scalar(function):
    return lambda x: function(x).square().sum()


REFUSED = {
    "grad": lambda f, x: torch.func.grad(scalar(f))(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(scalar(f))(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "linearize": lambda f, x: torch.func.linearize(f, x),
    "per-sample gradients": lambda f, x: torch.func.vmap(torch.func.grad(scalar(f)))(torch.stack([x, x])),
    "dual numbers": dual,
    "dual numbers without gradients": torch.no_grad()(dual),
    "forward over reverse": forward_over_reverse,
    "autocast": under_autocast,
}
REMEDY = "; take PyTorch's own layers there: .* fusedsc.unswap"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.func.jvp's own making
@pytest.mark.parametrize("transform", REFUSED)
@pytest.mark.parametrize("case", EVERYTHING)
def test_refused(case, transform):
    name = case.split(",")[0]
    if name == "inverted_residual" and transform == "forward over reverse" and "gated" not in case:
        name = "conv_chain"  # what it is made of
    with pytest.raises(NotImplementedError, match=f"fusedsc: {name}('s gradient)? has no .*{REMEDY}") as error:
        REFUSED[transform](operator(case), image())
    assert "report" not in str(error.value)


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_are_not_mapped(case):
    name = case.split(",")[0]
    for grad_mode in (torch.enable_grad, torch.no_grad):
        with pytest.raises(NotImplementedError, match=f"fusedsc: {name} has no rule .*vmap.*{REMEDY}"), grad_mode():
            torch.func.vmap(operator(case))(torch.stack([image(), image()]))


CALLS = {
    "a stride": lambda x, w: functional.depthwise_conv2d(x, w[0], stride=2),
    "a stride, same": lambda x, w: functional.depthwise_conv2d(x, w[0], stride=2, padding="same"),
    "four sides": lambda x, w: functional.depthwise_conv2d(x, w[0], padding=(1, 0, 2, 1)),
    "a channel multiplier": lambda x, w: functional.depthwise_conv2d(x, w[0].repeat(2, 1, 1, 1), dilation=2),
    "pointwise": lambda x, w: functional.pointwise_conv2d(x, w[1], groups=2),
    "sliding": lambda x, w: functional.sliding_channel_conv2d(x, w[1]),
    "ecr": lambda x, w: functional.ecr_conv2d(x, w[2], stride=2, padding="same"),
    "pecr": lambda x, w: functional.pecr_conv2d(x, w[2], stride=1, padding="same"),
}


@pytest.mark.parametrize("case", CALLS)
def test_images_are_mapped_in_one_call(case):
    weights = rand(4, 1, 3, 3), rand(6, 2, 1, 1), rand(6, 4, 3, 3)
    x = rand(5, 2, 4, 7, 6)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        y = torch.func.vmap(lambda x: CALLS[case](x, weights))(x)
    # That of the five, which the rule is asked for, and that of all their images.
    calls = [event.count for event in profiled.key_averages() if event.key.startswith("fusedsc::")]
    assert calls == [2]
    torch.testing.assert_close(y, torch.stack([CALLS[case](one, weights) for one in x]))


@pytest.mark.parametrize("sizes", [(0, 2), (3, 0)])
@pytest.mark.parametrize("case", CALLS)
def test_mapped_over_nothing(case, sizes):
    weights = rand(4, 1, 3, 3), rand(6, 2, 1, 1), rand(6, 4, 3, 3)
    x = rand(sizes[1], 4, 7, 6)
    alone = CALLS[case](x, weights)
    y = torch.func.vmap(lambda x: CALLS[case](x, weights))(rand(*sizes, 4, 7, 6))
    assert y.shape == (sizes[0], *alone.shape)
    several = [
        torch.stack([weight] * sizes[0]) if sizes[0] else weight.new_zeros(0, *weight.shape) for weight in weights
    ]
    y = torch.func.vmap(lambda *weights: CALLS[case](x, weights))(*several)
    assert y.shape == (sizes[0], *alone.shape)


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("case", convolutions())
def test_convolutions_are_mapped(case, dim, capfd):
    function, images = operator(case), [image() for _ in range(3)]
    x = torch.stack(images, dim).requires_grad_()
    y = torch.func.vmap(function, in_dims=dim)(x)
    torch.testing.assert_close(y, torch.stack([function(one) for one in images]))
    (gradient,) = torch.autograd.grad(y, x, y.detach())
    alone = [image.clone().requires_grad_() for image in images]
    for one in alone:
        torch.autograd.backward(function(one), function(one).detach())
    torch.testing.assert_close(gradient, torch.stack([one.grad for one in alone], dim))
    said = "".join(capfd.readouterr())
    assert "file us an issue" not in said


@pytest.mark.parametrize("name", convolutions())
def test_convolutions_are_mapped_over_weights(name):
    shape = {"depthwise_conv2d": (3, 4, 1, 3, 3), "pointwise_conv2d": (3, 5, 4, 1, 1)}.get(name, (3, 5, 2, 1, 1))
    x, weights, bias = image(), rand(*shape), rand(shape[1])
    function = getattr(functional, name)
    mapped = torch.func.vmap(lambda weight: function(x, weight, bias))(weights)
    torch.testing.assert_close(mapped, torch.stack([function(x, weight, bias) for weight in weights]))
    both = torch.func.vmap(function)(torch.stack([x, 2 * x, 3 * x]), weights)
    torch.testing.assert_close(both, torch.stack([function((i + 1) * x, w) for i, w in enumerate(weights)]))


@pytest.mark.parametrize("case", EVERYTHING)
def test_many_gradients_at_once(case):
    function, x = operator(case), image().requires_grad_()
    y = function(x)
    grad_y = rand(3, *y.shape)
    if "inverted_residual" in case or "conv_chain" in case:  # their operators take lists of tensors
        name = "inverted_residual" if "gated" in case else "conv_chain"
        with pytest.raises(
            NotImplementedError, match=f"fusedsc: {name} has no rule for many gradients at once.*{REMEDY}"
        ):
            torch.autograd.grad(y, x, grad_y, is_grads_batched=True)
        return
    (together,) = torch.autograd.grad(y, x, grad_y, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in grad_y]
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.mark.parametrize("case", BLOCKS)
def test_second_derivatives_of_blocks(case):
    name, x = case.split(",")[0], image().requires_grad_()
    if name == "inverted_residual" and "gated" not in case:
        name = "conv_chain"  # what it is made of
    (gradient,) = torch.autograd.grad(scalar(operator(case))(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"fusedsc: double backward of {name} is not implemented; compose"):
        gradient.sum().backward()


@pytest.mark.parametrize("case", convolutions())
def test_second_derivatives_of_convolutions(case):
    assert torch.autograd.gradgradcheck(operator(case), image().requires_grad_())


def test_every_public_operator_is_here():
    assert {case.split(",")[0] for case in EVERYTHING} == set(functional.OPERATORS)


def test_a_transform_before_leaves_nothing_behind():
    torch.func.grad(lambda x: x.square().sum())(rand(3))
    case = "dsc_block, training"
    x = image().requires_grad_()
    operator(case)(x).sum().backward()
    assert x.grad is not None
