"""Compressed maps between ecr_conv2d and pecr_conv2d: what dense maps between them give. To the bit on a CPU; on a GPU
another config may be the fastest for the other form, and sums in another order."""

import io

import pytest
import torch
import torch.nn.functional as F
from cases import DTYPES, LAYOUTS, in_layout
from devices import device, randn
from test_sparse import tensors

import fusedsc
from fusedsc import functional
from fusedsc.compressed_map import compress
from fusedsc.sparse import CompressedMap

ops = torch.ops.fusedsc

# Of ecr_conv2d, or with pool_size of pecr_conv2d.
GEOMETRIES = [
    {},
    {"padding": 1, "activation": "relu"},
    {"stride": 2, "padding": (1, 0, 2, 1), "activation": "relu6"},
    {"dilation": 2, "padding": "same", "activation": "silu"},
    {"padding": 1, "pool_size": 2, "pool_stride": 2},
    {"padding": 1, "pool_size": (3, 2), "pool_stride": (2, 1)},
]


def convolve(x, *arguments, **geometry):
    return (functional.pecr_conv2d if "pool_size" in geometry else functional.ecr_conv2d)(x, *arguments, **geometry)


def second(y, outputs=40, kernel=1, groups=1):
    generator = torch.Generator("cpu").manual_seed(7)
    return randn((outputs, y.shape[1] // groups, kernel, kernel), generator, y.dtype)


def assert_same(actual, expected):
    if device().type == "cpu":
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        return
    step = torch.finfo(expected.dtype).eps
    # Sums are of hundreds of products in at least single precision, of which 16 bits round the result alone.
    steps = 2 if expected.element_size() == 2 else 64
    most = expected.nan_to_num(0, 0, 0).abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=steps * step, atol=steps * step * most, equal_nan=True)


def assert_map_of(actual, dense):
    """That it has the values of the dense map, in the format's order: written by PyTorch's operators from the
    definition."""
    assert_same(actual.dense(), dense)
    expected = compress(actual.dense(), actual.channels_last)
    assert actual.shape == dense.shape
    assert actual.dtype == dense.dtype
    for name in ("values", "channels", "counts"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_from_and_to_compressed_maps(geometry, layout, dtype):
    x, weight, bias = tensors(dtype, layout=layout)
    y = convolve(x, weight, bias, **geometry)
    between = convolve(x, weight, bias, **geometry, compressed_output=True)
    assert_map_of(between, y)
    back = between.dense()
    assert back.is_contiguous(memory_format=torch.channels_last if between.channels_last else torch.contiguous_format)
    for kernel, again in ((1, {}), (3, {"padding": 1}), (2, {"padding": 1, "pool_size": 2, "pool_stride": 1})):
        next_weight = second(y, kernel=kernel)
        expected = convolve(back, next_weight, **again)
        actual = convolve(between, next_weight, **again)
        assert_same(actual, expected)
        if y.is_contiguous() != y.is_contiguous(memory_format=torch.channels_last):
            assert actual.stride() == expected.stride()
        assert_map_of(convolve(between, next_weight, **again, compressed_output=True), expected)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups(groups):
    x, weight, bias = tensors(shape=(2, 40 * groups, 6, 5), outputs=64 * groups, groups=groups)
    geometry = {"groups": groups, "padding": 1, "activation": "relu"}
    y = functional.ecr_conv2d(x, weight, bias, **geometry)
    between = functional.ecr_conv2d(x, weight, bias, **geometry, compressed_output=True)
    assert_map_of(between, y)
    for kernel in (1, 3):
        next_weight = second(y, 8 * groups, kernel, groups)
        packed = fusedsc.sparse.pack_weight(next_weight, groups)
        expected = functional.ecr_conv2d(between.dense(), next_weight, groups=groups)
        assert_same(functional.ecr_conv2d(between, next_weight, groups=groups, packed=packed), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps_of_nothing_but_zeros(dtype):
    x, weight, _ = tensors(dtype, zeros=1.0)
    for geometry in GEOMETRIES:
        between = convolve(x, weight, **geometry, compressed_output=True)
        assert not between.values.any()
        assert not between.channels.any()
        assert not between.counts.any()
        next_weight, bias = second(between), torch.randn(40).to(dtype)
        y = functional.ecr_conv2d(between, next_weight, bias)
        assert torch.equal(y, bias[:, None, None].expand_as(y))


def test_what_is_not_finite_is_handed_on():
    x, weight, bias = tensors(zeros=0.9, outputs=130)
    x[0, 3, 4, 4], x[1, 19, 0, 7] = float("nan"), float("inf")
    y = functional.ecr_conv2d(x, weight, bias, padding=1, activation="relu")
    between = functional.ecr_conv2d(x, weight, bias, padding=1, activation="relu", compressed_output=True)
    assert y.isnan().any()
    assert y.isinf().any()
    assert_map_of(between, y)
    next_weight = second(y, kernel=3)
    assert_same(functional.ecr_conv2d(between, next_weight), functional.ecr_conv2d(between.dense(), next_weight))


def test_negative_zeros_are_left_out():
    x, weight, _ = tensors(zeros=1.0)
    between = functional.ecr_conv2d(x, weight, torch.full((70,), -0.0), compressed_output=True)
    assert not between.counts.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_rounds_to_zero_is_left_out(dtype):
    x = torch.full((1, 1, 2, 2), 1e-4, dtype=dtype)
    weight = torch.tensor([1.0, 1e-40 if dtype == torch.bfloat16 else 6e-8], dtype=dtype).view(2, 1, 1, 1)
    y = functional.ecr_conv2d(x, weight)
    assert not y[:, 1].any()
    assert functional.ecr_conv2d(x, weight, compressed_output=True).counts.sum() == 4


def test_empty_batch():
    x, weight, bias = tensors()
    between = functional.pecr_conv2d(x[:0], weight, bias, compressed_output=True)
    assert between.shape == (0, 70, 3, 3)
    assert between.dense().shape == between.shape
    assert functional.ecr_conv2d(between, second(between)).shape == (0, 40, 3, 3)


def test_views_of_maps():
    x, weight, bias = tensors()
    whole = functional.ecr_conv2d(x, weight, bias, activation="relu", compressed_output=True)
    parts = [t[1:, 1:4, ::2] for t in (whole.values, whole.channels, whole.counts)]
    part = CompressedMap(*parts, whole.num_channels)
    dense, next_weight = whole.dense()[1:, :, 1:4, ::2], second(whole)
    assert torch.equal(part.dense(), dense)
    assert_same(functional.ecr_conv2d(part, next_weight), functional.ecr_conv2d(dense, next_weight))


@pytest.mark.parametrize("wrong", ["x", "weight"])
def test_a_gradient_is_refused(wrong):
    x, weight, _ = tensors()
    between = functional.ecr_conv2d(x, weight, compressed_output=True)
    next_weight = second(between)
    {"x": x, "weight": weight}[wrong].requires_grad_()
    with pytest.raises(ValueError, match=rf"{wrong}: it requires a gradient.*no_grad.*conv2d"):
        functional.ecr_conv2d(x, weight, compressed_output=True)
    with pytest.raises(ValueError, match=r"weight: it requires a gradient"):
        functional.ecr_conv2d(between, next_weight.requires_grad_())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": lambda t: t[..., 1:]}, r"counts: its sizes are \[2, 7, 6, 11\] of Byte, but must be .* 12\]"),
        ({"channels": torch.Tensor.int}, r"channels: its sizes are \[2, 7, 6, 96\] of Int, but must be .* of Byte"),
        ({"values": lambda t: t[..., :64]}, r"values: its sizes are .*64\]; of a compressed map of 70 channels.* 96"),
        ({"values": torch.Tensor.double}, r"weight: its dtype is Float, but x has Double"),
    ],
)  # fmt: skip
def test_wrong_maps(change, message):
    x, weight, _ = tensors()
    between = functional.ecr_conv2d(x, weight, compressed_output=True)
    parts = {name: getattr(between, name) for name in ("values", "channels", "counts")}
    for name, function in change.items():
        parts[name] = function(parts[name])
    with pytest.raises(ValueError, match=message):
        functional.ecr_conv2d(CompressedMap(**parts, num_channels=70), second(between))


def test_wrong_arguments():
    x, weight, _ = tensors(groups=2)
    with pytest.raises(ValueError, match=r"groups: it is 2, which leaves 35 channels of the result.*multiple of 32"):
        functional.ecr_conv2d(x, weight, groups=2, compressed_output=True)
    between = functional.ecr_conv2d(x, weight, groups=2).relu()
    with pytest.raises(ValueError, match=r"groups: it is 2, which leaves 35 channels of x.*multiple of 8.*x\.dense"):
        functional.ecr_conv2d(compress(between, channels_last=False), second(between, groups=2), groups=2)
    with pytest.raises(ValueError, match="compressed_output: it is 1, of type int; give True or False"):
        functional.ecr_conv2d(x, weight, groups=2, compressed_output=1)


def test_what_is_explained_is_of_dense_maps():
    x, weight, _ = tensors()
    with pytest.raises(ValueError, match=r"compressed_output: from and to .*explain those, with x\.dense\(\)"):
        fusedsc.explain("ecr_conv2d", x, weight, compressed_output=True)


def test_autocast():
    x, weight, bias = tensors()
    with torch.autocast(device().type, torch.bfloat16):
        between = functional.ecr_conv2d(x, weight, bias, activation="relu", compressed_output=True)
        assert between.dtype == torch.bfloat16
        y = functional.ecr_conv2d(between, second(between).float())
    narrow = functional.ecr_conv2d(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), activation="relu")
    assert torch.equal(between.dense(), narrow)
    assert y.dtype == torch.bfloat16


class Two(torch.nn.Module):
    """Two convolutions, with a compressed map between them."""

    def __init__(self):
        super().__init__()
        _, weight, bias = tensors()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("next_weight", torch.randn(40, 70, 1, 1))

    def between(self, x):
        return functional.pecr_conv2d(x, self.weight, self.bias, padding=1, compressed_output=True)

    def forward(self, x):
        return functional.ecr_conv2d(self.between(x), self.next_weight)


def test_exports():
    x, model = tensors()[0], Two()
    exported = torch.export.export(model, (x,))
    assert "_sparse_conv2d_to_compressed" in str(exported.graph)
    assert torch.equal(exported.module()(x), model(x))


def test_exports_with_maps_as_arguments_and_results():
    class Middle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randn(40, 70, 3, 3))

        def forward(self, x):
            return functional.ecr_conv2d(x, self.weight, activation="relu", compressed_output=True)

    middle, x = Middle(), Two().between(tensors()[0])
    file = io.BytesIO()
    torch.export.save(torch.export.export(middle, (x,)), file)
    file.seek(0)
    actual, expected = torch.export.load(file).module()(x), middle(x)
    assert isinstance(actual, CompressedMap)
    assert torch.equal(actual.dense(), expected.dense())


def test_compiles_with_dynamic_shapes():
    torch.compiler.reset()
    model, graphs = Two(), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for n, h, w in ((2, 8, 12), (3, 12, 16), (5, 16, 20)):
        x = F.relu(torch.randn(n, 20, h, w))
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) <= 2


def test_what_is_recorded_for_others_is_pytorchs():
    x, model = tensors()[0], Two()
    traced = torch.jit.trace(model, x, check_trace=False)
    assert "fusedsc::" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), model(x), rtol=1e-4, atol=1e-4)


def test_is_mapped():
    x, model = tensors()[0], Two()
    images = torch.stack([x, 2 * x, -x])
    mapped = torch.func.vmap(model)(images)
    torch.testing.assert_close(mapped, torch.stack([model(one) for one in images]))


@pytest.mark.gpu_only
@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_graphs_see_new_maps(layout):
    x, model = tensors(layout=layout)[0], Two()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model(x)
    for share in (0.0, 0.7, 1.0):
        x.copy_(in_layout(torch.randn_like(x) * (torch.rand_like(x) >= share), layout))
        graph.replay()
        assert torch.equal(captured, model(x))
