"""Rows of every kind of source: what cannot be read costs one row, what cannot be opened says what to do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars
import pytest

from recipes.swe import datasets_fields
from recipes.swe.dataset_types import BadRow, SourceTask
from recipes.swe.datasets import ADAPTERS, guess_adapter, read_tasks
from recipes.swe.datasets_custom import to_row
from recipes.swe.datasets_fields import is_key, safe_key
from recipes.swe.datasets_profiles import Profiles, load_profiles
from recipes.swe.datasets_read import DataSource, SourceError, Unreadable, read_rows

PATCH = "diff --git a/src/x.py b/src/x.py\n--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
ROW: dict[str, Any] = {
    "instance_id": "one-1",
    "problem_statement": "It is wrong.",
    "patch": PATCH,
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
    "PASS_TO_PASS": ["tests/test_x.py::test_b"],
    "build": {"source": {"kind": "dir", "location": "/somewhere"}, "python": "3.12"},
}


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return load_profiles()


def write(path: Path, *rows: Any) -> DataSource:
    lines = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return DataSource(str(path))


def read(source: DataSource, profiles: Profiles, adapter: str = "auto") -> list[SourceTask | BadRow]:
    return list(read_tasks(source, profiles, adapter=adapter))


def one(tmp_path: Path, profiles: Profiles, **changes: Any) -> SourceTask | BadRow:
    (found,) = read(write(tmp_path / "t.jsonl", {**ROW, **changes}), profiles, "custom")
    return found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"problem_statement": None}, "problem_statement is missing"),
        ({"problem_statement": " \n"}, "problem_statement is empty"),
        ({"problem_statement": "\ud800"}, "holds a character that no file can"),
        ({"instance_id": 7}, "instance_id is no text but int"),
        ({"patch": None}, "patch is empty"),
        ({"patch": "hello"}, "patch is no git patch"),
        ({"patch": PATCH + "+b\n"}, "patch is no git patch"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS is text, but no JSON list"),
        ({"FAIL_TO_PASS": '{"a": 1}'}, "FAIL_TO_PASS is no list of texts"),
        ({"PASS_TO_PASS": [None]}, "PASS_TO_PASS is no list of texts"),
        ({"timeout_s": 0}, "timeout_s is not above 0"),
        ({"timeout_s": float("inf")}, "timeout_s is not above 0"),
        ({"timeout_s": True}, "timeout_s is no number"),
        ({"build": None}, "build is missing"),
        ({"build": {"python": "3.12"}}, "build lacks source"),
        ({"build": {**ROW["build"], "python": 3.1}}, "python is no text; put versions in quotes"),
        ({"build": {**ROW["build"], "pyhton": "3"}}, "unknown pyhton"),
    ],
)
def test_a_row_that_is_no_task_says_why(
    tmp_path: Path, profiles: Profiles, changes: dict[str, Any], reason: str
) -> None:
    found = one(tmp_path, profiles, **changes)
    assert isinstance(found, BadRow) and reason in found.reason and "\n" not in found.reason


def test_the_rest_goes_on_after_bad_rows(tmp_path: Path, profiles: Profiles) -> None:
    source = write(
        tmp_path / "t.jsonl",
        b"{",
        b'{"instance_id": "\xff"}',
        [1],
        ROW,
        b"",
        {**ROW, "patch": None, "instance_id": "bad"},
        ROW,
        b"[" * 100_000,
        {**ROW, "instance_id": "two"},
    )
    found = read(source, profiles)
    assert [item.instance_id for item in found if isinstance(item, SourceTask)] == ["one-1", "two"]
    bad = [(item.row_id, item.position, item.reason) for item in found if isinstance(item, BadRow)]
    assert [row_id for row_id, _, _ in bad] == ["row 0", "row 1", "row 2", "bad", "one-1", "row 6"]
    assert "not JSON" in bad[0][2] and "not UTF-8 at byte" in bad[1][2] and "not list" in bad[2][2]
    assert bad[4][1:] == (5, "its id was already that of row 3")


def test_forms_of_the_same_thing(tmp_path: Path, profiles: Profiles) -> None:
    plain = one(tmp_path, profiles)
    assert isinstance(plain, SourceTask)
    for changes in (
        {"FAIL_TO_PASS": json.dumps(ROW["FAIL_TO_PASS"]), "PASS_TO_PASS": '["tests/test_x.py::test_b"]'},
        {"patch": PATCH.replace("\n", "\r\n"), "problem_statement": "It is wrong."},
        {"patch": "\n" + PATCH.rstrip("\n")},
        {"test_patch": None, "bug_patch": "", "targets": None, "image_name": None},
        {"build": json.dumps(ROW["build"])},
        {"PASS_TO_PASS": ["tests/test_x.py::test_b", "tests/test_x.py::test_a", "tests/test_x.py::test_b"]},
    ):
        assert one(tmp_path, profiles, **changes) == plain
    assert one(tmp_path, profiles, PASS_TO_PASS=None) != plain


def test_line_ends_of_the_patched_files_stay(tmp_path: Path, profiles: Profiles) -> None:
    patch = PATCH.replace("-a = 1\n+a = 2\n", "-a = 1\r\n+a = 2\r\n")
    found = one(tmp_path, profiles, patch=patch)
    assert isinstance(found, SourceTask) and found.gold_patch == patch


def test_a_patch_of_ten_megabytes(
    tmp_path: Path, profiles: Profiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = 200_000
    body = "".join(f"+line {number} {'x' * 40}\n" for number in range(lines))
    head = "diff --git a/big.py b/big.py\nnew file mode 100644\n--- /dev/null\n+++ b/big.py\n"
    patch = f"{head}@@ -0,0 +1,{lines} @@\n{body}"
    assert len(patch) > 10 << 20
    found = one(tmp_path, profiles, patch=patch)
    assert isinstance(found, SourceTask) and found.gold_patch == patch
    monkeypatch.setattr(datasets_fields, "MAX_PATCH_BYTES", 8 << 20)
    over = one(tmp_path, profiles, patch=patch)
    assert isinstance(over, BadRow) and "MiB, more than 8" in over.reason


def test_names_of_files_are_safe_and_each_its_own() -> None:
    assert safe_key("django__django-11099") == "django__django-11099"
    odd = [
        "a b",
        "a/b",
        "a-b",
        "../b",
        "..",
        ".",
        "-x",
        "",
        "é",
        "e\u0301",
        "a\0b",
        "~",
        "x" * 300,
        "x" * 301,
        "a b~",
    ]
    keys = [safe_key(text) for text in odd]
    assert len(set(keys)) == len(odd)
    for key in keys:
        assert key == Path(key).name and not key.startswith((".", "-")) and key.isascii()
        assert len(key) < 130 and not any(letter.isspace() or letter == "\0" for letter in key)
    assert all(map(is_key, keys)) and not any(map(is_key, ("", "a b", "~", "a~b", "../a~" + "0" * 16)))


def test_ids_with_spaces_slashes_and_letters_of_any_script(tmp_path: Path, profiles: Profiles) -> None:
    names = ["a/b c", "a/b  c", "日本/語", "x" * 200]
    source = write(tmp_path / "t.jsonl", *({**ROW, "instance_id": name} for name in names))
    found = [item for item in read(source, profiles) if isinstance(item, SourceTask)]
    assert [item.instance_id for item in found] == names
    assert len({item.env_key for item in found}) == len(names)


@pytest.mark.parametrize("form", ["file", "folder", "split"])
def test_parquet(tmp_path: Path, profiles: Profiles, form: str) -> None:
    rows = [{**ROW, "instance_id": f"id {number}", "extra": None} for number in range(600)]
    rows[3]["problem_statement"] = None
    path = tmp_path / "data" / "test-00000-of-00001.parquet"
    path.parent.mkdir()
    polars.DataFrame(rows).write_parquet(path)
    if form != "file":
        polars.DataFrame(rows[:1]).write_parquet(path.with_name("dev-00000-of-00001.parquet"))
    source = DataSource(
        str(path if form == "file" else tmp_path), split="test" if form != "file" else "train"
    )
    found = read(source, profiles)
    assert len(found) == 600 and isinstance(found[3], BadRow)
    assert found[4] == read(write(tmp_path / "t.jsonl", rows[4]), profiles)[0]
    if form == "split":
        with pytest.raises(SourceError, match="no split 'train', but dev, test"):
            read(DataSource(str(tmp_path)), profiles)


def test_a_list_in_one_json_file(tmp_path: Path, profiles: Profiles) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([ROW, 3]))
    task, bad = read(DataSource(str(path)), profiles)
    assert isinstance(task, SourceTask) and isinstance(bad, BadRow)
    path.write_text(json.dumps(ROW))
    with pytest.raises(SourceError, match=r"no list of rows; for JSON lines name it \.jsonl"):
        read(DataSource(str(path)), profiles)


def test_what_cannot_be_opened_says_so(tmp_path: Path, profiles: Profiles) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not")
    (tmp_path / "empty.jsonl").write_text("\n{\n")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "none").mkdir()
    for name, message in (
        ("missing.jsonl", "does not exist"),
        ("broken.parquet", "is no parquet file"),
        ("empty.jsonl", "holds no row that can be read"),
        ("notes.txt", "neither a .jsonl"),
        ("none", "holds no parquet files"),
        ("no/such/thing", "neither a file that exists nor an id of the hub"),
    ):
        path = name if "/" in name else str(tmp_path / name)
        with pytest.raises(SourceError, match=message) as caught:
            read(DataSource(path), profiles)
        assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match="no adapter is named swebench; there are auto, swe_smith"):
        read(write(tmp_path / "t.jsonl", ROW), profiles, "swebench")
    with pytest.raises(SourceError, match="no adapter knows rows with the fields a, b"):
        read(write(tmp_path / "t.jsonl", {"a": 1, "b": 2}), profiles)


def test_the_hub_is_asked_only_by_name_and_says_what_to_do_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match="`datasets` is not installed: install the extra `cpu`"):
        read_rows(DataSource("owner/name"))


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Hub:
        @staticmethod
        def load_dataset(path: str, **options: Any) -> Any:
            asked.append((path, options))
            if path == "away/away":
                raise ConnectionError("Couldn't reach 'away/away' on the Hub\n(offline)")
            return iter([ROW, 3])

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    rows = list(read_rows(DataSource("owner/name", "test", "abc")))
    assert rows[0] == ROW and isinstance(rows[1], Unreadable)
    assert asked == [("owner/name", {"split": "test", "revision": "abc", "streaming": True})]
    with pytest.raises(
        SourceError, match=r"cannot be had from the hub: .*\(offline\); download it"
    ) as caught:
        read_rows(DataSource("away/away"))
    assert "\n" not in str(caught.value)


def test_nothing_heavy_is_imported_for_files() -> None:
    code = "import sys, recipes.swe.datasets; print({'datasets', 'torch', 'skyrl', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_specs_come_back_as_they_went(tmp_path: Path, profiles: Profiles) -> None:
    task = one(
        tmp_path,
        profiles,
        bug_patch=PATCH,
        test_patch=PATCH.replace("src/x.py", "tests/test_x.py"),
        targets=["tests/test_x.py"],
        timeout_s=7,
        env_key="shared key",
        build={**ROW["build"], "variables": {"A": "b"}, "packages": ["x==1"], "plugins": False},
    )
    assert isinstance(task, SourceTask)
    (again,) = read(write(tmp_path / "again.jsonl", to_row(task)), profiles)
    assert again == task


def test_forms_are_known_by_their_fields() -> None:
    smith = dict.fromkeys(("instance_id", "repo", "patch", "FAIL_TO_PASS", "image_name"), "")
    bench = dict.fromkeys(("instance_id", "repo", "base_commit", "version", "environment_setup_commit"), "")
    gym = {name: "" for name in bench if name != "environment_setup_commit"}
    assert guess_adapter(smith) == "swe_smith"
    assert guess_adapter(bench) == "swe_bench"
    assert guess_adapter(gym) == "swe_gym"
    assert guess_adapter({**bench, "install_config": {}, "image_name": ""}) == "swe_rebench"
    assert guess_adapter({"repo_name": "", "parsed_commit_content": ""}) == "r2e_gym"
    assert guess_adapter(ROW) == "custom"
    assert set(ADAPTERS) >= {"swe_smith", "swe_bench", "swe_gym", "swe_rebench", "r2e_gym", "custom"}
