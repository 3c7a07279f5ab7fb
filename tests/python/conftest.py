import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: waiting threads must not starve other processes

import pytest
import torch
from fashion_mnist_files import write_files
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fusedsc",
    deadline=None,
    report_multiple_bugs=False,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fusedsc")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with Fashion-MNIST's four files, small."""
    folder = tmp_path_factory.mktemp("data")
    write_files(folder)
    return folder
