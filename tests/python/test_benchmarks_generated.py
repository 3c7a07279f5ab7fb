"""What benchmarks.generated counts."""

import pytest

from benchmarks import generated
from fusedsc.tune_report import TunedProblem


def tuned(role: str, problem: str, before: str, after: str, before_us: float | None, after_us: float | None):
    state = "kept" if before == after else "replaced"
    return TunedProblem(role, problem, 1, state, before, after, before_us, after_us)


FORWARD, INPUT = "pointwise_conv2d.forward", "depthwise_conv2d.grad_input"
FIRST = [
    tuned(FORWARD, "a", "gpu_fragments/rows=64", "generated/rows=16", 10.0, 8.0),
    tuned(FORWARD, "b", "gpu_fragments/rows=64", "gpu_tiles/rows=64", 10.0, 5.0),
    tuned(FORWARD, "c", "gpu_fragments/rows=64", "gpu_fragments/rows=64", None, None),
    tuned(INPUT, "d", "gpu_rows/rows=4", "generated/channels=1", 10.0, 9.0),
    tuned("dsc_block.forward", "e", "composed", "composed", 3.0, 3.0),
]


def test_wins_are_those_of_generated_kernels_alone():
    rows = generated.measured_of("one", FIRST)
    assert [row.problem for row in rows] == ["a", "b", "c", "d"]  # blocks have no generated kernels
    assert [row.wins for row in rows] == [True, False, False, True]
    assert [row.gain for row in rows] == pytest.approx([0.2, 0, 0, 0.1])


def test_a_problem_counts_once():
    again = [tuned(FORWARD, "a", "gpu_tiles/rows=64", "gpu_tiles/rows=64", 9.0, 9.0)]
    rows = generated.measured_of("one", FIRST) + generated.measured_of("two", again)
    assert [row.network for row in generated.once_each(rows)] == ["one"] * 4


def test_summary():
    lines = generated.summary(generated.measured_of("one", FIRST))
    assert lines[2:] == [
        f"| {INPUT} | 1 | 1 | 100% | 10.0% |",
        f"| {FORWARD} | 3 | 1 | 33% | 20.0% |",
        "| all | 4 | 2 | 50% | 15.0% |",
    ]
    assert generated.summary([])[2:] == ["| all | 0 | 0 |  |  |"]


def test_an_unknown_network_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    def unknown(name: str, options: object) -> list:
        return generated.model_of(name, {})

    monkeypatch.setattr(generated, "measured_apart", unknown)
    assert generated.main(["mobilenet"]) == 1
    assert 'network: "mobilenet": give torchvision:NAME' in capsys.readouterr().err
