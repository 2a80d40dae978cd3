"""What users see of a diagnostic: each message in its own file, the pages of the codes, and all formats.

``python tests/test_diagnostics.py`` updates the expected outputs. Check the changes with ``git diff``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command_line import yamlsched
from yamlsched.cli import cli, validate
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs.enqueue import MAX_PAYLOAD_BYTES
from yamlsched.schedule import catalog, formats, handlers, reader, timezones
from yamlsched.schedule.checks import check_all
from yamlsched.schedule.file import read_included
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.include import patterns
from yamlsched.schedule.lint import jobs as lint
from yamlsched.schedule.load import load
from yamlsched.schedule.lookup import Sources
from yamlsched.schedule.schema import JOB_KEYS, SCHEMA
from yamlsched.schedule.source import Diagnostic, Note
from yamlsched.timetable.zones import zone

ROOT = Path(__file__).parent.parent
MISTAKES = Path(__file__).parent / "mistakes"
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
FILES = sorted(MISTAKES.glob("*.yaml"))


def all_checks(
    data: bytes, file: str = "schedules.yaml", environment: str | None = None
) -> list[Diagnostic]:
    """Return what validate reports, with the handlers of tests/mistakes/shop."""
    included = read_included(MISTAKES / file, patterns(data))
    return check_all(load(data, file, environment, included), MISTAKES / file, (), NOW)


@cache
def checks_of(file: Path) -> list[Diagnostic]:
    """Return what validate reports of a file of tests/mistakes, for each of its formats."""
    return all_checks(file.read_bytes(), file.name)


def output(file: Path) -> str:
    text = formats.as_text(checks_of(file), [file.name])
    return text + "\n" if text else ""


def codes(text: str) -> set[str]:
    return {one.code for one in all_checks(text.encode())}


def test_a_diagnostic_is_printed_exactly_as_in_the_file_beside_its_example():
    for file in FILES:
        assert output(file) == file.with_suffix(".txt").read_text("utf-8"), (
            f"{file.stem}: if the new message is right: python tests/test_diagnostics.py,"
            " then git diff tests/mistakes"
        )


def test_every_code_has_a_page_and_an_example_file():
    source = "".join(
        path.read_text("utf-8") for path in (ROOT / "yamlsched/schedule").rglob("*.py")
    )
    used = set(re.findall(r'"(YS[0-9]{3})"', source))
    shown = {
        code
        for file in FILES
        for code in re.findall(r"\[(YS[0-9]{3})\]:", file.with_suffix(".txt").read_text())
    }

    assert used == set(catalog.pages())
    # the others have tests of their own: a thousand errors, an environment, an import, owners
    assert used - shown == {"YS016", "YS116", "YS309", "YS410"}
    assert len(FILES) >= 80


def example(code: str) -> list[str]:
    """Return the wrong file of a page's example and the right one; nothing if it has no example."""
    files = []
    for block in re.findall(r"```diff\n(.*?)```", catalog.page(code), re.S):
        for sign in "-+":
            lines = [line[1:] for line in block.splitlines() if line[:1] in ("", " ", sign)]
            keys = {line.partition(":")[0] for line in lines}
            if "jobs" not in keys:
                if keys & {*JOB_KEYS}:
                    handler = [] if keys & {"handler", "command"} else ["handler: shop.purge.run"]
                    lines = ["purge:", *(f"  {line}" for line in [*lines, *handler])]
                lines = ["jobs:", *(f"  {line}" for line in lines)]
            files.append("\n".join(["version: 1", *lines]) + "\n")
    return files


def test_the_example_of_a_page_has_the_problem_and_the_correction_has_none():
    examples = {code: files for code in catalog.pages() if (files := example(code))}

    assert len(examples) > 40
    for code, (wrong, right) in examples.items():
        assert code in codes(wrong), code
        assert codes(right) == set(), code


def test_validate_and_enqueue_have_the_same_payload_limit():
    assert reader.MAX_PAYLOAD_BYTES == MAX_PAYLOAD_BYTES


def test_every_supported_time_zone_can_be_loaded():
    assert {zone(name).key for name in timezones.names()} == timezones.names()


def test_an_error_behind_an_anchor_is_one_diagnostic():
    text = "version: 1\nx-x: &x {timeout: 5}\njobs:\n" + "".join(
        f"  j{n}: {{<<: *x, handler: a.b}}\n" for n in range(9)
    )

    [found] = load(text.encode(), "s.yaml", None).diagnostics

    assert (found.code, found.line, found.column) == ("YS107", 2, 19)


@pytest.mark.parametrize(
    "job", ["{handler: a.b, x: 1}", "{handler: a.b, timeout: 5}", "{handler: 010}", "{*x : 1}"]
)
def test_a_thousand_errors_are_reported_and_the_valid_jobs_are_still_known(job: str):
    text = "version: 1\njobs:\n  valid: {handler: a.b}\n" + "".join(
        f"  j{n}: {job}\n" for n in range(1100)
    )

    found = load(text.encode(), "s.yaml", None)

    assert len(found.diagnostics) == 1001
    assert found.diagnostics[-1].code == "YS016"
    assert list(found.jobs) == ["valid"]


@pytest.mark.parametrize(
    "job",
    [
        '{cron: "0 5 * * *", handler: shop.mail.fetch, paylod: {url: x}}',
        '{cron: "0 5 * * *", handler: shop.mail.fetch, kwargs: {url: x}}',
        '{cron: "0 5 * * *", handler: shop.mail.fetch, payload: [url]}',
        '{cron: "0 5 * * *", handler: shop.mail.fetch, payload: {url: x, url: y}}',
        '{cron: "0 5 * * *", <<: *lost, handler: shop.mail.fetch}',
        '{cron: "0 5 * * *", handler: shop.mail.rnu(), payload: {url: x}}',
    ],
)
def test_one_error_is_not_reported_again_for_the_handler(job: str):
    found = codes(f"version: 1\njobs:\n  one: {job}\n")

    assert len(found) == 1
    assert not found & {"YS302", "YS304", "YS305"}


def test_jobs_of_another_version_are_not_checked():
    assert codes(
        "version: 2\njobs:\n  one: {handler: shop.mail.rnu, payload: {password: x}}\n"
    ) == {"YS110"}


# --- formats -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run the verb in, with a package of handlers."""
    shutil.copytree(MISTAKES / "shop", tmp_path / "shop")
    monkeypatch.chdir(tmp_path)
    for name in ("FILE", "ENV", "FORMAT"):
        monkeypatch.delenv(f"YAMLSCHED_{name}", raising=False)
    return tmp_path


GOOD = 'version: 1\njobs:\n  purge: {cron: "5 4 * * *", handler: shop.purge.run}\n'
BAD = "version: 1\njobs:\n  purge:\n    handler: shop.purge.run\n    timeout: 5, 100%\n    max_atempts: 3\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def test_a_valid_file_is_reported_in_one_line(folder: Path):
    (folder / "schedules.yaml").write_text(GOOD)

    result = run("validate")

    assert (result.return_value, result.output) == (0, "schedules.yaml: 1 job, no errors\n")


def test_errors_of_several_files_are_reported_and_counted(folder: Path):
    (folder / "good.yaml").write_text(GOOD)
    (folder / "bad.yaml").write_text(BAD)

    result = run("validate", "good.yaml", "bad.yaml")

    assert result.return_value == 1
    assert result.output.endswith(
        "good.yaml: 1 job, no errors\nbad.yaml: 2 errors, 0 warnings in 1 job\n"
    )


def test_warnings_count_as_errors_only_with_strict(folder: Path):
    (folder / "schedules.yaml").write_text(GOOD.replace("5 4", "*/7 *"))

    assert run("validate").return_value == 0
    assert run("validate").output.endswith("schedules.yaml: 1 job, no errors, 1 warning\n")
    assert run("validate", "--strict").return_value == 1


def test_a_file_that_cannot_be_read_is_an_environment_failure(folder: Path):

    assert isinstance(run("validate", "gone.yaml").exception, EnvironmentFailed)
    assert isinstance(run("validate", "shop").exception, EnvironmentFailed)


def test_a_missing_owner_is_reported_only_with_require_owner(folder: Path):
    (folder / "schedules.yaml").write_text(GOOD)

    assert "YS410" in run("validate", "--require-owner", "--format", "concise").output


def test_an_environment_that_is_not_in_the_list_is_an_error(folder: Path):
    (folder / "schedules.yaml").write_text("environments: {production: {}}\n" + GOOD)

    assert run("validate", "--env", "production").return_value == 0
    assert "YS116" in run("validate", "--env", "prod").output


def test_a_module_name_that_is_too_long_for_a_file_is_not_found(folder: Path):
    (folder / "schedules.yaml").write_text(
        f"version: 1\njobs:\n  one: {{handler: {'a' * 5000}.b}}\n"
    )

    assert "YS303" in run("validate", "--format", "concise").output


def test_the_jobs_of_a_file_that_is_not_valid_yaml_are_not_counted(folder: Path):
    (folder / "schedules.yaml").write_text("jobs: [")

    assert run("validate").output.endswith("schedules.yaml: 1 error, 0 warnings\n")


def test_import_runs_the_module_and_binds_the_payload(folder: Path):
    (folder / "shop/explodes.py").write_text(
        "def run() -> None: ...\nraise RuntimeError('no settings')\n"
    )
    (folder / "schedules.yaml").write_text(
        "version: 1\njobs:\n  boom: {handler: shop.explodes.run}\n"
    )

    assert run("validate").return_value == 0
    found = run("validate", "--import", "--format", "concise")
    assert found.return_value == 1
    assert "YS309" in found.output
    assert "RuntimeError: no settings" in found.output


def test_without_import_no_code_of_the_project_runs(folder: Path):
    for place in ("shop/__init__.py", "shop/purge.py"):
        text = (folder / place).read_text()
        (folder / place).write_text("import pathlib\npathlib.Path('ran').touch()\n" + text)
    (folder / "schedules.yaml").write_text(GOOD)

    assert run("validate").return_value == 0
    assert not (folder / "ran").exists()


def test_concise_prints_lines_that_editors_and_the_problem_matcher_parse(folder: Path):
    (folder / "schedules.yaml").write_text(BAD)

    lines = run("validate", "--format", "concise").output.splitlines()

    [matcher] = json.loads((ROOT / ".github/problem-matcher.json").read_text())["problemMatcher"]
    [pattern] = matcher["pattern"]
    found = [re.fullmatch(pattern["regexp"], line) for line in lines]
    assert [match and (match[pattern["line"]], match[pattern["code"]]) for match in found] == [
        ("5", "YS107"),
        ("6", "YS102"),
    ]
    assert lines[1] == (
        'schedules.yaml:6:5: error[YS102]: unknown key "max_atempts" in job "purge". Did you mean "max_attempts"?'
    )


def test_json_is_one_document_with_a_version(folder: Path):
    (folder / "schedules.yaml").write_text(BAD)

    document = json.loads(run("validate", "--format", "json").output)

    assert document["format_version"] == 1
    assert document["diagnostics"][1] == {
        "file": "schedules.yaml",
        "line": 6,
        "column": 5,
        "end_column": 16,
        "code": "YS102",
        "severity": "error",
        "message": 'unknown key "max_atempts" in job "purge"',
        "remedy": 'Did you mean "max_attempts"?',
        "notes": [],
    }
    (folder / "schedules.yaml").write_text(GOOD)
    assert json.loads(run("validate", "--format", "json").output) == {
        "format_version": 1,
        "diagnostics": [],
    }


EVIL = "\n::error::x\x1b[31m\u2028\x9b##[group]##vso[task.x]"


@pytest.mark.parametrize("format", formats.FORMATS)
def test_every_format_escapes_control_characters_and_ci_commands(format: str):
    found = Diagnostic(
        f"a{EVIL}.yaml", 1, 1, 2, "YS102", "error", f"m{EVIL}", f"r{EVIL}", f"s: {EVIL[1:]}"
    )
    found = replace(found, notes=(Note(f"::n{EVIL}", 1, 1, EVIL),))

    lines = formats.FORMATS[format]([found, replace(found, file="::f")], [found.file, "::f"]).split(
        "\n"
    )

    assert all(line.isprintable() for line in lines)
    commands = [line for line in lines if line.lstrip().startswith("::")]
    assert [line[:15] for line in commands] == (
        ["::error file=a\\", "::error file=\\%"] if format == "github" else []
    )
    if format in ("text", "concise", "github"):
        assert "##[" not in "".join(lines)
        assert "##vso[" not in "".join(lines)


def test_only_a_terminal_gets_colours(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "schedules.yaml").write_text(BAD)
    plain = run("validate").output

    monkeypatch.setattr("yamlsched.show.terminal.has_colours", lambda: True)
    coloured = CliRunner().invoke(cli, ["validate"], standalone_mode=False, color=True).output

    assert "\x1b" not in plain
    assert "\x1b[1;31merror[YS107]\x1b[0m" in coloured
    assert click.unstyle(coloured) == plain


def test_a_file_name_that_is_not_unicode_is_reported_in_each_format(folder: Path):
    name = os.fsdecode(b"a\xff.yaml")
    Path(name).write_text(BAD)

    for format in formats.FORMATS:
        result = run("validate", "--format", format, name)
        assert (result.return_value, "YS102" in result.output) == (1, True), result.exception


def test_github_gets_annotations_with_their_text_escaped(folder: Path):
    (folder / "schedules.yaml").write_text(BAD)

    lines = run("validate", "--format", "github").output.splitlines()

    assert lines[0].startswith(
        "::error file=schedules.yaml,line=5,col=14,endColumn=21,title=YS107::"
    )
    assert '"5, 100%25" is not a duration' in lines[0]


SARIF = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["tool", "results"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "artifacts": {"type": "array", "uniqueItems": True},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id", "shortDescription", "help"],
                                            "properties": {
                                                "shortDescription": {
                                                    "type": "object",
                                                    "required": ["text"],
                                                },
                                                "help": {"type": "object", "required": ["text"]},
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["message", "ruleId", "level", "locations"],
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"type": "object", "required": ["text"]},
                                "locations": {
                                    "type": "array",
                                    "items": {"$ref": "#/definitions/location"},
                                },
                                "relatedLocations": {
                                    "type": "array",
                                    "items": {"$ref": "#/definitions/location"},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
    "definitions": {
        "location": {
            "type": "object",
            "additionalProperties": False,
            "required": ["physicalLocation"],
            "properties": {
                "message": {"type": "object", "required": ["text"]},
                "physicalLocation": {
                    "type": "object",
                    "required": ["artifactLocation", "region"],
                    "properties": {
                        "artifactLocation": {
                            "type": "object",
                            "required": ["uri"],
                            "properties": {"uri": {"type": "string", "pattern": "^[^ ]+$"}},
                        },
                        "region": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["startLine"],
                            "properties": {
                                key: {"type": "integer", "minimum": 1}
                                for key in ("startLine", "startColumn", "endLine", "endColumn")
                            },
                        },
                    },
                },
            },
        }
    },
}
"""The requirements of SARIF 2.1.0 for the parts that yamlsched writes."""


def test_sarif_has_the_structure_that_2_1_0_requires():
    found = [one for file in FILES for one in checks_of(file)]

    log = json.loads(formats.as_sarif(found, [file.name for file in FILES]))

    jsonschema.Draft7Validator(SARIF).validate(log)
    jsonschema.Draft7Validator(SARIF).validate(json.loads(formats.as_sarif([], ["good.yaml"])))
    [one_run] = log["runs"]
    ids = [rule["id"] for rule in one_run["tool"]["driver"]["rules"]]
    assert [ids[result["ruleIndex"]] for result in one_run["results"]] == [
        one.code for one in found
    ]


def test_explain_prints_the_page_of_a_code_or_lists_all_codes(folder: Path):
    page = run("explain", "ys203").output

    assert page.startswith("YS203: a cron alias is unknown\n")
    example = '    -cron: "@dayly"\n    +cron: "@daily"'
    assert f"\n\nExample (- is wrong, + is right):\n\n{example}" in page
    assert run("explain").output.splitlines()[0] == "YS001  the file is not valid YAML"
    assert (
        json.loads(run("explain", "YS203", "--format", "json").output)["codes"][0]["code"]
        == "YS203"
    )
    assert 'Did you mean "YS203"?' in str(run("explain", "YS2030").exception)


def test_a_page_has_a_reason_and_no_markdown_on_a_terminal():
    for code in catalog.pages():
        title, why, *_ = catalog.as_text(code).split("\n\n")

        assert title.startswith(f"{code}: ")
        assert not why.startswith("Example"), code
        assert re.search(r"```|\]\(|^#|\*\*", catalog.as_text(code)) is None, code


def test_the_hook_and_the_action_call_verbs_and_options_that_exist(folder: Path):
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (folder / "schedules.yaml").write_text(GOOD)

    name, *arguments = hook["entry"].split()
    assert (name, run(*arguments, "schedules.yaml").return_value) == ("yamlsched", 0)
    assert re.search(hook["files"], "services/billing/schedules.yaml")
    [step] = action["runs"]["steps"]
    assert 'yamlsched" validate --format github $ARGUMENTS -- $FILES' in step["run"]
    assert (
        run(
            "validate", "--format", "github", *action["inputs"]["files"]["default"].split()
        ).return_value
        == 0
    )


def test_the_reference_names_every_key_and_its_examples_are_valid():
    text = (ROOT / "docs/schedules.md").read_text()
    keys = [*SCHEMA["properties"], *JOB_KEYS, *JOB_KEYS["backoff"]["properties"]]

    missing = [key for key in keys if f"`{key}`" not in text and f"{key}: " not in text]
    assert missing == [], "each needs a row in docs/schedules.md"
    for example in re.findall(r"```yaml\n(.*?)```", text, re.S):
        loaded = load(example.encode(), "schedules.yaml", None)
        handlers.check(loaded, Sources([ROOT]), findings := Findings(loaded.source))
        assert [*loaded.diagnostics, *findings.diagnostics()] == []


# --- any input ---------------------------------------------------------------------------------------------------

REAL = (ROOT / "schedules.yaml").read_bytes()
REAL += b"x-a: &a {k: [1, 'b', \"c\"]}\nx-b:\n  <<: *a\n  t: >-\n   folded\n   text\n"
PIECES = [
    b"*a",
    b"&a ",
    b"<<: ",
    b"\t",
    b"\0",
    b"'",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b": ",
    b"- ",
    b"|\n",
    b"!!int ",
]
PIECES += [
    b"0x" + b"f" * 5000,
    b"0o" + b"7" * 9000,
    b"1e999",
    b"1" * 5000,
    b"&b [*b]",
    b"? [a]\n: ",
    b"!!float ",
]
PIECES += [
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\xe2\x80\xa8",
    b"---\n",
    b"...\n",
    b"%",
    b"@",
    b"\\u0000",
    b"? ",
    b"#",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(REAL)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        data[at : at + length] = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
    return bytes(data)


def assert_reported(data: bytes) -> None:
    """Every input results in jobs or diagnostics, whose positions exist, in each format."""
    found = all_checks(data)
    lines = data.decode("utf-8", "replace").count("\n") + data.count(b"\r") + 1
    for one in found:
        assert 1 <= one.line <= lines
        assert 1 <= one.column < one.end_column
        assert one.message
        assert "\n" not in formats.one_line(one)
    for write in formats.FORMATS.values():
        write(found, ["schedules.yaml"])


@given(mutated())
@settings(max_examples=75)
def test_no_mutation_of_a_real_file_crashes_the_checks(data: bytes):
    assert_reported(data)


@given(
    st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
@settings(max_examples=75)
def test_no_bytes_crash_the_checks(data: bytes):
    assert_reported(data)


@given(
    st.lists(
        st.sampled_from([p.decode("latin-1") for p in PIECES] + ["a", "b", "\n", "\n  ", " "]),
        max_size=40,
    )
)
@settings(max_examples=75)
def test_no_combination_of_yaml_pieces_crashes_the_checks(pieces: list[str]):
    assert_reported("".join(pieces).encode())


def chain(number: int, first: dict[str, Any], *, is_reversed: bool = False) -> bytes:
    """Build a file in which each job follows the one before; the first has keys of its own."""
    jobs = {f"j{n}": {"after": [f"j{n - 1}"]} if n else first for n in range(number)}
    names = sorted(jobs, key=lambda name: int(name[1:]), reverse=is_reversed)
    return json.dumps(
        {"version": 1, "jobs": {name: {"handler": "a.b", **jobs[name]} for name in names}}
    ).encode()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_chain_of_a_thousand_jobs_has_the_slots_of_its_first_in_any_order_of_the_file(
    is_reversed: bool,
):
    found = load(chain(1000, {"cron": "7 3 * * *"}, is_reversed=is_reversed), "s.yaml", None)

    assert found.diagnostics == ()
    assert {job.cron and job.cron.source for job in found.jobs.values()} == {"7 3 * * *"}
    assert [name for name, job in found.jobs.items() if not job.is_followed] == ["j999"]


def test_a_job_can_be_followed_by_a_thousand_and_follow_a_thousand():
    jobs = {f"j{n}": {"handler": "a.b", "after": ["first"]} for n in range(1000)}
    last = {"handler": "a.b", "after": [*jobs]}
    document = {
        "version": 1,
        "jobs": {"last": last, **jobs, "first": {"handler": "a.b", "cron": "7 3 * * *"}},
    }

    found = load(json.dumps(document).encode(), "s.yaml", None)

    assert found.diagnostics == ()
    assert {job.cron and job.cron.source for job in found.jobs.values()} == {"7 3 * * *"}


def test_a_circle_of_a_thousand_jobs_is_one_error_of_one_short_line():
    [found] = load(chain(1000, {"after": ["j999"]}), "s.yaml", None).diagnostics

    assert found.code == "YS131"
    assert found.message.endswith(
        "j0 -> j999 -> j998 -> j997 -> j996 -> j995 -> j994 -> j993 -> j992 -> j991 -> j990 -> j989 -> ..."
    )


@pytest.mark.parametrize(
    "crons", [("0 2 * * *", "0 6 * * *"), ("0 2 * * 1", "0 6 * * 1"), ("0 2 1 * *", "0 6 1 * *")]
)
def test_a_job_that_fires_as_often_as_the_one_that_it_follows_is_not_warned_of_whenever_that_is_checked(
    crons: tuple[str, str],
):
    jobs = {
        "a": {"handler": "a.b", "cron": crons[0]},
        "b": {"handler": "a.b", "cron": crons[1], "after": ["a"]},
    }
    found = load(
        json.dumps({"version": 1, "timezone": "Europe/Berlin", "jobs": jobs}).encode(),
        "s.yaml",
        None,
    )

    for day in (1, 30, 59, 86, 88, 90, 181, 296, 298, 300, 365):
        for hour in (0, 4, 7):
            now = datetime(2026, 1, 1, hour, tzinfo=UTC) + timedelta(days=day)
            assert "YS432" not in {one.code for one in lint.check(found, now)}


if __name__ == "__main__":
    for path in FILES:
        path.with_suffix(".txt").write_text(output(path), "utf-8")


def test_a_file_whose_name_is_an_option_is_never_one_after_the_dashes_of_the_action(folder: Path):
    (folder / "--import").write_text(GOOD)
    (folder / "h.py").write_text("open('executed', 'w')\n")

    assert run("validate", "--format", "github", "--", "--import").return_value == 0

    assert not (folder / "executed").exists()


def test_a_leap_day_is_not_advised_to_become_the_last_day_of_february(tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text(
        'version: 1\njobs: {a: {command: [/bin/true], cron: "0 3 29 2 *"}}\n'
    )
    shown = yamlsched("validate", cwd=tmp_path).stdout
    assert "For leap days only, add: # yamlsched: ignore[YS404]." in shown


def test_a_code_of_no_group_is_like_no_other(tmp_path: Path) -> None:
    assert yamlsched("explain", "YS999", cwd=tmp_path).stderr.endswith(
        'no code "YS999". See: yamlsched explain\n'
    )


def test_validate_asks_jsonschema_about_a_file_without_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\ntimezone: Europe/Berlin\njobs: {}\n", encoding="utf-8")
    stricter = {**SCHEMA, "properties": {**SCHEMA["properties"], "timezone": {"const": "UTC"}}}
    monkeypatch.setattr(validate, "SCHEMA", stricter)

    result = CliRunner().invoke(cli, ["validate", str(file)])

    assert isinstance(result.exception, EnvironmentFailed)
    assert "$.timezone does not match schedules.schema.json" in str(result.exception)
