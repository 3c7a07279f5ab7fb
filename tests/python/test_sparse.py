"""ecr_conv2d and pecr_conv2d against the dense convolution in double precision."""

import pytest
import reference
import torch
import torch.nn.functional as F
from cases import ACTIVATIONS, DTYPES, LAYOUTS, cases, in_layout, pairs
from devices import device, examples, rand, randn
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedsc
from fusedsc import functional, plain

ops = torch.ops.fusedsc
ZEROS = (0.0, 0.3, 0.7, 0.9, 0.99, 1.0)


def with_zeros(x, share, generator):
    """Of the elements of x so many become zeros, of either sign."""
    is_zero, negative = rand(x.shape, generator) < share, rand(x.shape, generator) < 0.5
    return torch.where(is_zero, torch.where(negative, -0.0, 0.0).to(x.dtype), x)


def tensors(dtype=torch.float32, zeros=0.8, layout="contiguous", shape=(2, 20, 9, 8), outputs=70, kernel=3, groups=1):
    generator = torch.Generator("cpu").manual_seed(5)
    x = in_layout(with_zeros(randn(shape, generator, dtype), zeros, generator), layout)
    return x, randn((outputs, shape[1] // groups, kernel, kernel), generator, dtype), randn(outputs, generator, dtype)


def pooled(y, size, stride):
    return F.max_pool2d(y, size, stride)


def assert_like_dense(y, inputs, sides, window, groups, finish):
    """`finish`, which must not stretch distances, of the convolution in double precision."""
    wide = reference.double(inputs)
    expected = reference.conv2d(*wide, sides, groups=groups, **window)
    magnitude = reference.conv2d(*(None if t is None else t.abs() for t in wide), sides, groups=groups, **window)
    magnitude = 2 * magnitude + 1  # an activation's slope is at most 1.13, and its own arithmetic rounds, too
    if finish is not None:
        expected = finish(expected)
        if magnitude.shape != expected.shape:
            magnitude = magnitude.amax((2, 3), keepdim=True).expand_as(expected)
    reference.assert_summed_like(y, expected, magnitude, inputs[1][0].numel(), "y")


@examples(200)
@given(
    case=cases(),
    zeros=st.sampled_from(ZEROS),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 70),
    bias=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    packs=st.booleans(),
)
def test_ecr_is_conv2d(case, zeros, groups, per_group, bias, activation, packs):
    generator = case.generator()
    n, c, h, w = case.shape
    x = with_zeros(randn((n, c * groups, h, w), generator, case.dtype), zeros, generator)
    x = in_layout(x, case.layout)
    weight = randn((per_group * groups, c, *case.window.kernel), generator, case.dtype)
    bias = randn((per_group * groups,), generator, case.dtype) if bias else None
    packed = fusedsc.sparse.pack_weight(weight, groups) if packs else None
    window = case.window
    y = functional.ecr_conv2d(
        x, weight, bias, **window.as_arguments(), groups=groups, activation=activation, packed=packed
    )
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=reference.memory_format(x))
    geometry = {"stride": window.stride, "dilation": window.dilation}
    finish = reference.ACTIVATIONS[activation]
    assert_like_dense(y, (x, weight, bias), window.sides(h, w), geometry, groups, finish)


@examples(150)
@given(
    case=cases(),
    zeros=st.sampled_from(ZEROS),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 70),
    bias=st.booleans(),
    pool_size=pairs(1, 3),
    pool_stride=pairs(1, 3),
    packs=st.booleans(),
)
def test_pecr_is_conv2d_relu_max_pool2d(case, zeros, groups, per_group, bias, pool_size, pool_stride, packs):
    generator = case.generator()
    n, c, h, w = case.shape
    rows, columns = case.window.output(h, w)
    assume(rows >= pool_size[0] and columns >= pool_size[1])
    x = with_zeros(randn((n, c * groups, h, w), generator, case.dtype), zeros, generator)
    x = in_layout(x, case.layout)
    weight = randn((per_group * groups, c, *case.window.kernel), generator, case.dtype)
    bias = randn((per_group * groups,), generator, case.dtype) if bias else None
    packed = fusedsc.sparse.pack_weight(weight, groups) if packs else None
    window = case.window
    y = functional.pecr_conv2d(
        x, weight, bias, **window.as_arguments(), pool_size=pool_size, pool_stride=pool_stride, groups=groups,
        packed=packed,
    )  # fmt: skip
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=reference.memory_format(x))
    geometry = {"stride": window.stride, "dilation": window.dilation}
    assert_like_dense(
        y, (x, weight, bias), window.sides(h, w), geometry, groups, lambda z: pooled(F.relu(z), pool_size, pool_stride)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_maps_of_nothing_but_zeros(dtype, layout):
    x, weight, bias = tensors(dtype, zeros=1.0, layout=layout)
    y = functional.ecr_conv2d(x, weight, bias, padding=1)
    assert torch.equal(y, bias[:, None, None].expand_as(y))
    z = functional.pecr_conv2d(x, weight, padding=1)
    assert torch.equal(z, torch.zeros_like(z))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_reaches_what_it_reaches_in_a_dense_convolution(value, groups, layout, dtype):
    x, weight, bias = tensors(dtype, zeros=0.9, outputs=130, groups=groups, layout=layout)
    x[0, 3, 4, 4] = value
    x[1, 19, 0, 7] = value
    y = functional.ecr_conv2d(x, weight, bias, padding=1, groups=groups)
    wide = [t.double().cpu() for t in (x, weight, bias)]  # where a library may not take another way
    expected = F.conv2d(*wide, padding=1, groups=groups).to(x.device)
    step = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(y.double(), expected, rtol=step, atol=step, equal_nan=True)
    y = functional.pecr_conv2d(x, weight, bias, padding=1, groups=groups)
    expected = F.max_pool2d(F.relu(expected), 2, 2)
    torch.testing.assert_close(y.double(), expected, rtol=step, atol=step, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_zeros_are_zeros(dtype):
    """They are skipped: what they would be multiplied with counts for nothing."""
    x, weight, bias = tensors(dtype, zeros=1.0)
    weight[3] = float("inf")
    for function in (functional.ecr_conv2d, functional.pecr_conv2d):
        expected = function(torch.zeros_like(x), weight, bias)
        assert expected.isfinite().all()
        assert torch.equal(function(torch.full_like(x, -0.0), weight, bias), expected)


def test_a_weight_that_is_not_finite_makes_no_nan_of_a_zero():
    """The one difference from a dense convolution that the page has."""
    x, weight, _ = tensors(zeros=1.0)
    weight[5, 2, 1, 1] = float("inf")
    assert not functional.ecr_conv2d(x, weight, padding=1).isnan().any()
    assert F.conv2d(x, weight, padding=1).isnan().any()


@pytest.mark.parametrize("function", [functional.ecr_conv2d, functional.pecr_conv2d])
def test_empty_batch(function):
    x, weight, bias = tensors()
    y = function(x[:0], weight, bias)
    assert y.shape == function(x, weight, bias)[:0].shape


@pytest.mark.parametrize("function", [functional.ecr_conv2d, functional.pecr_conv2d])
def test_views_broadcasts_and_odd_weights(function):
    x, weight, bias = tensors()
    wide = x[:1, :, :1].expand(2, 20, 9, 8)
    assert torch.equal(function(wide, weight, bias), function(wide.contiguous(), weight, bias))
    odd = torch.empty(tuple(weight.shape[::-1])).permute(3, 2, 1, 0).copy_(weight)
    assert torch.equal(function(x, odd, bias), function(x, weight, bias))
    every_second = torch.stack([bias, bias], 1)[:, 0]
    assert torch.equal(function(x, weight, every_second), function(x, weight, bias))


@pytest.mark.parametrize("function", [functional.ecr_conv2d, functional.pecr_conv2d])
def test_of_a_packed_weight_only_the_sizes_are_read(function):
    """Else a channels_last one would be copied in each call."""
    x, weight, bias = tensors()
    packed = fusedsc.sparse.pack_weight(weight.to(memory_format=torch.channels_last))
    anything = torch.full_like(weight, float("nan")).to(memory_format=torch.channels_last)
    # On a GPU another config may be the fastest for a weight that is packed.
    terms = 4 * torch.finfo(x.dtype).eps * weight[0].numel() ** 0.5 if device().type == "cuda" else 0
    expected = function(x, weight, bias)
    actual = function(x, anything, bias, packed=packed)
    torch.testing.assert_close(actual, expected, rtol=0, atol=terms * expected.abs().max().item())


@pytest.mark.cpu_only("threads are the CPU's")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_whatever_the_threads(threads):
    x, weight, bias = tensors(shape=(3, 40, 14, 14))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = functional.ecr_conv2d(x, weight, bias, padding=1)
        torch.set_num_threads(threads)
        assert torch.equal(functional.ecr_conv2d(x, weight, bias, padding=1), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("wrong", ["x", "weight", "bias"])
@pytest.mark.parametrize(
    ("function", "dense"),
    [
        (functional.ecr_conv2d, r"torch\.nn\.functional\.conv2d$"),
        (functional.pecr_conv2d, r"torch\.nn\.functional\.conv2d, relu and max_pool2d$"),
    ],
)
def test_a_gradient_is_refused(function, dense, wrong):
    given = dict(zip(("x", "weight", "bias"), tensors(), strict=True))
    given[wrong].requires_grad_()
    sentence = rf"{wrong}: it requires a gradient, but \w+ is for inference.*torch\.no_grad\(\), or take {dense}"
    with pytest.raises(ValueError, match=sentence):
        function(**given)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not function(**given).requires_grad


def test_forward_mode_and_transforms_are_refused():
    x, weight, _ = tensors()
    for transform in (
        lambda f: torch.func.jvp(f, (x,), (x,)),
        lambda f: torch.func.grad(lambda x: f(x).sum())(x),
    ):
        with pytest.raises(NotImplementedError, match=r"fusedsc: ecr_conv2d has no .*PyTorch's own layers"):
            transform(lambda x: functional.ecr_conv2d(x, weight))


@pytest.mark.parametrize("name", functional.INFERENCE_OPERATORS)
def test_is_mapped(name):
    x, weight, bias = tensors()
    function = getattr(functional, name)
    images = torch.stack([x, 2 * x, -x], 1)
    mapped = torch.func.vmap(lambda x: function(x, weight, bias, padding=1), in_dims=1)(images)
    torch.testing.assert_close(mapped, torch.stack([function(t, weight, bias, padding=1) for t in images.unbind(1)]))


WRONG = [
    ({"x": lambda t: t[0]}, r"x: its sizes are \[20, 9, 8\]; give four"),
    ({"x": torch.Tensor.int}, r"x: its dtype is Int; use float32"),
    ({"weight": torch.Tensor.double}, "weight: its dtype is Double, but x has Float; convert"),
    ({"weight": lambda t: t[:, 1:]}, r"weight: its sizes are \[70, 19, 3, 3\], but must be \[70, 20, 3, 3\]"),
    ({"bias": lambda t: t[1:]}, r"bias: its sizes are \[69\]; give one number per channel, \[70\]"),
    ({"groups": 3}, "groups: it is 3, which must divide the 20 channels of x"),
    ({"groups": 4}, "groups: it is 4, which must divide the 70 output channels of weight"),
    ({"groups": 0}, "groups: it is 0; it must be at least 1"),
    ({"groups": 1.5}, "groups: it is 1.5, of type float; give an integer"),
    ({"stride": 0}, "stride: .* is 0; it must be at least 1"),
    ({"padding": -1}, "padding: .*must not be negative"),
    ({"dilation": 8}, "kernel: .*larger than the padded input of 9"),
    ({"packed": torch.zeros(7)}, r"packed: its sizes are \[7\] of Float; give what fusedsc\.sparse\.pack_weight"),
    ({"packed": torch.zeros(128 * 20 * 9).double()}, r"packed: its sizes are \[23040\] of Double"),
]
OF_ECR = [({"activation": "tanh"}, 'activation: unknown name "tanh"')]
OF_PECR = [
    ({"pool_size": 0}, "pool_size: it is 0; it must be at least 1"),
    ({"pool_size": (8, 2)}, "pool_size: it is 8, larger than the convolution's result of 7"),
    ({"pool_size": (1, 2, 3)}, "pool_size: 3 numbers given"),
    ({"pool_stride": (1, -1)}, "pool_stride: it is -1; it must be at least 1"),
    ({"pool_stride": True}, "pool_stride: it is True.*give an integer"),
]


@pytest.mark.parametrize("is_fake", [False, True])
@pytest.mark.parametrize(
    ("function", "change", "message"),
    [(functional.ecr_conv2d, *wrong) for wrong in (*WRONG, *OF_ECR)]
    + [(functional.pecr_conv2d, *wrong) for wrong in (*WRONG, *OF_PECR)],
)
def test_wrong_arguments(function, change, message, is_fake):
    arguments = dict(zip(("x", "weight", "bias"), tensors(), strict=True))
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = {n: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for n, t in arguments.items()}
        if is_fake:
            with pytest.raises(ValueError, match=message):
                function(**fakes)
    if not is_fake:
        with pytest.raises(ValueError, match=message):
            function(**arguments)


@pytest.mark.parametrize("numbers", [[1, 2, 3], []])
def test_wrong_counts_of_numbers_given_to_the_operator(numbers):
    x, weight, _ = tensors()
    with pytest.raises(ValueError, match=f"pool_size: {len(numbers)} numbers given; give one, or two"):
        ops.pecr_conv2d(x, weight, None, [1], [0], numbers)


def test_autocast():
    x, weight, bias = tensors()
    packed = fusedsc.sparse.pack_weight(weight.bfloat16())
    with torch.autocast(device().type, torch.bfloat16):
        for function in (functional.ecr_conv2d, functional.pecr_conv2d):
            y = function(x, weight, bias)
            assert y.dtype == torch.bfloat16
            assert torch.equal(y, function(x.bfloat16(), weight.bfloat16(), bias.bfloat16()))
            assert torch.equal(y, function(x, weight, bias, packed=packed))


def test_compiles_with_dynamic_shapes():
    torch.compiler.reset()
    _, weight, bias = tensors()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def both(x):
        y = functional.ecr_conv2d(x, weight, bias, stride=2, padding=1, activation="silu")
        return y, functional.pecr_conv2d(x, weight, bias, padding="same", pool_size=3, pool_stride=2)

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend=backend)
    for n, h, w in ((2, 8, 12), (3, 12, 16), (5, 16, 20)):
        x = F.relu(torch.randn(n, 20, h, w))
        for actual, expected in zip(compiled(x), both(x), strict=True):
            assert torch.equal(actual, expected)
            assert actual.stride() == expected.stride()
    assert len(graphs) <= 2


@pytest.mark.parametrize("padding", [1, (2, 1), (1, 0, 2, 1), "same"])
def test_what_is_recorded_for_others_is_pytorchs(padding):
    x, weight, bias = tensors()

    def both(x):
        y = functional.ecr_conv2d(x, weight, bias, padding=padding, activation="relu6")
        return y, functional.pecr_conv2d(x, weight, bias, padding=padding, pool_size=(2, 3), pool_stride=(1, 2))

    traced = torch.jit.trace(both, x)
    assert "fusedsc::" not in str(traced.inlined_graph)
    for actual, expected in zip(traced(x), both(x), strict=True):
        torch.testing.assert_close(actual, expected)


def test_exports():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            _, weight, bias = tensors()
            self.register_buffer("weight", weight)
            self.register_buffer("bias", bias)
            self.register_buffer("packed", fusedsc.sparse.pack_weight(weight))

        def forward(self, x):
            return functional.pecr_conv2d(x, self.weight, self.bias, padding=1, packed=self.packed)

    x, model = tensors()[0], Layers()
    exported = torch.export.export(model, (x,))
    assert "pecr_conv2d" in str(exported.graph)
    assert torch.equal(exported.module()(x), model(x))


@pytest.mark.gpu_only
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packs", [False, True])
def test_captured_graphs_see_new_maps(layout, packs):
    """A call neither allocates in between nor waits for the host, and its workspace is the graph's."""
    x, weight, bias = tensors(layout=layout, shape=(1, 64, 14, 14), outputs=96)
    packed = fusedsc.sparse.pack_weight(weight) if packs else None

    def both():
        y = functional.ecr_conv2d(x, weight, bias, padding=1, activation="relu", packed=packed)
        return y, functional.pecr_conv2d(x, weight, bias, padding=1, packed=packed)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        both()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for zeros in ZEROS:
        x.copy_(with_zeros(torch.randn_like(x), zeros, torch.Generator("cpu").manual_seed(6)))
        graph.replay()
        for actual, expected in zip(captured, both(), strict=True):
            assert torch.equal(actual, expected)


SPLIT = "channels=32 columns=4 rows=2 warps=8 splits=4"


@pytest.mark.gpu_only
def test_blocks_share_channels_out():
    """As by one block, but for the order of sums; the same bits each time."""
    x, weight, bias = tensors(shape=(2, 160, 9, 8))
    for function in (functional.ecr_conv2d, functional.pecr_conv2d):
        expected = function(x, weight, bias, padding=1)
        with fusedsc.force("sparse_conv2d.forward", f"gpu_lists/{SPLIT}"):
            assert SPLIT in str(fusedsc.explain(function.__name__, x, weight, bias, padding=1))
            y = function(x, weight, bias, padding=1)
            assert torch.equal(y, function(x, weight, bias, padding=1))
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_explains():
    x, weight, _ = tensors()
    for name in functional.INFERENCE_OPERATORS:
        explanation = fusedsc.explain(name, x, weight, padding=1)
        assert explanation.taken("forward") == {"cpu": "cpu", "cuda": "gpu_lists"}[device().type]
        assert explanation.taken("backward") is None


def test_plain_has_the_same_signatures():
    for name in functional.INFERENCE_OPERATORS:
        schema = getattr(ops, name).default._schema
        assert [argument.name for argument in schema.arguments] == [
            *plain.__dict__[name].__code__.co_varnames[: len(schema.arguments)]
        ]
