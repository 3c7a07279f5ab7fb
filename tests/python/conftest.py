import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: waiting threads must not starve other processes

import pytest
import torch
from devices import compute_in_full_precision, device, use_device
from fashion_mnist_files import write_files
from hypothesis import HealthCheck, settings

CHOOSING = ("FUSEDSC_CACHE_DIR", "FUSEDSC_FORCE", "FUSEDSC_RANKER", "FUSEDSC_TABLE", "FUSEDSC_TUNE", "FUSEDSC_VERBOSE")
"""What says which kernels run: what is tested must not depend on what somebody has set or measured here. The library
reads them once, when it is first asked."""
for name in CHOOSING:
    os.environ.pop(name, None)
os.environ["FUSEDSC_TUNE"] = "0"

settings.register_profile(
    "fusedsc",
    deadline=None,
    report_multiple_bugs=False,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fusedsc")


def pytest_addoption(parser):
    parser.addoption(
        "--device", default="cpu", help="where tensors are: cpu (the default), or cuda, a GPU of either make"
    )
    parser.addoption(
        "--kills", type=int, default=3, help="how often test_imagenet.py kills a training before it goes on (3)"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu_only(reason): has nothing to do with GPUs; skipped there")
    config.addinivalue_line("markers", "gpu_only: needs --device cuda; deselected without")
    config.addinivalue_line("markers", "xdist_group(name): one process runs all that have it (pytest-xdist)")
    use_device(config.getoption("--device"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # they share the processors
    torch.set_num_threads(max(1, torch.get_num_threads() // processes))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """What `-n auto` means: a process per processor, and for a GPU, which they would only share, this one."""
    return len(os.sched_getaffinity(0)) if config.getoption("--device") == "cpu" else 0


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cpu":
        gpu_only = [item for item in items if item.get_closest_marker("gpu_only")]
        config.hook.pytest_deselected(items=gpu_only)
        items[:] = [item for item in items if item not in gpu_only]
        return
    for item in items:
        if marker := item.get_closest_marker("cpu_only"):
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))


@pytest.fixture(autouse=True)
def _start_alike(monkeypatch, tmp_path):
    torch.manual_seed(0)
    measured = sys.modules.get("fusedsc.matching.measured")
    if measured is not None:  # what is tested of fused parts must not depend on what some machine has measured
        monkeypatch.setattr(measured, "FOLDER", tmp_path / "no measurements")
    if device().type != "cpu":
        compute_in_full_precision()


@pytest.fixture
def store(monkeypatch, tmp_path):
    """The folder of a store of this test's own, for whatever measures or chooses kernels. Nothing is stored, pinned,
    forced or ranked in the beginning; and what the test has set, in the environment, too, counts for no other test."""
    import fusedsc  # not above: some tests are of what cannot import it

    before = _variables()
    _set_variables({"FUSEDSC_CACHE_DIR": str(tmp_path / "cache")})
    fusedsc.tuning.reload_choices()
    yield tmp_path / "cache" / "tuning"
    monkeypatch.undo()  # first: it would put back what it found, which may be this fixture's
    _set_variables(before)
    torch.ops.fusedsc._tune_record(False)
    for role in fusedsc.kernels():
        torch.ops.fusedsc._force(role, "")
    fusedsc.tuning.pin(None)
    torch.ops.fusedsc._use_tables_of(str(fusedsc._library.path().parent / fusedsc._library.TABLES))
    fusedsc.tuning.reload_choices()  # last: the library reads the environment only here


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    item.stash[_FOUND] = _variables()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """A test that leaves something behind fails itself, and not another one that happens to run after it."""
    result = yield
    found = item.stash[_FOUND]
    left = [name for name in CHOOSING if os.environ.get(name) != found.get(name)]
    _set_variables(found)
    if "fusedsc" in sys.modules and hasattr(torch.ops.fusedsc, "_tables_for"):
        table = torch.ops.fusedsc._tables_for(False)[1]  # the CPU's, for which none ships
        if table:
            left.append(table)
            torch.ops.fusedsc._tables_pin("")  # reads everything anew, too
    assert not left, f"it leaves {', '.join(left)} to other tests; use the fixture `store`"
    return result


_FOUND = pytest.StashKey[dict[str, str]]()


def _variables():
    return {name: value for name, value in os.environ.items() if name in CHOOSING}


def _set_variables(values):
    for name in CHOOSING:
        os.environ.pop(name, None)
    os.environ.update(values)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with Fashion-MNIST's four files, small."""
    folder = tmp_path_factory.mktemp("data")
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def cxx(tmp_path_factory):
    """What torch._inductor compiles with: its own choice, or else the system's."""
    import torch._inductor.config
    from compilers import LIBRARY, SYSTEM, sharing_compiler

    found = sharing_compiler(tmp_path_factory.mktemp("compiler"))
    if found is None:
        pytest.skip(f"neither g++ nor {SYSTEM} links {LIBRARY.decode()}, as PyTorch does; set CXX to one that does")
    with torch._inductor.config.patch({"cpp.cxx": (None, found)}):
        yield found


@pytest.fixture
def choose(monkeypatch):
    """choose(way, ...): fusedsc.sparse.optimize finds that to be the fastest from then on (sparse_choices.py)."""
    import sparse_choices

    from fusedsc.sparse import timing

    # Another config may add up in another order.
    monkeypatch.setattr(timing, "fastest_of", lambda ways, device_type: next(iter(ways)))
    return lambda *args, **kwargs: monkeypatch.setattr(timing, "times_of", sparse_choices.times_of(*args, **kwargs))


@pytest.fixture
def own_fronts(choose, monkeypatch):
    """With `choose`: our kernel is faster than PyTorch's layers in front of what skips zeros."""
    from fusedsc.sparse import timing

    monkeypatch.setattr(timing, "fastest_of", lambda ways, device_type: "own" if "own" in ways else next(iter(ways)))


@pytest.fixture
def cudnn(monkeypatch):
    """As if cuDNN's fused operators were there: they are computed by PyTorch's functions, and noted with their
    arguments."""
    from fusedsc.sparse import folded, measuring

    calls = []

    def add_relu(x, weight, z, bias, *window):
        calls.append(("add_relu", x, weight, bias, z, *window) if z.any() else ("relu", x, weight, bias, None, *window))
        y = torch.nn.functional.conv2d(x, weight, bias, *window)
        assert y.shape == z.shape, "the operator does not check it"
        return torch.relu(y + z)

    monkeypatch.setattr(folded, "cudnn_add_relu", add_relu)
    for module in (folded, measuring):
        monkeypatch.setattr(module, "fuses_relu", lambda device: True)
    return calls


@pytest.fixture
def unfused(monkeypatch):
    """As if cuDNN had no fused convolutions, on a GPU, too: what fusedsc.sparse.optimize folds depends on it."""
    from fusedsc.sparse import folded, measuring

    for module in (folded, measuring):
        monkeypatch.setattr(module, "fuses_relu", lambda device: False)
