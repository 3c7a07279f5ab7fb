"""What is lost without a kernel, of rows with known times."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import without
from benchmarks.rows import journal

FORWARD, GRAD_INPUT = "depthwise_conv2d.forward", "depthwise_conv2d.grad_input"


def rows_of(role, *problems):
    return [journal.Row(role, f"problem {i}", "fake", "abc", "", us) for i, us in enumerate(problems)]


def by_kernel(found, role=FORWARD):
    return {loss.kernel: loss for loss in found if loss.role == role}


ROWS = rows_of(
    FORWARD,
    {"wide/rows=1": 12.0, "wide/rows=2": 10.0, "narrow": 15.0, "spare": 10.1},
    {"wide/rows=2": 10.0, "narrow": 10.4, "spare": 10.15},
    {"narrow": 8.0, "spare": 10.0},
    {"alone/rows=1": 8.0, "alone/rows=2": 9.0},
)


def test_each_kernel_against_the_fastest_of_the_others():
    found = by_kernel(without.losses(ROWS))
    assert {kernel: (loss.problems, loss.wins, loss.only) for kernel, loss in found.items()} == {
        "narrow": (3, 1, 0),
        "spare": (3, 0, 0),
        "wide": (2, 0, 0),  # by 1% and by 1.5%
        "alone": (1, 0, 1),
    }
    assert list(found["narrow"].ratios) == pytest.approx([0, 0, 0.25])
    assert list(found["wide"].ratios) == pytest.approx([0.01, 0.015])
    assert found["narrow"].cells()[5:8] == ("8.3%", "24.5%", "25.0%")


def test_the_rule():
    found = by_kernel(without.losses(ROWS))
    assert {kernel: loss.why_not for kernel, loss in found.items()} == {
        "narrow": "mean above 1%, worst above 5%",
        "spare": "",
        "wide": "mean above 1%",
        "alone": "the only one of 1",
    }
    often = [{"good": 10.0, "other": 10.0}] * 99 + [{"good": 10.0, "other": 10.6}]
    assert by_kernel(without.losses(rows_of(FORWARD, *often)))["good"].why_not == "worst above 5%"


def test_without_kernels_that_a_gpu_does_not_have():
    found = by_kernel(without.losses(ROWS, ["wide*", "al?ne"]))
    assert list(found) == ["narrow", "spare"]
    assert list(found["spare"].ratios) == pytest.approx([0.485148, 0.024631, 0], abs=1e-6)
    assert without.may_go(found.values()) == []


def test_a_kernel_of_several_roles_may_go_where_it_may_in_each():
    """The forward pass's, which computes input gradients, too."""
    spare = rows_of(GRAD_INPUT, {"forward_spare": 10.0, "narrow": 10.0})
    assert without.may_go(without.losses(ROWS + spare)) == [("depthwise_conv2d", "spare", ["forward", "grad_input"])]
    needed = rows_of(GRAD_INPUT, {"forward_spare": 10.0, "narrow": 10.6})
    assert without.may_go(without.losses(ROWS + needed)) == []


def test_command(tmp_path, capsys):
    rows: journal.Rows = {}
    for row in ROWS:
        journal.add(rows, row)
    journal.write_rows(tmp_path / "fake", rows)
    assert without.main(["fake", "--rows", str(tmp_path), "--exclude", "wide"]) == 0
    heading, marks, *lines, empty, last = capsys.readouterr().out.splitlines()
    assert heading.startswith("| role | kernel | problems |")
    assert marks == "| - | - | -: | -: | -: | -: | -: | -: | - |"
    assert lines[0] == f"| {FORWARD} | narrow | 3 | 1 | 0 | 8.3% | 24.5% | 25.0% | no: mean above 1%, worst above 5% |"
    assert lines[2] == f"| {FORWARD} | alone | 1 | 0 | 1 |  |  |  | no: the only one of 1 |"
    assert (empty, last) == ("", "May go in each of its roles: none.")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none"], "none: there is no such folder"),
        (["fake", "--exclude", "*"], "no kernel is left of these rows; --role and --exclude say which count"),
        (["fake", "--role", "magic"], "no kernel is left of these rows"),
    ],
)
def test_nothing_to_say(tmp_path, capsys, arguments, sentence):
    journal.write_rows(tmp_path / "fake", {row.key: row for row in ROWS})
    assert without.main([*arguments, "--rows", str(tmp_path)]) == 1
    assert sentence in capsys.readouterr().err
