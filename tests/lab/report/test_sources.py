"""Results are found by what they say they are; what is wrong with a file is said in one line."""

import json
import re

import pytest

from mabert_lab.report.found import find
from tests.lab.report.rows import efficiency, raw
from tests.lab.report.studies import ENVIRONMENT, row, study

ROWS = [row("MMTMMTMMTMMT", {"cola": [0.1, 0.2]}, "MMTMMTMMTMMT")]
EFFICIENCY = efficiency([raw("latency", "bert", 128, 5.0)], **ENVIRONMENT)


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_folders_are_looked_through_once_and_other_kinds_passed_over(put, tmp_path):
    path = put("conversion/b/study.json", study(ROWS))
    put("a/models.json", EFFICIENCY)
    put("a/config.json", {"hidden_size": 3})
    put("a/list.json", [1])
    put("a/text.txt", "not JSON")
    put("a/throughput.json", {"kind": "throughput", "rows": []})
    (found,) = find([tmp_path])
    assert [each.name for each in found.studies] == ["pattern"]
    assert len(found.costs.rows) == 1
    (again,) = find([tmp_path, path, path])
    assert (len(again.studies), again.left_out) == (1, ()), "a file given twice is read once"


def test_scales_stand_beside_each_other_and_of_one_scale_the_latest_stays(put, tmp_path):
    put("tiny.json", study(ROWS))
    put("mini.json", study(ROWS, scale="mini"))
    later = {**ENVIRONMENT, "date": "2026-02-01T00:00:00+00:00"}
    put("a-later.json", study(ROWS, title="later", environment=later))
    (found,) = find([tmp_path])
    assert [(each.scale, each.title) for each in found.studies] == [("mini", "Study of pattern"), ("tiny", "later")]
    assert found.left_out == ("`tiny.json`: `a-later.json` is a later state of the same study at the same scale",)


def test_a_state_without_a_finished_cell_is_never_later_than_one_with_some(put, tmp_path):
    complete = study(ROWS, title="complete", environments=[ENVIRONMENT])
    put("a.json", complete)
    begun = {**ENVIRONMENT, "date": "2026-02-01T00:00:00+00:00"}
    put("b/s.json", study(ROWS, title="begun", environment=begun, environments=[]))
    (found,) = find([tmp_path])
    assert [each.title for each in found.studies] == ["complete"]
    assert found.left_out == ("`s.json`: `a.json` is a later state of the same study at the same scale",)
    earlier = {**ENVIRONMENT, "date": "2025-12-01T00:00:00+00:00"}
    put("b/s.json", study(ROWS, title="grown", environments=[begun, earlier]))
    assert [each.title for each in find([tmp_path])[0].studies] == ["grown"]
    alone = put("c/s.json", study(ROWS, title="alone", environments=[]))
    assert [each.title for each in find([alone])[0].studies] == ["alone"]


def test_the_results_of_each_folder_stand_apart_and_in_none_those_that_were_left_out(put):
    contents = {"a": study(ROWS), "b": study(ROWS), "c": study([], version=2)}
    folders = [put(f"{name}/s.json", content).parent for name, content in contents.items()]
    found = find([*folders, put("d.json", EFFICIENCY)])
    assert [each.folder for each in found] == [*map(str, folders[:2]), "files given by name"]
    assert [len(each.studies) for each in found] == [1, 1, 0]
    told = (f"{folders[2]}, `s.json`: version 2 of a study; it must be 1",)
    assert [each.left_out for each in found] == [told, (), ()]
    (together,) = find(folders, apart=False)
    assert (len(together.studies), together.folder) == (1, "")


def test_studies_stand_in_the_papers_order(put, tmp_path):
    for name in ("pooling", "own", "components", "budget", "pattern", "baselines"):
        put(f"{name}.json", study([], name))
    names = [each.name for each in find([tmp_path])[0].studies]
    assert names == ["pattern", "baselines", "budget", "components", "pooling", "own"]


NO_TIME = dict.fromkeys(("median_ms", "samples", "reason", "setting"))
WRONG = [
    ("{", "not JSON: Expecting property name enclosed in double quotes at column 2 in line 1; give a file of"),
    (b"\xff\xfe\x00", "not UTF-8: byte 0xff at offset 0"),
    ({**EFFICIENCY, "quick": True}, "a quick trial run, whose numbers say nothing; measure without --quick"),
    ({**EFFICIENCY, "rows": [{"measure": "latency"}]}, "not as mabert bench models writes it (KeyError: 'profile')"),
    ({**EFFICIENCY, "rows": []}, "no rows"),
    ({**EFFICIENCY, "rows": [raw("latency", "gpt", 128, 1.0)]}, "model 'gpt' of a row is none of bert"),
    (efficiency([raw("latency", "bert", 128, 1.0, median_ms=None)]), "not as mabert bench models writes it (Type"),
    ({**efficiency([raw("memory", "bert", 128) | NO_TIME]), "kind": "engines"}, "no latency is measured in it"),
    ({**EFFICIENCY, "environment": {}}, "not as mabert bench models writes it (KeyError: 'date')"),
    ({**EFFICIENCY, "environment": None}, "not as mabert bench models writes it (TypeError: "),
    ({"kind": "drift", "rows": []}, "not as mabert study drift writes it (KeyError: 'texts')"),
    ({**study([]), "rows": [3]}, "not as mabert study writes it (TypeError: "),
    (study([], version=2), "version 2 of a study; it must be 1"),
    (study([], scale="../up"), "scale is '../up'; it must be a name, without a path"),
    (study([{**row("arm", {}), "scores": {"cola": {"accuracy": {"0": "high"}}}}]), "could not convert string to float"),
    (study([{**row("arm", {}), "scores": {"cola": {"accuracy": {"0": float("nan")}}}}]), "arm: a score is not finite"),
]


@pytest.mark.parametrize(("content", "reason"), WRONG)
def test_a_damaged_file_is_refused_by_name_and_in_a_folder_left_out_and_told_of(put, tmp_path, content, reason):
    damaged = put("of-a-run/damaged.json", content)
    with pytest.raises(ValueError, match=rf"damaged\.json.*{re.escape(reason)}"):
        find([damaged])
    with pytest.raises(ValueError, match=r"nothing to report; give .* wrote; `of-a-run/damaged\.json`: "):
        find([tmp_path])
    put("study.json", study(ROWS))
    (found,) = find([tmp_path])
    assert len(found.studies) == 1
    (told,) = found.left_out
    assert told.startswith("`of-a-run/damaged.json`: ")
    assert reason.strip() in told


def test_nothing_to_report_says_what_is_needed(put, tmp_path):
    put("config.json", {})
    put("list.json", [])
    with pytest.raises(ValueError, match=r"files that mabert study, mabert bench models, mabert study drift wrote$"):
        find([tmp_path])
    put("b.json", {"kind": "batches"})
    with pytest.raises(ValueError, match=r"b\.json holds results of kind 'batches', which no page shows; give JSON"):
        find([tmp_path / "b.json"])
    with pytest.raises(ValueError, match="no paths: nothing to report"):
        find([])
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json: no such file or folder"):
        find([tmp_path / "nowhere.json"])
