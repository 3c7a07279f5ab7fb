import pytest
import torch
from devices import device

import fusedsc
from fusedsc import functional
from fusedsc.explain import EXPLAINABLE


def call(name):
    x, dw, pw, vector = torch.randn(2, 8, 6, 6), torch.randn(8, 1, 3, 3), torch.randn(5, 8, 1, 1), torch.ones(8)
    return {
        "depthwise_conv2d": ((x, dw, vector), {"stride": 2, "padding": "same"}),
        "pointwise_conv2d": ((x, pw), {}),
        "sliding_channel_conv2d": ((x, torch.randn(5, 4, 1, 1)), {"groups": 2, "overlap": 0.25}),
        "ecr_conv2d": ((x, torch.randn(6, 4, 3, 3)), {"groups": 2, "activation": "relu"}),
        "pecr_conv2d": ((x, torch.randn(5, 8, 3, 3)), {"padding": "same", "pool_size": (2, 3)}),
        "conv_bn_act": (
            (x, torch.randn(8, 8, 3, 3), *[vector] * 4),
            {"training": True, "stride": 2, "padding": "same"},
        ),
        "conv_chain": (
            (x, [functional.ConvStage(dw, groups=8, padding=1), functional.ConvStage(pw)]),
            {"training": True},
        ),
        "inverted_residual": (
            (x, None, None, dw, [vector] * 4 + [None], pw, [vector[:5]] * 4 + [None]),
            {"training": True},
        ),
        "dsc_block": ((x, dw, vector, vector, vector, vector, pw), {"training": True, "recompute": True}),
    }[name]


OF_EVERY_DEVICE = [name for name in EXPLAINABLE if device().type == "cpu" or name not in functional.INFERENCE_OPERATORS]


@pytest.mark.parametrize("name", OF_EVERY_DEVICE)
def test_names_the_implementation_that_runs(name):
    args, kwargs = call(name)
    explanation = fusedsc.explain(name, *args, **kwargs)
    for direction in ("forward",) if name in functional.INFERENCE_OPERATORS else ("forward", "backward"):
        taken = [c for c in explanation.candidates if c.direction == direction and c.taken]
        assert [c.implementation for c in taken] == [explanation.taken(direction)]
        assert f"{taken[0].implementation}: taken" in str(explanation)
        assert not taken[0].why_not


@pytest.mark.parametrize("name", ["dsc_block", "conv_bn_act", "conv_chain"])
def test_blocks_say_why_and_with_what_config(name):
    args, kwargs = call(name)
    explanation = fusedsc.explain(name, *args, **kwargs)
    taken = [c for c in explanation.candidates if c.taken]
    assert [(c.direction, c.why) for c in taken] == [("forward", "prior"), ("backward", "prior")]
    assert str(explanation).count("taken (prior)") == 2
    for one in taken:
        fused = "rows=" if one.implementation == "cpu_fused" else ""
        assert one.config.startswith(fused)
        with fusedsc.force(f"{name}.{one.direction}", one.implementation):
            (forced,) = [c for c in fusedsc.explain(name, *args, **kwargs).candidates
                         if c.taken and c.direction == one.direction]  # fmt: skip
            assert (forced.implementation, forced.config, forced.why) == (one.implementation, one.config, "forced")
    if name == "dsc_block" and device().type == "cpu":
        assert {c.implementation for c in taken} == {"cpu_fused"}


def gate():
    names = ("se_reduce_weight", "se_reduce_bias", "se_expand_weight", "se_expand_bias")
    return dict(zip(names, (torch.randn(3, 8, 1, 1), torch.ones(3), torch.randn(8, 3, 1, 1), None), strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_squeeze_excite(training):
    args, kwargs = call("inverted_residual")
    explanation = fusedsc.explain("inverted_residual", *args, **{**kwargs, "training": training}, **gate())
    assert explanation.taken("forward") == explanation.taken("backward") == "composed"
    assert len(explanation.candidates) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"se_gate": "tanh"}, "se_gate: unknown name"),
        ({"se_reduce_weight": None}, "se_reduce_weight: it is None, but others"),
        ({"se_expand_weight": None}, "se_expand_weight: it is None"),
    ],
)
def test_wrong_squeeze_excite(wrong, message):
    args, kwargs = call("inverted_residual")
    with pytest.raises(ValueError, match=message):
        fusedsc.explain("inverted_residual", *args, **kwargs, **{**gate(), **wrong})


def test_unknown_operator():
    with pytest.raises(ValueError, match='op_name: unknown name "conv3d"; use one of depthwise_conv2d'):
        fusedsc.explain("conv3d", torch.ones(1))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="x: its sizes are"):
        fusedsc.explain("pointwise_conv2d", torch.ones(2, 2), torch.ones(2, 2, 1, 1))
