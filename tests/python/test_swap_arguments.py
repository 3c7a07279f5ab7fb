"""What swap and its relatives say of arguments that do not fit: which one, and what to give instead."""

import pytest
import torch
from torch import nn

import fusedsc

pytestmark = pytest.mark.cpu_only("of arguments")


def network():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)
    )


@pytest.mark.parametrize("function", [fusedsc.swap, fusedsc.unswap, fusedsc.swap_report, fusedsc.to_scc])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "model: it is of type NoneType; give a torch.nn.Module"),
        ("mobilenet_v2", "model: it is of type str; give a torch.nn.Module"),
        ({"0.weight": torch.ones(1)}, "model: it is of type dict; give a torch.nn.Module"),
        (nn.Conv2d, r"model: it is the class Conv2d; give a module made of it: Conv2d\(...\)"),
    ],
)
def test_what_is_no_model(function, model, message):
    with pytest.raises(ValueError, match=message):
        function(model)


@pytest.mark.parametrize("function", [fusedsc.swap, fusedsc.unswap])
def test_inplace_is_a_switch(function):
    """An image's size in its place would change the model itself."""
    model = network()
    with pytest.raises(ValueError, match=r"inplace: it is \(3, 8, 8\), of type tuple; give True or False"):
        function(model, (3, 8, 8))
    assert type(model) is nn.Sequential


@pytest.mark.parametrize("size", [224, (224, 224), (1, 3, 8, 8), (3, 0, 8), (3, 8.5, 8), ("3", 8, 8), "3x8x8"], ids=str)
def test_input_size(size):
    with pytest.raises(ValueError, match=r"input_size: .*give (\(channels, height, width\)|an integer)"):
        fusedsc.swap(network(), input_size=size)


@pytest.mark.parametrize("size", [[3, 8, 8], torch.Size((3, 8, 8))])
def test_input_sizes_that_fit(size):
    report = fusedsc.swap_report(fusedsc.swap(network(), input_size=size, verbose=False))
    assert set(report.shares) == {"depthwise", "pointwise"}


def test_a_size_that_the_model_does_not_take():
    with pytest.warns(UserWarning, match="input_size: the model does not run on one image of 3x1x1 alone"):
        fused = fusedsc.swap(network(), input_size=(3, 1, 1), verbose=False)
    assert fusedsc.swap_report(fused).replaced


def test_what_was_fused_before_is_in_the_report():
    fused = fusedsc.swap(network(), verbose=False, replace_slower=True)
    first, second = (fusedsc.swap_report(model) for model in (fused, fusedsc.swap(fused, verbose=False)))
    assert second.replaced == first.replaced
    assert second.operators == first.operators
    assert second.shares == {}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "inputs: FusedSequential does not run on them .*missing 1 required positional argument"),
        ((None,), "inputs: FusedSequential does not run on them"),
        ((torch.randn(1, 4, 8, 8),), "inputs: FusedSequential does not run on them .*to have 3 channels, but got 4"),
        ((torch.ones(1, 3, 8, 8, dtype=torch.float64),), "inputs: FusedSequential does not run on them .*Input type"),
    ],
)
def test_inputs_of_check_gradients(inputs, message):
    model = fusedsc.swap(network(), verbose=False)
    with pytest.raises(ValueError, match=message):
        fusedsc.check_gradients(model, *inputs)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (None, {}, "module_or_op: it is of type NoneType; give a module, a function or a name"),
        ("conv", {}, 'module_or_op: unknown name "conv"; use one of conv_bn_act'),
        (lambda x: 3, {}, "module_or_op: .* gives no tensor of floating point"),
        (network(), {"seed": "x"}, "seed: it is 'x', of type str; give an integer"),
        (network(), {"directions": 0}, "directions: it is 0; it must be at least 1, or None"),
        (network(), {"reference": 3}, "reference: it is of type int; give a module, a callable or None"),
    ],
)
def test_other_arguments_of_check_gradients(what, options, message):
    with pytest.raises(ValueError, match=message):
        fusedsc.check_gradients(what, torch.randn(2, 3, 8, 8), **options)
