"""fusedsc.tune: what it measures, takes and stores; and that it leaves the model as it was."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fusedsc
from fusedsc import functional, measuring
from fusedsc.cli import main

pytestmark = pytest.mark.cpu_only("kernels of the CPU are measured")

FORWARD, BACKWARD = "depthwise_conv2d.forward", "depthwise_conv2d.backward"


def arguments():
    return torch.ones(1, 8, 12, 12), torch.ones(8, 1, 3, 3)


def call(x, weight):
    return functional.depthwise_conv2d(x, weight, padding=1)


def taken():
    """The forward kernel that runs `arguments`, and why."""
    candidates = fusedsc.explain("depthwise_conv2d", *arguments(), padding=1).candidates
    return next((c.implementation, c.why) for c in candidates if c.taken and c.direction == "forward")


def kernel_of(choice):
    return choice.partition("/")[0]


def pretend(monkeypatch, times):
    """Kernels take so many microseconds, one sample after the other, with any config."""

    class Timer:
        def __init__(self, problem, choice, memory):
            self.times = times[kernel_of(choice)]
            self.samples = 0

        def sample(self):
            self.samples += 1
            return self.times[self.samples % len(self.times)]

    monkeypatch.setitem(measuring.TIMERS, "cpu", Timer)


def files_of(store):
    return sorted(store.rglob("*.json"))


def tune_forward(**options):
    """Two candidates are each kernel with the config that it would be taken with."""
    return fusedsc.tune(call, *arguments(), backward=False, progress=False, **{"candidates": 2, **options})


@pytest.mark.parametrize(
    ("cpu", "planes", "winner"),
    [
        ([5.0], [10.0], "cpu"),
        ([10.0], [5.0], "cpu_planes"),
        ([9.9], [10.0], "cpu_planes"),  # faster by 1%
        ([6.0, 12.0, 9.0], [10.0, 9.0, 9.5, 9.0], "cpu_planes"),  # faster in the mean, but not clearly
    ],
)
def test_takes_what_is_clearly_faster(store, monkeypatch, cpu, planes, winner):
    assert taken() == ("cpu_planes", "prior")
    pretend(monkeypatch, {"cpu": cpu, "cpu_planes": planes})
    report = tune_forward()
    (row,) = report.problems
    assert (row.role, kernel_of(row.before), kernel_of(row.after)) == (FORWARD, "cpu_planes", winner)
    assert row.state == ("kept" if winner == "cpu_planes" else "replaced")
    assert taken() == (winner, f"tuned, {row.after_us:g} us")
    (file,) = files_of(store)
    entry = json.loads(file.read_text())
    assert (entry["role"], entry["kernel"], entry["microseconds"]) == (FORWARD, winner, row.after_us)
    assert entry["problem"] == row.problem
    assert {other["kernel"] for other in entry["others"]} == {"cpu", "cpu_planes"} - {winner}


def test_one_round_of_another_program_decides_nothing():
    rounds = [{"fast": 75.0 + i % 3, "slow": 100.0 + i % 2} for i in range(9)]
    assert measuring.is_clearly_faster("fast", "slow", rounds)
    assert not measuring.is_clearly_faster("slow", "fast", rounds)
    for way in ("fast", "slow"):
        for i in (0, 4, 8):
            hit = [dict(one) for one in rounds]
            hit[i][way] *= 50
            assert measuring.is_clearly_faster("fast", "slow", hit)
            assert not measuring.is_clearly_faster("slow", "fast", hit)
    ties = [{"fast": 100.0 + i % 2, "slow": 101.0 - i % 2} for i in range(9)]
    ties[3]["slow"] = 5000.0
    assert not measuring.is_clearly_faster("fast", "slow", ties)


def test_measures_and_stores(store, capfd):
    """Truly, forward and backward; a second process takes it from the store, and measures nothing."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 24, 24), torch.randn(16, 1, 3, 3, requires_grad=True)
    expected = torch.nn.functional.conv2d(x, weight, padding=1, groups=16)
    report = fusedsc.tune(call, x, weight, progress=False)
    assert [row.role for row in report.problems if row.state != "no choice"]
    assert {row.role for row in report.problems} == {FORWARD, BACKWARD}
    for row in report.problems:
        assert row.calls == 1
        if row.state != "no choice":
            assert row.before_us > 0
            assert row.after_us > 0
            assert row.after == row.before or row.after_us < row.before_us
    table = str(report)
    assert "float32[2,16,24,24] * [16,1,3,3]" in table
    assert "2 problems, of " in table
    torch.testing.assert_close(call(x, weight), expected)
    again = fusedsc.tune(call, x, weight, progress=False)
    assert {row.state for row in again.problems} <= {"known", "no choice"}

    before = {file: file.read_bytes() for file in files_of(store)}
    program = (
        f"import torch, fusedsc; torch.set_num_threads({torch.get_num_threads()}); "
        "fusedsc.functional.depthwise_conv2d(torch.ones(2, 16, 24, 24), torch.ones(16, 1, 3, 3), padding=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FUSEDSC_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    row = next(row for row in report.problems if row.role == FORWARD)
    assert f"fusedsc: {FORWARD}: {row.after} (tuned, " in done.stderr
    assert {file: file.read_bytes() for file in files_of(store)} == before


def test_sliding_channel_convolutions(store, monkeypatch):
    """Both ways to compute one, and the pointwise convolution that one of them is made of."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 9, 9, requires_grad=True), torch.randn(64, 8, 1, 1, requires_grad=True)

    def scc(x, weight):
        return functional.sliding_channel_conv2d(x, weight, groups=2, overlap=0.5)

    def explained(direction):
        explanation = fusedsc.explain("sliding_channel_conv2d", x, weight, groups=2, overlap=0.5)
        return next((c.implementation, c.why) for c in explanation.candidates if c.taken and c.direction == direction)

    y = scc(x, weight)
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    assert explained("forward") == explained("backward") == ("cpu_windows", "prior")
    report = fusedsc.tune(scc, x, weight, progress=False)
    scc_roles = {"sliding_channel_conv2d.forward", "sliding_channel_conv2d.backward"}
    within = {"pointwise_conv2d.forward", "pointwise_conv2d.backward"}
    assert {row.role for row in report.problems} == scc_roles | within
    for row in report.problems:
        if row.role in scc_roles:
            assert (row.calls, kernel_of(row.before)) == (1, "cpu_windows")
        else:
            assert (row.calls, kernel_of(row.before)) == (0, "cpu")
        assert row.state in ("kept", "replaced")
        assert (row.before_us > 0, row.after_us > 0) == (True, True)
    assert {json.loads(file.read_text())["role"] for file in files_of(store)} == scc_roles | within
    pretend(monkeypatch, {"cpu_windows": [10.0], "composed": [5.0], "cpu": [5.0]})
    fusedsc.tune(scc, x, weight, progress=False, again=True)
    fusedsc.tuning.reload_choices()
    assert explained("forward") == explained("backward") == ("composed", "tuned, 5 us")
    torch.testing.assert_close(scc(x, weight), y, rtol=1e-5, atol=1e-5)
    (now,) = torch.autograd.grad(scc(x, weight).square().sum(), x)
    torch.testing.assert_close(now, grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("role", "zeros"), [("sparse_conv2d.forward", 0.9), ("depthwise_conv2d.forward", 0.0)])
def test_what_skips_zeros_is_measured_with_zeros(monkeypatch, role, zeros):
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_buffers", lambda problem: (["float32", "float16"], [40000, 20000]))
    for tensor in measuring.memory_for(0, role, torch.device("cpu")).tensors[:2]:
        assert (tensor == 0).double().mean().item() == pytest.approx(zeros, abs=0.02)
        assert tensor.abs().max().item() > 0.9


def test_force_beats_it_and_freezing_ends_it(store, monkeypatch):
    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    tune_forward()
    with fusedsc.force(FORWARD, "cpu_planes"):
        assert taken() == ("cpu_planes", "forced")
        with pytest.raises(ValueError, match=f"{FORWARD} is forced to cpu_planes"):
            tune_forward()
    assert taken() == ("cpu", "tuned, 5 us")
    monkeypatch.setenv("FUSEDSC_TUNE", "0")
    fusedsc.tuning.reload_choices()
    assert taken() == ("cpu_planes", "prior")
    with pytest.raises(ValueError, match="FUSEDSC_TUNE=0 freezes"):
        tune_forward()


def test_measured_again_only_if_asked(store, monkeypatch):
    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    tune_forward()
    pretend(monkeypatch, {"cpu": [10.0], "cpu_planes": [5.0]})
    assert [row.state for row in tune_forward().problems] == ["known"]
    assert taken() == ("cpu", "tuned, 5 us")
    assert [row.state for row in tune_forward(again=True).problems] == ["replaced"]
    assert taken() == ("cpu_planes", "tuned, 5 us")


def test_what_cannot_be_stored_holds_in_memory(store, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FUSEDSC_CACHE_DIR", str(tmp_path / "file"))
    fusedsc.tuning.reload_choices()
    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    with pytest.raises(fusedsc.StoreError, match=r"file/tuning/.* cannot be written: .*; set FUSEDSC_CACHE_DIR") as end:
        tune_forward()
    assert kernel_of(end.value.report.problems[0].after) == "cpu"
    assert taken() == ("cpu", "tuned, 5 us")
    fusedsc.tuning.reload_choices()
    assert taken() == ("cpu_planes", "prior")
    report = tune_forward(store=False)
    assert not report.not_stored
    assert taken() == ("cpu", "tuned, 5 us")


def test_a_short_budget(store):
    report = tune_forward(budget=1e-9)
    assert [row.state for row in report.problems] == ["no time"]
    assert not files_of(store)
    assert taken() == ("cpu_planes", "prior")


def test_an_interrupt_keeps_what_was_found(store, monkeypatch):
    measure, measured = measuring.measure, []

    def once(*arguments):
        if measured:
            raise KeyboardInterrupt
        measured.append(measure(*arguments))
        return measured[0]

    monkeypatch.setattr(sys.modules["fusedsc.tune"], "measure", once)
    x, weight = arguments()
    report = fusedsc.tune(call, x, weight.requires_grad_(), progress=False)
    assert report.interrupted
    assert "interrupted: what was found until then is kept" in str(report)
    assert len(files_of(store)) == 1
    assert sorted(row.state in ("kept", "replaced") for row in report.problems) == [False, True]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(8, 16, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU6(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU6(),
            nn.Conv2d(16, 8, 1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return {"y": self.dropout(x + self.conv(x)), "others": (None, 3)}


def block():
    return Block()


def test_the_model_stays_as_it_is(store):
    torch.manual_seed(0)
    model = fusedsc.swap(Block(), verbose=False, replace_slower=True)
    model.dropout.eval()
    x = torch.randn(2, 8, 12, 12, requires_grad=True)
    model(x)["y"].sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: (parameter.grad, parameter.grad.clone()) for name, parameter in model.named_parameters()}
    x_grad, modes, random = x.grad.clone(), [m.training for m in model.modules()], torch.get_rng_state()
    report = fusedsc.tune(model, x, progress=False)
    assert {FORWARD, BACKWARD} <= {row.role for row in report.problems}
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is grads[name][0]
        assert torch.equal(parameter.grad, grads[name][1])
    assert torch.equal(x.grad, x_grad)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


def test_what_is_recomputed_is_measured_as_its_forwards(store, monkeypatch):
    """It is no problem of its own: test_recomputed.py shows that it takes what the forward pass does."""
    bn = (torch.ones(8), torch.zeros(8), torch.zeros(8), torch.ones(8), torch.tensor(0))
    weight = torch.randn(8, 1, 3, 3, requires_grad=True)

    def chain(x):
        stages = [functional.ConvStage(weight, None, bn, padding=1, groups=8)]
        return functional.conv_chain(x, stages, training=True, recompute=True)

    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    report = fusedsc.tune(chain, torch.randn(2, 8, 12, 12), progress=False, candidates=2)
    (row,) = [row for row in report.problems if row.role == FORWARD]
    assert "statistics{" in row.problem
    assert kernel_of(row.after) == "cpu"


def test_the_same_result_has_the_same_kernel(store, monkeypatch):
    """A convolution with its statistics and the same again without them are taken together."""
    bn = (torch.ones(8), torch.zeros(8), torch.zeros(8), torch.ones(8), torch.tensor(0))
    weight = torch.randn(8, 1, 3, 3, requires_grad=True)

    def chain(x):
        stages = [functional.ConvStage(weight, None, bn, padding=1, groups=8)]
        y = functional.conv_chain(x, stages, training=True)
        return y + functional.depthwise_conv2d(x, weight, padding=1)

    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    report = fusedsc.tune(chain, torch.randn(2, 8, 12, 12), progress=False, candidates=2)
    rows = [row for row in report.problems if row.role == FORWARD]
    assert ["statistics{" in row.problem for row in rows] in ([True, False], [False, True])
    assert [kernel_of(row.after) for row in rows] == ["cpu", "cpu"]
    assert len({row.after for row in rows}) == 1
    # One alone is measured anew: that does not part them.
    (file,) = [file for file in files_of(store) if "statistics{" in file.read_text()]
    file.unlink()
    fusedsc.tuning.reload_choices()
    pretend(monkeypatch, {"cpu": [10.0], "cpu_planes": [10.0]})
    report = fusedsc.tune(chain, torch.randn(2, 8, 12, 12), progress=False, candidates=2)
    before, after = zip(*((row.before, row.after) for row in report.problems if row.role == FORWARD), strict=True)
    assert {kernel_of(choice) for choice in before} == {"cpu", "cpu_planes"}
    assert len(set(after)) == 1


def chain_of(training):
    """Of an inverted residual."""

    def norm(channels):
        return (torch.ones(channels), torch.zeros(channels), torch.zeros(channels), torch.ones(channels), None)

    stages = [
        functional.ConvStage(torch.randn(16, 8, 1, 1) * 0.3, None, norm(16), activation="relu6"),
        functional.ConvStage(torch.randn(16, 1, 3, 3) * 0.3, None, norm(16), padding=1, groups=16, activation="relu6"),
        functional.ConvStage(torch.randn(8, 16, 1, 1, requires_grad=True), None, norm(8)),
    ]
    return lambda x: functional.conv_chain(x, stages, training=training, residual=True)


def test_blocks_are_measured_behind_what_they_are_made_of(store, monkeypatch):
    """A chain in eval mode has two ways; what it then takes is what explain says."""
    chain, x, order = chain_of(training=False), torch.randn(2, 8, 12, 12), []

    class Timer:
        def __init__(self, problem, choice, memory):
            order.append(torch.ops.fusedsc._tune_problems()[0][problem])
            self.microseconds = {"composed": 5.0, "inference": 10.0}.get(kernel_of(choice), 7.0)

        def sample(self):
            return self.microseconds

    monkeypatch.setitem(measuring.TIMERS, "cpu", Timer)
    with torch.no_grad():
        report = fusedsc.tune(chain, x, backward=False, progress=False)
        (row,) = [row for row in report.problems if row.role == "conv_chain.forward"]
        assert (row.before, row.after, row.state) == ("inference", "composed", "replaced")
        assert {"pointwise_conv2d.forward", "dsc_block.forward"} <= {row.role for row in report.problems}
        assert set(order[order.index("conv_chain.forward") :]) == {"conv_chain.forward"}, "it comes last"
        assert "float32[2,8,12,12] * [16,8,1,1] * [16,1,3,3] * [8,16,1,1]" in str(report)
        before = chain(x)
    (file,) = [file for file in files_of(store) if "conv_chain.forward" in file.read_text()]
    assert json.loads(file.read_text())["kernel"] == "composed"
    fusedsc.tuning.reload_choices()
    torch.ops.fusedsc._tune_record(True)
    with torch.no_grad():
        after = chain(x)
    (number,) = [i for i, role in enumerate(torch.ops.fusedsc._tune_problems()[0]) if role == "conv_chain.forward"]
    assert torch.ops.fusedsc._tune_taken(number) == ("composed", "tuned")
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_a_real_measurement_of_blocks(store):
    """Of the CPU's fused kernel, whose configs are tried, and of a first layer."""
    bn = [torch.ones(16), torch.zeros(16), torch.zeros(16), torch.ones(16)]
    x, dw, pw = torch.randn(2, 16, 20, 20), torch.randn(16, 1, 3, 3), torch.randn(24, 16, 1, 1, requires_grad=True)

    def block(x):
        return functional.dsc_block(x, dw, *bn, pw, training=True, padding=1, recompute=True)

    expected = block(x)
    report = fusedsc.tune(block, x, progress=False, candidates=8)
    rows = {row.role: row for row in report.problems}
    for role in ("dsc_block.forward", "dsc_block.backward"):
        assert rows[role].state in ("kept", "replaced")
        entry = next(json.loads(f.read_text()) for f in files_of(store) if json.loads(f.read_text())["role"] == role)
        tried = {entry["kernel"], *(other["kernel"] for other in entry["others"])}
        assert tried == {"composed", "cpu_fused"}
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)
    explanation = fusedsc.explain("dsc_block", x, dw, *bn, pw, training=True, padding=1, recompute=True)
    (taken,) = [c for c in explanation.candidates if c.taken and c.direction == "forward"]
    assert taken.why.startswith("tuned, ")
    assert rows["dsc_block.forward"].after == "/".join(filter(None, (taken.implementation, taken.config)))


def test_what_has_no_choice_takes_no_part_of_a_budget(store, monkeypatch):
    """A chain in training has one way: the last of what there is to measure gets all of the time that is left."""
    given, now = [], [0.0]

    def measure(subjects, taken, choices, seconds, *others):
        given.append((seconds, now[0]))
        return measuring.Measurement(tuple(taken), (1.0,) * len(taken), tuple(taken), (1.0,) * len(taken))

    monkeypatch.setattr(sys.modules["fusedsc.tune"], "measure", measure)
    monkeypatch.setattr(sys.modules["fusedsc.tune"].time, "monotonic", lambda: now[0])
    report = fusedsc.tune(chain_of(training=True), torch.randn(2, 8, 12, 12), budget=100, progress=False)
    states = {row.role: row.state for row in report.problems}
    assert states["conv_chain.forward"] == states["conv_chain.backward"] == "no choice"
    assert len(given) > 2
    assert given[-1][0] == pytest.approx(100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget: it is 0; it must be more than 0 seconds"),
        ({"candidates": 1}, "candidates: it is 1; it must be at least 2"),
        ({"budget": "10"}, "budget: it is '10', of type str; give a number"),
        ({"candidates": 2.5}, "candidates: it is 2\\.5, of type float; give an integer"),
        ({"again": "no"}, "again: it is 'no', of type str; give True or False"),
    ],
)
def test_wrong_arguments(store, options, message):
    with pytest.raises(ValueError, match=message):
        tune_forward(**options)


def test_nothing_to_choose_from(store):
    with pytest.raises(ValueError, match="nothing that ran has kernels to choose from; is the model swapped"):
        fusedsc.tune(nn.Linear(3, 2), torch.ones(1, 3), progress=False)
    with pytest.raises(ValueError, match="no output has a gradient; pass backward=False"):
        fusedsc.tune(call, *arguments(), progress=False)


def test_no_backward_pass_in_inference_mode(store):
    x, weight = arguments()
    with torch.inference_mode():
        with pytest.raises(ValueError, match=r"backward: there is none under torch\.inference_mode; call tune outside"):
            fusedsc.tune(call, x, weight.requires_grad_(), progress=False)
        assert [row.role for row in tune_forward(budget=1e-9).problems] == [FORWARD]


def test_not_while_compiling(store, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(RuntimeError, match="a graph is being captured or compiled here"):
        tune_forward()


def test_the_snippet_of_the_page(store, capsys):
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    snippet = page.partition("```python\n")[2].partition("```")[0]
    exec(compile(snippet, "docs/tuning.md", "exec"), {})
    assert "problems, of " in capsys.readouterr().out
    assert files_of(store)


# ------------------------------------------------------------------------------------------------------ many processes

PROGRAM = """
import os, random, signal, sys, time
import torch, fusedsc

def call():
    fusedsc.functional.depthwise_conv2d(torch.ones(1, 8, 12, 12), torch.ones(8, 1, 3, 3), padding=1)

torch.ops.fusedsc._tune_record(True)
call()
def adopt(microseconds):
    assert torch.ops.fusedsc._tune_adopt(0, ["cpu", "cpu_planes"], [microseconds, 99.0], True) == ""
adopt(1.0)
random.seed(0)
for _ in range(100):
    child = os.fork()
    if child == 0:
        while True:
            adopt(2.0)
    time.sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
children = []
for i in range(16):
    child = os.fork()
    if child == 0:
        for _ in range(20):
            adopt(3.0 + i)
        os._exit(0)
    children.append(child)
print(sum(os.waitpid(child, 0)[1] for child in children))
"""


def test_killed_writers_and_many_at_once_leave_whole_files(store):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("0", "")
    (file,) = files_of(store)
    assert json.loads(file.read_text())["microseconds"] in [3.0 + i for i in range(16)]
    assert torch.ops.fusedsc._cache_choices()[3] == ["cpu"]


# ----------------------------------------------------------------------------------------------------------- commands


def run(capsys, *command):
    status = main(list(command))
    said = capsys.readouterr()
    return status, said.out, said.err


def test_cache_commands(store, monkeypatch, capsys, tmp_path):
    assert run(capsys, "cache", "path") == (0, f"{store}\n", "")
    assert run(capsys, "cache", "list")[1] == f"0 measured choices in {store}\n"
    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    tune_forward()
    status, said, _ = run(capsys, "cache", "list")
    assert status == 0
    assert re.search(rf"  {FORWARD}: cpu/channels=8 .+, 5 us\n    x=float32\[1,8,12,12\]", said)
    table = tmp_path / "table.json"
    assert run(capsys, "cache", "export", str(table)) == (0, f"1 choices in {table}\n", "")
    assert run(capsys, "cache", "clear")[1] == f"1 choices removed from {store}\n"
    assert taken() == ("cpu_planes", "prior")
    assert run(capsys, "cache", "merge", str(table))[1].startswith("1 of 1 choices taken over")
    assert run(capsys, "cache", "merge", str(table))[1].startswith("0 of 1 choices taken over")
    assert taken() == ("cpu", "tuned, 5 us")
    monkeypatch.setenv("FUSEDSC_TABLE", str(table))
    monkeypatch.setenv("FUSEDSC_TUNE", "0")
    fusedsc.tuning.reload_choices()
    assert taken() == ("cpu", "table, 5 us")


def test_cache_says_what_is_stale(store, monkeypatch, capfd, tmp_path):
    pretend(monkeypatch, {"cpu": [5.0], "cpu_planes": [10.0]})
    tune_forward()
    (file,) = files_of(store)
    entry = json.loads(file.read_text())
    file.write_text(json.dumps({**entry, "sources": "0" * 16}))
    (file.parent / "0123456789abcdef.json").write_text("{")
    fusedsc.tuning.reload_choices()
    assert taken() == ("cpu_planes", "prior")
    assert "it was measured with other kernels than this build has; tune again" in capfd.readouterr().err
    status, said, complaint = run(capfd, "cache", "list")
    assert status == 0
    assert "(stale: measured with other kernels than this build has)" in said
    assert "0123456789abcdef.json is ignored: it is not whole" in complaint
    assert run(capfd, "cache", "export", str(tmp_path / "table.json"))[1].startswith("0 choices")


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["merge"], 2, "merge: give it a file, such as choices.json"),
        (["list", "x.json"], 2, "list: it takes no files"),
        (["export", "a.json", "b.json"], 2, "export: it takes 1 file"),
        (["merge", "none.json"], 2, "none.json is no table: there is no such file"),
        (["export", "/proc/none.json"], 1, "/proc/none.json cannot be written: "),
    ],
)
def test_cache_mistakes(store, capsys, command, status, message):
    code, said, complaint = run(capsys, "cache", *command)
    assert (code, said) == (status, "")
    assert message in complaint


def test_tune_command(store, monkeypatch, capsys, tmp_path):
    model = "test_tune:block"
    monkeypatch.syspath_prepend(Path(__file__).parent)
    command = ("tune", model, "--batch", "2", "--input-size", "8x12x12")
    status, said, _ = run(capsys, *command)
    assert status == 0
    assert "depthwise_conv2d.backward  float32[2,16,12,12] * [16,1,3,3]" in said
    assert files_of(store)
    status, said, _ = run(capsys, *command, "--eval")
    assert status == 0
    assert "backward" not in said
    assert run(capsys, *command, "--batch", "0") == (2, "", "fusedsc tune: --batch: it is 0; it must be at least 1\n")
    assert "give 224, 192x256 or 3x32x32" in run(capsys, *command, "--input-size", "1x2x3x4")[2]
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FUSEDSC_CACHE_DIR", str(tmp_path / "file"))
    fusedsc.tuning.reload_choices()
    status, said, complaint = run(capsys, *command)
    assert status == 1
    assert "for this process alone: " in said
    assert "cannot be written: " in complaint
    monkeypatch.setenv("FUSEDSC_TUNE", "0")
    fusedsc.tuning.reload_choices()
    status, said, complaint = run(capsys, *command)
    assert (status, said) == (2, "")
    assert "FUSEDSC_TUNE=0 freezes what is chosen; unset it to measure" in complaint


def test_problems_of_a_gpu_have_memory_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function that holds its tensors itself, too; and only a GPU's problems, as a pass may run on both."""
    tune = sys.modules["fusedsc.tune"]
    assert tune._device_of(lambda: None, (torch.ones(1),)) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert tune._device_of(lambda: None, ()) == torch.device("cuda", 1)
    assert tune._device_for("x=float16[1,8,4,4] channels_last align=64 gpu", torch.device("cuda", 1)).index == 1
    assert tune._device_for("x=float16[1,8,4,4] channels_last align=64", torch.device("cuda", 1)).type == "cpu"


@pytest.mark.gpu_only
def test_a_function_without_inputs_is_tuned_on_its_gpu(store: Path) -> None:
    x = torch.randn(2, 16, 8, 8, device="cuda", requires_grad=True)
    weight = torch.randn(8, 16, 1, 1, device="cuda", requires_grad=True)
    report = fusedsc.tune(lambda: fusedsc.functional.pointwise_conv2d(x, weight), progress=False, budget=5)
    assert any(row.after_us for row in report.problems)
    torch.cuda.synchronize()
