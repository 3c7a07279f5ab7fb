"""Numbers as users write them: NumPy's are taken, what is no number is refused with a sentence."""

import numpy as np
import pytest
import torch

from fusedsc import functional, nn


def tensors():
    return torch.randn(2, 4, 8, 8), torch.randn(4, 1, 3, 3), torch.randn(6, 2, 1, 1)


def norm(channels):
    return [torch.ones(channels), torch.zeros(channels), torch.zeros(channels), torch.ones(channels)]


NUMPY = {"one": np.int64(2), "int32": np.int32(2), "array": np.array([2, 2]), "pair": (np.int64(2), np.uint8(2))}


@pytest.mark.parametrize("two", NUMPY.values(), ids=NUMPY)
def test_numpy_integers(two):
    x, dw, pw = tensors()
    window, expected = {"stride": two, "padding": two, "dilation": two}, {"stride": 2, "padding": 2, "dilation": 2}
    groups = np.int64(2)
    assert torch.equal(functional.depthwise_conv2d(x, dw, **window), functional.depthwise_conv2d(x, dw, **expected))
    dense = torch.randn(6, 4, 3, 3)
    calls = {
        "dsc_block": (x, dw, *norm(4), pw),
        "conv_bn_act": (x, dense, *norm(6)),
        "inverted_residual": (x, None, None, dw, (*norm(4), None), torch.randn(6, 4, 1, 1), (*norm(6), None)),
    }
    for name, arguments in calls.items():
        block = getattr(functional, name)
        more = {"groups": groups} if name == "dsc_block" else {}
        few = {key: int(value) for key, value in more.items()}
        given = block(*arguments, training=False, eps=np.float32(0.5), momentum=np.float32(0.5), **window, **more)
        assert torch.equal(given, block(*arguments, training=False, eps=0.5, momentum=0.5, **expected, **few))
    assert torch.equal(functional.pointwise_conv2d(x, pw, None, groups), functional.pointwise_conv2d(x, pw, None, 2))
    sliding = functional.sliding_channel_conv2d(x, pw, None, groups, np.float32(0.5))
    assert torch.equal(sliding, functional.sliding_channel_conv2d(x, pw, None, 2, 0.5))


@pytest.mark.parametrize("two", NUMPY.values(), ids=NUMPY)
def test_numpy_integers_of_modules(two):
    modules = [
        nn.DepthwiseConv2d(np.int64(4), 4, np.int64(3), two, two, two),
        nn.PointwiseConv2d(4, 6, np.int64(2)),
        nn.SlidingChannelConv2d(4, 6, np.int64(2), np.float32(0.5)),
        nn.DSCBlock(4, 6, np.int64(3), two, two, two, groups=np.int64(2)),
        nn.DSCBlock(4, 6, np.int64(3), two),
        nn.ConvBnAct(4, 6, np.int64(3), two, two, two),
        nn.InvertedResidual(4, 4, np.int64(2), np.int64(2), kernel_size=np.int64(3)),
    ]
    for module in modules:
        y = module(torch.randn(2, 4, 8, 8))
        assert y.shape[1] in (4, 6)
        assert repr(module)
    assert modules[0].stride == modules[0].padding == modules[0].dilation == (2, 2)


@pytest.mark.parametrize("wrong", [True, np.bool_(True), 1.0, np.float64(1), "1", None, (1, 1.5), (True, 1)], ids=repr)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
def test_what_is_no_integer(name, wrong):
    x, dw, pw = tensors()
    if name == "padding" and isinstance(wrong, str):
        pytest.skip("a name")
    sentence = f"{name}: it is .*; give an integer"
    with pytest.raises(ValueError, match=sentence):
        functional.depthwise_conv2d(x, dw, **{name: wrong})
    with pytest.raises(ValueError, match=sentence):
        functional.dsc_block(x, dw, *norm(4), pw, training=True, **{name: wrong})
    with pytest.raises(ValueError, match=sentence):
        nn.DepthwiseConv2d(4, 4, 3, **{name: wrong})
    if wrong is not None:  # half the kernel
        with pytest.raises(ValueError, match=sentence):
            nn.DSCBlock(4, 4, 3, **{name: wrong})
        with pytest.raises(ValueError, match=sentence):
            nn.ConvBnAct(4, 4, 3, **{name: wrong})


@pytest.mark.parametrize("wrong", [True, np.bool_(True), 1.0, "1", None], ids=repr)
def test_groups_that_are_no_integer(wrong):
    x, dw, pw = tensors()
    for call in (
        lambda: functional.pointwise_conv2d(x, pw, None, wrong),
        lambda: functional.sliding_channel_conv2d(x, pw, None, wrong),
        lambda: functional.dsc_block(x, dw, *norm(4), pw, training=True, groups=wrong),
        lambda: nn.PointwiseConv2d(4, 4, wrong),
        lambda: nn.SlidingChannelConv2d(4, 4, wrong),
        lambda: nn.DSCBlock(4, 4, groups=wrong),
    ):
        with pytest.raises(ValueError, match=r"groups: it is .*; give an integer"):
            call()


@pytest.mark.parametrize("name", ["eps", "momentum"])
@pytest.mark.parametrize("wrong", [True, "0.1", np.bool_(False)], ids=repr)
def test_what_is_no_number(name, wrong):
    x, dw, _ = tensors()
    blocks = [
        lambda: functional.dsc_block(x, dw, *norm(4), torch.randn(6, 4, 1, 1), training=True, **{name: wrong}),
        lambda: functional.conv_bn_act(x, torch.randn(6, 4, 3, 3), *norm(6), training=True, **{name: wrong}),
        lambda: functional.inverted_residual(
            x, None, None, dw, (None,) * 5, torch.randn(6, 4, 1, 1), (None,) * 5, training=True, **{name: wrong}
        ),
    ]
    for block in blocks:
        with pytest.raises(ValueError, match=f"{name}: it is .*; give a number"):
            block()
