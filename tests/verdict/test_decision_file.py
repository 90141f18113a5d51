"""Decision files: the schema, and one clear line for every mistake."""

from pathlib import Path

import pytest

from fuseledger.errors import DecisionError, DeviceError
from fuseledger.report.decision import (
    DecideDocument,
    DecisionVerdictPart,
    FlipPart,
    MachinePart,
    OptionPart,
)
from fuseledger.verdict.decision_file import (
    DecisionTable,
    OptionTable,
    decide_file,
    read_decision,
)

GOOD = """
title = "t"
sm_count = 132
bandwidth_gbs = 1000

[[option]]
name = "a"
bytes = 2_000_000
grid = 132
on_chip_bytes = 1024

[[option]]
name = "b"
bytes = 1_000_000
grid = 132
on_chip_bytes = 1024
"""


def write(folder: Path, text: str | bytes) -> Path:
    """A file with the text."""
    path = folder / "decision.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_decision_file_is_decided(tmp_path):
    """1 MB less at 1,000 GB/s are 1 µs."""
    decision = decide_file(write(tmp_path, GOOD))
    assert decision.title == "t"
    assert decision.verdict.winner == "b"
    assert decision.verdict.saved_us == pytest.approx(1)


def test_arguments_override_the_file(tmp_path):
    """SMs and bandwidth given by the caller take the place of the file's."""
    decision = decide_file(write(tmp_path, GOOD), sm_count=133, bandwidth_gbs=500)
    assert decision.verdict.choice == "neither"
    assert decision.device.stream_gbs == 500


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grid = 132", "grid = 0", "option[0].grid: must be >= 1"),
        ("grid = 132", "grid = -1", "option[0].grid: must be >= 1"),
        ("grid = 132", "grid = nan", "option[0].grid: expected int, got float"),
        ("grid = 132", "grid = true", "option[0].grid: expected int, got bool"),
        ("grid = 132\n", "", "option[0].grid: missing"),
        ("bytes = 2_000_000", "bytes = -5", "option[0].bytes: must be >= 0"),
        ("bytes = 2_000_000", "bytes = 1.5", "option[0].bytes: expected int, got float"),
        ("on_chip_bytes = 1024", "on_chip_bytes = 0", "option[0].on_chip_bytes: must be >= 1"),
        ("bandwidth_gbs = 1000", "bandwidth_gbs = nan", "bandwidth_gbs: must be > 0"),
        ("bandwidth_gbs = 1000", "bandwidth_gbs = inf", "bandwidth_gbs: must be <"),
        ("bandwidth_gbs = 1000", "bandwidth_gbs = 0", "bandwidth_gbs: must be > 0"),
        ("sm_count = 132", "sm_count = 0", "sm_count: must be >= 1"),
        ("sm_count = 132", "sms = 132", "sms: unknown field"),
        ("grid = 132", "grid = 132\ngrids = 1", "option[0].grids: unknown field (nearest: grid)"),
        ("grid = 132", "grid = 132\ntime_us = nan", "option[0].time_us: must be > 0"),
        ("grid = 132", "grid = 132\nflops = nan", "option[0].flops: must be >= 0"),
        ("grid = 132", 'grid = 132\nchoice = "both"', "option[0].choice: must be 'fuse' or"),
        ('name = "a"', 'name = ""', "option[0].name: must be text of one line, not blank"),
        ('name = "a"', 'name = "x\\u001b[31m"', "option[0].name: must be text of one line"),
        ('name = "a"', 'name = "x\\n"', "option[0].name: must be text of one line"),
        ('name = "a"', 'name = "b"', "option[1].name: 'b' is the name of option[0] already"),
        ("[[option]]", "[[options]]", "options: unknown field (nearest: option)"),
        ('title = "t"', 'title = "t', "not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_naming_file_and_field(tmp_path, old, new, message):
    """Every broken field is named with its file, in a single line."""
    path = write(tmp_path, GOOD.replace(old, new, 1 if old != "[[option]]" else 2))
    with pytest.raises(DecisionError) as caught:
        decide_file(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: {message}")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD[: GOOD.rindex("[[option]]")], "option: one alone decides nothing"),
        ("", "option: missing"),
        ("option = []", "option: add two [[option]] tables"),
        ("option = 3", "option: expected array, got int"),
        (b"title = '\xff'", "not UTF-8 text (byte 9)"),
        ("a = " + "[" * 5000, "not valid TOML"),
        ("#" * (1 << 20) + "\n#", "more than 1 MiB"),
    ],
)
def test_a_file_that_holds_no_decision(tmp_path, text, message):
    """One option, none, no table, no text: the file is named and what is wrong with it."""
    path = write(tmp_path, text)
    with pytest.raises(DecisionError) as caught:
        read_decision(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_file_that_is_not_there(tmp_path):
    """A missing file and a folder are named as such."""
    with pytest.raises(DecisionError, match=r"none\.toml: cannot be read: No such file"):
        read_decision(tmp_path / "none.toml")
    with pytest.raises(DecisionError, match="cannot be read: Is a directory"):
        read_decision(tmp_path)


def test_an_unknown_device_is_named(tmp_path):
    """The file's device must be one of the catalog."""
    with pytest.raises(DeviceError, match="unknown device 'h1000'"):
        decide_file(write(tmp_path, GOOD.replace("sm_count", 'device = "h1000"\nsm_count', 1)))


def test_the_examples_decide_as_their_exercise():
    """The shipped files reproduce the exercise's verdicts."""
    folder = Path(__file__).resolve().parents[2] / "examples/decisions"
    found = {path.stem: decide_file(path).verdict for path in sorted(folder.glob("*.toml"))}
    fused = found["qk-norm-rope-quant"]
    assert (fused.choice, f"{fused.saved_us:.2f}") == ("fuse", "18.63")
    assert found["skinny-gemm"].choice == "split"


def test_neither_comes_with_a_way_out(tmp_path):
    """Grids of 40 on 132 SMs: four parts make 160; 300 KB for 227 KB: half the tile."""
    short = decide_file(write(tmp_path, GOOD.replace("grid = 132", "grid = 40"))).verdict
    assert short.proposal == "b with its work split in 4: a grid of 160 on 132 SMs"
    text = GOOD.replace("on_chip_bytes = 1024", "on_chip_bytes = 307_200")
    full = decide_file(write(tmp_path, text)).verdict
    assert full.proposal == "b with tiles 2 times smaller: 150 KB a block fit 227 KB"


def test_the_clock_flips_with_bandwidth(tmp_path):
    """1 MB more against one launch of 2.44 µs more: equal at 10⁶ B / 2.44 µs = 410 GB/s."""
    text = GOOD.replace('name = "b"', 'name = "b"\nlaunches = 2')
    (flip,) = [f for f in decide_file(write(tmp_path, text)).verdict.flips if f.figure == "GB/s"]
    assert flip.sentence == "a is fastest down to GB/s = 410; at GB/s = 409: b"


def test_the_page_documents_every_field():
    """Each field of a decision file and of the JSON document stands in `docs/decide.md`."""
    page = (Path(__file__).resolve().parents[2] / "docs/decide.md").read_text(encoding="utf-8")
    structs = (
        DecisionTable, OptionTable, DecideDocument, MachinePart, OptionPart, DecisionVerdictPart,
        FlipPart,
    )  # fmt: skip
    fields = {field for struct in structs for field in struct.__struct_fields__} - {"schema"}
    assert {field for field in fields if f"`{field}`" not in page} <= {
        "options",
        "flips",
        "verdict",
    }


def test_the_pages_example_is_a_decision(tmp_path):
    """The file printed in `docs/decide.md` decides as the exercise does."""
    page = (Path(__file__).resolve().parents[2] / "docs/decide.md").read_text(encoding="utf-8")
    text = page.split("```toml\n")[1].split("```")[0]
    verdict = decide_file(write(tmp_path, text)).verdict
    assert (verdict.choice, verdict.account, verdict.paid_bytes) == (
        "split",
        "parallelism",
        67108864,
    )
