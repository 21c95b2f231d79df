"""The store: what is there is not run again, a line that a crash has cut off is ignored, and settings can be added later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.store import RESULTS, Store, code, existing, open_store


def test_work_is_done_once_and_survives_a_crash(tmp_path: Path) -> None:
    path, done = tmp_path / "deep" / "s-cpu.jsonl", list[str]()

    def work(name: str) -> dict[str, Any]:
        done.append(name)
        return {"score": 0.5, "sizes": (3, 4)}

    first = Store(path)
    for name in ("a", "b", "a"):
        assert first(lambda name=name: work(name), name=name) == {"score": 0.5, "sizes": [3, 4]}  # type: ignore[misc]
    with path.open("a") as file:
        file.write('{"name": "c", "val')  # the line a crash cuts off
    again = Store(path)
    assert [record.fields for record in again.records] == [{"name": "a"}, {"name": "b"}]
    again(lambda: work("b"), name="b")
    again(lambda: work("c"), name="c")
    assert done == ["a", "b", "c"]
    assert [record.fields["name"] for record in Store(path).records] == ["a", "b", "c"]


def test_work_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    store = Store(tmp_path / "s.jsonl")
    with pytest.raises(KeyboardInterrupt):
        store(interrupted, name="a")
    assert not store.path.exists()


def test_of_two_records_with_the_same_name_the_later_one_is_used(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.jsonl")
    for value in (1, 2):
        store.add({"score": value}, name="a", sizes=(1, 2))
    for each in (store, Store(store.path)):
        assert each.values(name="a") == [{"score": 2}]
        assert each.get(sizes=[1, 2]) == {"score": 2}
    assert len(store.path.read_text().splitlines()) == 2  # lines are only ever added


def test_a_field_that_a_record_lacks_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    Store(path).add({"score": 1}, name="a")
    later = Store(path, defaults={"batch": 100})
    assert later.get(name="a", batch=100) == {"score": 1}
    assert later.get(name="a", batch=500) is None
    assert later.get(name="a", stage=None) == {"score": 1}
    later.add({"score": 2}, name="a", batch=500)
    later.add({"score": 3}, name="a", batch=100)
    assert later.values(name="a") == [{"score": 3}, {"score": 2}]
    assert later.find(name="b") == []


def test_a_line_that_is_no_record_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    whole = {"name": "a", "value": {}, "machine": {}}
    for wrong in ("{", "3", '{"name": "a"}'):
        path.write_text(json.dumps(whole) + "\n" + wrong + "\n")
        with pytest.raises(ValueError, match=r"line 2 of .*s.jsonl is no record .*: remove the line"):
            Store(path)


def test_progress_prints_what_was_done(tmp_path: Path) -> None:
    told: list[str] = []
    store = open_store(tmp_path, "nnls", tell=told.append)
    for _ in range(2):
        store(lambda: {"x": 1}, name="badly conditioned", rows=20)
    assert [line.rsplit(":", 1)[0] for line in told] == ["nnls-cpu: badly conditioned, 20"]
    assert [each.path.name for each in existing(tmp_path, "nnls")] == ["nnls-cpu.jsonl"]


def test_a_record_says_by_which_code_it_was_made(tmp_path: Path) -> None:
    open_store(tmp_path, "nnls").add({"x": 1}, rows=20)
    assert existing(tmp_path, "nnls")[0].records[0].machine["code"] == code()
    seen = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        package = tmp_path / name / text
        package.mkdir(parents=True)
        (package / name).write_text(text)
        seen.add(code(package))
        (package / "notes.txt").write_text("no code")
        assert code.__wrapped__(package) in seen
    assert len(seen) == 3


def test_the_repository_s_records_can_be_read() -> None:
    paths = sorted(RESULTS.glob("*.jsonl"))
    assert sum(len(Store(path).records) for path in paths) > 4000
    for path in paths:
        assert len(Store(path).records) == path.read_bytes().count(b"\n")
    assert len(list(RESULTS.iterdir())) < 60


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    program = "import sys; from pathlib import Path; from experiments.store import Store\n"
    program += "store = Store(Path(sys.argv[1]))\nfor i in range(100): store.add({}, who=sys.argv[2], i=i)"
    runs = [subprocess.Popen([sys.executable, "-c", program, str(path), who], cwd=RESULTS.parent) for who in "ab"]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert len(Store(path).records) == 200
