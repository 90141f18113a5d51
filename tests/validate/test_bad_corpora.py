"""Corpora that cannot be read: one line on stderr naming file and field, exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseledger.cli.main import run

FAMILIES = """## chain  (fuse)

- Unfused: two kernels. Kernels `2`; bytes `4*s*T`
- Fused: one kernel. Kernels `1`; bytes `2*s*T`
"""
RECORD: dict[str, Any] = {
    "id": "one", "family": "chain", "device": "h100-sxm", "gain": 2.0,
    "params": {"tokens": 4096, "dtype": "float16"},
    "options": [{"name": "unfused", "time_us": 20.0}, {"name": "fused", "time_us": 10.0}],
}  # fmt: skip
SPLIT = {
    **RECORD, "family": "gemm_split_k",
    "params": {"m": 64, "n": 64, "k": 8192, "dtype": "float16"},
}  # fmt: skip
HEAD = "sizes,level,problem_id,name,gpu,host,torch,mode,mean_ms\n"
TIMED = "v0,1,1,a,NVIDIA L40S,here,2.5.0,eager,"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """The one line with which `validate` refuses a corpus."""

    def ask(path: Path, *options: str) -> str:
        code = run(["validate", str(path), "--quiet", *options])
        said = capsys.readouterr()
        assert (code, said.out) == (2, ""), said
        (line,) = said.err.splitlines()
        assert "Error(" not in line
        return line

    return ask


def records(folder: Path, *lines: object, families: str = FAMILIES) -> Path:
    """A corpus of decisions; what is no text is written as JSON."""
    (folder / "families.md").write_text(families)
    path = folder / "dev.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "dev.jsonl:1: no decision record"),
        ([1], "dev.jsonl:1: no decision record: Expected `object`"),
        ({**RECORD, "options": RECORD["options"][:1]}, "length >= 2 - at `$.options`"),
        ({**RECORD, "params": [1]}, "at `$.params`"),
        ({k: v for k, v in RECORD.items() if k != "id"}, "missing required field `id`"),
        ({**RECORD, "gain": "twice"}, "at `$.gain`"),
        *(
            ({**RECORD, "options": [RECORD["options"][0], {"name": "fused", "time_us": time}]}, at)
            for time, at in (
                (0, "> 0.0 - at `$.options[1].time_us`"),
                (-1.5, "> 0.0 - at `$.options[1].time_us`"),
                (float("nan"), "dev.jsonl:1: no decision record: JSON is malformed"),
                ("fast", "at `$.options[1].time_us`"),
                (None, "at `$.options[1].time_us`"),
            )
        ),
        ({**RECORD, "params": {"tokens": -8, "dtype": "float16"}}, "4*s*T is -64 bytes"),
        ({**SPLIT, "params": {"m": 64, "n": 64, "dtype": "float16"}}, "params.k None is no whole"),
        ({**SPLIT, "params": {**SPLIT["params"], "m": 0}}, "dev.jsonl:1: gemm_split_k: params.m 0"),
        ({**SPLIT, "params": {**SPLIT["params"], "m": 2**40}}, "dev.jsonl:1: gemm_split_k: gemm"),
        ({**SPLIT, "params": {**SPLIT["params"], "dtype": "int4"}}, "params.dtype int4 is none of"),
    ],
)
def test_a_wrong_record_is_one_line(tmp_path: Path, refused: Any, line: object, words: str) -> None:
    """File, line and field, whether the record is fitted or priced."""
    assert words in refused(records(tmp_path, line))


def test_a_record_that_comes_twice_is_refused(tmp_path: Path, refused: Any) -> None:
    """Pasted twice, a decision would count twice; both lines are named."""
    path = records(tmp_path, RECORD, {**RECORD, "id": "two"}, RECORD)
    assert "dev.jsonl:3: id 'one': the same record as line 1" in refused(path)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("T/0", "T/0: float division by zero"), ("9**9**9**9", "9**9**9**9: "),
        ("2*", "2* is no arithmetic"), ("1e999", "1e999 is inf"), ("(0-T)**0.5", "(0-T)**0.5: "),
        ("ceil()", "ceil() is no arithmetic"), ("1<T<3", "1 < T < 3 is no arithmetic"),
    ],
)  # fmt: skip
def test_a_wrong_formula_is_one_line(
    tmp_path: Path, refused: Any, formula: str, words: str
) -> None:
    """The record that needs it, its family and the formula."""
    path = records(tmp_path, RECORD, families=FAMILIES.replace("4*s*T", formula))
    assert f"dev.jsonl:1: chain: {words}" in refused(path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"device": "abacus"}, "device abacus is not in the catalog"),
        ({"params": {"dtype": "float16"}}, "family chain: formula needs T"),
        ({"params": {"tokens": 8, "dtype": "int4"}}, "dtype int4 has no known size"),
    ],
)
def test_a_corpus_of_which_nothing_can_be_priced_says_why(
    tmp_path: Path, refused: Any, changed: dict[str, Any], reason: str
) -> None:
    """The reason of each record and how many have it."""
    words = refused(records(tmp_path, {**RECORD, **changed}))
    assert f"no row can be priced: {reason}" in words.replace("family chain: dtype", "dtype")
    assert words.endswith("(1)")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "times.csv: has no column sizes"),
        (HEAD, "no row can be priced: it has none"),
        (HEAD.replace("torch,", ""), "times.csv: has no column torch"),
        (HEAD + "v0,1,1,a\n", "times.csv:2: the row ends before its gpu"),
        (HEAD + "\n" + TIMED + "0\n", "times.csv:3: mean_ms '0' is no time above 0"),
        (HEAD + TIMED + "nan\n", "times.csv:2: mean_ms 'nan' is no time above 0"),
        (HEAD + TIMED + "inf\n", "times.csv:2: mean_ms 'inf' is no time above 0"),
        (HEAD + TIMED.replace(",1,a", ",**,a") + "1\n", "no graph of v0 level 1 problem **"),
        (HEAD + TIMED + "1" * 200_000 + "\n", "times.csv:2: not CSV (field larger than"),
        (b"\xff\xfe", "times.csv: not UTF-8 text"),
    ],
)
def test_a_wrong_table_of_kernelbench_is_one_line(
    tmp_path: Path, refused: Any, content: str | bytes, words: str
) -> None:
    """The file and, where there is one, the line and the field."""
    raw = content.encode() if isinstance(content, str) else content
    (tmp_path / "times.csv").write_bytes(raw)
    assert words in refused(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("source,device,time_us\n\nrelu(x[8]),h100-sxm,fast\n", "t.csv:3: time_us 'fast' is no"),
        ("source,device,time_us\nrelu(x[8])\n", "t.csv:2: the row ends before its device"),
        ("source,device,time_us,mode\nrelu(x[8]),h100-sxm,1,slow\n", "t.csv:2: mode 'slow' is"),
        ("source,device,time_us\nrelu(x[8]),abacus,1\n", "device abacus is not in the catalog (1)"),
        ("source,device,time_us\n,h100-sxm,1\n", "t.csv: no row can be priced"),
    ],
)
def test_a_wrong_csv_is_one_line(tmp_path: Path, refused: Any, content: str, words: str) -> None:
    """The file's own line numbers, blank lines counted."""
    (tmp_path / "t.csv").write_text(content)
    assert words in refused(tmp_path / "t.csv")


def test_there_is_no_fit_to_write_of_what_is_not_fitted(tmp_path: Path, refused: Any) -> None:
    """`--write-fit` on a CSV says so, and writes nothing."""
    table, fit = tmp_path / "t.csv", tmp_path / "fit.json"
    table.write_text('source,device,time_us\n"relu(x[64,64])",h100-sxm,3\n')
    assert "--write-fit: nothing is fitted on" in refused(table, "--write-fit", str(fit))
    assert not fit.exists()
