"""Reading device files: what a user's own file may say, and what each mistake is told."""

import os
from pathlib import Path

import pytest

from fuseledger.devices import load, names, replace_figures
from fuseledger.errors import DeviceError

HEAD = 'name = "mine"\ntitle = "Mine"\nvendor = "nvidia"\narch = "sm_90"\n'
SMS = '[sm_count]\nvalue = 132\nsource = "counted"\n'


def write(folder: Path, text: str | bytes, name: str = "mine.toml") -> str:
    """Write a device file and return its path."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def message(name_or_path: str) -> str:
    """Return the message of the DeviceError that loading raises, checked to be one line."""
    with pytest.raises(DeviceError) as caught:
        load(name_or_path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_own_file(tmp_path: Path):
    """A user's file gives its figures, and inherits what it leaves out from its architecture."""
    mine = load(write(tmp_path, HEAD + SMS))
    assert (mine.name, mine.sm_count) == ("mine", 132)
    assert mine.shared_memory_per_block_bytes == 227 * 1024
    assert mine.dram_bytes is None


def test_inherited_figures_say_so(tmp_path: Path):
    """The source of an inherited figure names the architecture or vendor it comes from."""
    mine = load(write(tmp_path, HEAD + SMS))
    threads, sector, sms = (
        mine.figure(field) for field in ("threads_per_sm", "sector_bytes", "sm_count")
    )
    assert threads is not None
    assert threads.source.endswith("(inherited from sm_90)")
    assert sector is not None
    assert sector.source.endswith("(inherited from nvidia)")
    assert sms is not None
    assert sms.source == "counted"


def test_own_figures_win(tmp_path: Path):
    """A figure in the file replaces the inherited one, one part of a group at a time."""
    own = '[launch_us.graph]\nvalue = 0.5\nsource = "measured"\n'
    mine = load(write(tmp_path, HEAD + own))
    assert mine.launch_us("graph") == 0.5
    assert mine.launch_us("queued") == load("h200").launch_us("queued")


def test_arch_suffix(tmp_path: Path):
    """An sm_90a device inherits what sm_90 gives, and keeps its own target name."""
    mine = load(write(tmp_path, HEAD.replace("sm_90", "sm_90a")))
    assert mine.arch == "sm_90a"
    assert mine.threads_per_sm == 2048


def test_unlisted_architecture(tmp_path: Path):
    """An architecture that the catalog does not list leaves its limits unknown."""
    mine = load(write(tmp_path, HEAD.replace("sm_90", "sm_130")))
    assert mine.threads_per_sm is None
    assert mine.warp_size == 32


def test_whole_numbers_serve_as_rates(tmp_path: Path):
    """A rate may be written without a decimal point."""
    text = HEAD + '[dram_bandwidth_gbs]\nvalue = 3352\nsource = "datasheet"\n'
    bandwidth = load(write(tmp_path, text)).dram_bandwidth_gbs
    assert (bandwidth, type(bandwidth)) == (3352.0, float)


def test_edited_file_is_read_again(tmp_path: Path):
    """A user's file is read at every load, so an edit shows."""
    path = write(tmp_path, HEAD + SMS)
    assert load(path).sm_count == 132
    write(tmp_path, HEAD + SMS.replace("132", "78"))
    assert load(path).sm_count == 78


def figure_text(field: str, value: str) -> str:
    """Return a device file with one figure of this value."""
    return f'{HEAD}[{field}]\nvalue = {value}\nsource = "measured"\n'


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("sm_count", "0", "sm_count.value: expected `int` >= 1"),
        ("sm_count", "-1", "sm_count.value: expected `int` >= 1"),
        ("sm_count", "132.0", "sm_count.value: expected `int`, got `float`"),
        ("sm_count", "true", "sm_count.value: expected `int`, got `bool`"),
        ("sm_count", '"132"', "sm_count.value: expected `int`, got `str`"),
        ("sm_count", "[132]", "sm_count.value: expected `int`, got `array`"),
        ("sm_count", "1979-05-27", "sm_count.value: expected `int`, got `date`"),
        ("sm_count", "1" + "0" * 30, "sm_count.value: expected `int` <"),
        ("clock_mhz", "nan", "clock_mhz.value: expected `float` > 0.0"),
        ("clock_mhz", "inf", "clock_mhz.value: expected `float` < 1e+18"),
        ("clock_mhz", "-inf", "clock_mhz.value: expected `float` > 0.0"),
        ("clock_mhz", "-1.5", "clock_mhz.value: expected `float` > 0.0"),
        ("clock_mhz", "0.0", "clock_mhz.value: expected `float` > 0.0"),
        ("clock_mhz", "false", "clock_mhz.value: expected `float`, got `bool`"),
        ("clock_mhz", "1" + "0" * 400, "clock_mhz.value: number out of range"),
        ("stream_efficiency", "1.2", "stream_efficiency.value: expected `float` <= 1.0"),
        ("peak_tflops.fma_fp32", "nan", "peak_tflops.fma_fp32.value: expected `float` > 0.0"),
        ("peak_tflops.fma_fp31", "1.0", "peak_tflops.fma_fp31: unknown field (nearest: "),
        ("launch_us.eager", '"5"', "launch_us.eager.value: expected `float`, got `str`"),
        ("sm_cuont", "132", "sm_cuont: unknown field (nearest: sm_count"),
        ("figures.sm_count", "132", "figures: unknown field"),
        ('"two\\nlines"', "1", "two lines: unknown field"),
    ],
)
def test_wrong_figure(tmp_path: Path, field: str, value: str, says: str):
    """A wrong figure is one line: the file, the dotted field, and what it should hold."""
    path = write(tmp_path, figure_text(field, value))
    assert message(path).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name: missing"),
        (HEAD.replace('name = "mine"\n', ""), "name: missing"),
        (HEAD.replace('"mine"', '" "'), "name: expected text that is not blank"),
        (HEAD.replace('"mine"', "7"), "name: expected `str`, got `int`"),
        (
            HEAD.replace("nvidia", "intel"),
            "vendor: expected one of nvidia, amd, textbook, got 'intel'",
        ),
        (HEAD.replace("sm_90", "sm90"), "arch: expected an architecture such as `sm_90`"),
        (HEAD.replace("sm_90", "../sm_90"), "arch: expected an architecture such as `sm_90`"),
        (HEAD + "[sm_count]\nvalue = 132\n", "sm_count.source: missing"),
        (HEAD + '[sm_count]\nsource = "x"\n', "sm_count.value: missing"),
        (HEAD + SMS.replace("counted", ""), "sm_count.source: expected text that is not blank"),
        (HEAD + SMS + "unit = 1\n", "sm_count.unit: unknown field"),
        (HEAD + "sm_count = 132\n", "sm_count: expected a table with `value` and `source`, got"),
        (HEAD + "launch_us = 5\n", "launch_us: expected a table of figures, got `int`"),
        (HEAD + "[sm_count\n", "not valid TOML: "),
        (HEAD + HEAD, "not valid TOML: "),
        (HEAD + "x = " + "[" * 5000, "not valid TOML: "),
        (HEAD + "x = " + "9" * 5000, "not valid TOML: "),
        (HEAD.encode() + b'x = "\xff"\n', "not UTF-8 text (byte "),
        (HEAD.encode("utf-16"), "not UTF-8 text (byte 0)"),
        (HEAD + "#" * (1 << 20), "more than 1 MiB"),
    ],
)
def test_wrong_file(tmp_path: Path, text: str | bytes, says: str):
    """A file that breaks the schema, TOML or UTF-8 is one line naming the file and the place."""
    path = write(tmp_path, text)
    assert message(path).startswith(f"{path}: {says}")


def test_missing_file(tmp_path: Path):
    """A file that is not there is named."""
    path = tmp_path / "absent.toml"
    assert message(str(path)) == f"{path}: no such file"


def test_folder(tmp_path: Path):
    """A folder whose name ends in .toml is no device file."""
    path = tmp_path / "folder.toml"
    path.mkdir()
    assert message(str(path)) == f"{path}: not a file"


def test_pipe(tmp_path: Path):
    """A named pipe is refused instead of waited for."""
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    assert message(str(path)) == f"{path}: not a file"


def test_overlong_name():
    """A path that the file system refuses is one line too."""
    assert "cannot be read" in message("x" * 5000 + ".toml")


@pytest.mark.parametrize(
    ("name", "near"),
    [("h100", "h100-sxm"), ("H200", "h200"), ("a100", "a100-sxm-80"), ("5090", "rtx-5090")],
)
def test_unknown_name(name: str, near: str):
    """An unknown name is told the nearest ones and how to list them all."""
    text = message(name)
    assert text.startswith(f"unknown device {name!r} (nearest: ")
    assert near in text
    assert "`fuseledger devices`" in text


@pytest.mark.parametrize("name", ["", "zzz", "_sm_90", "../catalog/h200", "h200.TOML"])
def test_names_are_not_paths(name: str):
    """Only catalog names and .toml files load: no shared file, no way around by a path."""
    assert message(name).startswith(f"unknown device {name!r}")


def test_names():
    """The catalog lists devices, sorted, and not the files that they share."""
    assert names() == sorted(names())
    assert {"h100-sxm", "mi300x", "textbook"} <= set(names())
    assert not [name for name in names() if name.startswith("_")]


def test_replaced_figures():
    """A figure set by the user replaces the catalog's, with a source that says so."""
    mine = replace_figures(load("h100-sxm"), sm_count=78, **{"launch_us.graph": 0.7})
    assert (mine.sm_count, mine.launch_us("graph")) == (78, 0.7)
    sms = mine.figure("sm_count")
    assert sms is not None
    assert sms.source == "set on the command line"
    assert load("h100-sxm").sm_count == 132


def test_replaced_bandwidth_is_the_one_used():
    """A bandwidth set by the user is priced whole, in place of a measured stream."""
    mine = replace_figures(load("h100-sxm"), dram_bandwidth_gbs=4502.4)
    assert mine.stream_gbs == 4502.4
    assert mine.dram_measured_gbs is None


def test_replaced_bandwidth_with_its_own_efficiency():
    """A user who sets a stream or an efficiency beside the bandwidth has that one used."""
    h100 = load("h100-sxm")
    assert (
        replace_figures(h100, dram_bandwidth_gbs=4000.0, stream_efficiency=0.9).stream_gbs == 3600
    )
    assert (
        replace_figures(h100, dram_bandwidth_gbs=4000.0, dram_measured_gbs=3.5e3).stream_gbs == 3500
    )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("sm_count", 0, "device h200: sm_count.value: expected `int` >= 1"),
        ("sm_count", 1.5, "device h200: sm_count.value: expected `int`, got `float`"),
        ("l2_bandwidth_gbs", float("nan"), "device h200: l2_bandwidth_gbs.value: expected"),
        ("bandwidth", 1.0, "no device has a figure named 'bandwidth' (nearest: "),
        ("launch_us", 1.0, "no device has a figure named 'launch_us'"),
    ],
)
def test_wrong_replacement(field: str, value: float, says: str):
    """A replacement is held to the same schema as a file."""
    with pytest.raises(DeviceError) as caught:
        replace_figures(load("h200"), **{field: value})
    assert str(caught.value).startswith(says)
