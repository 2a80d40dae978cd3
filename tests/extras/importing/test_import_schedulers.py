"""Imports from Kubernetes, systemd and Celery: what has no equivalent is reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.imports import START, import_text, messages, only_job, run
from yamlsched.cli import cli
from yamlsched.extras.importing import read
from yamlsched.extras.importing.compare import compare
from yamlsched.extras.importing.model import Imported, Origin


@pytest.mark.parametrize("format_name, exit_code", [("github", 0), ("sarif", 0), ("text", 1)])
def test_programs_and_directories_that_a_review_machine_lacks_do_not_fail_it(
    format_name: str, exit_code: int, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        'version: 1\njobs:\n  a: {cron: "5 1 * * *", command: [bin/a]}\n'
        '  b: {cron: "5 1 * * *", command: [/bin/true], cwd: /no/such/directory}\n'
    )

    done = CliRunner().invoke(
        cli, ["validate", "--format", format_name, "--strict", str(file)], standalone_mode=False
    )

    assert "YS310" in done.output
    assert "YS311" in done.output
    assert done.return_value == exit_code


CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: shards}
spec:
  schedule: "0 2 * * *"
  timeZone: Etc/UTC
  suspend: SUSPEND
  jobTemplate:
    spec:
      JOB
      template: {spec: {terminationGracePeriodSeconds: 120, activeDeadlineSeconds: 600, hostNetwork: true, CONTAINERS}}
"""


def import_cron_job(suspend: str = "false", job: str = "backoffLimit: 0") -> Imported:
    containers = "containers: [{name: c, image: i, command: [run-shard], stdin: true}]"
    text = (
        CRON_JOB.replace("SUSPEND", suspend).replace("JOB", job).replace("CONTAINERS", containers)
    )
    return import_text(text, "kubernetes")


@pytest.mark.parametrize("key", ["parallelism", "completions"])
def test_a_cron_job_of_several_pods_is_left_out(key: str) -> None:
    found = import_cron_job(job=f"{key}: 8")

    assert not found.jobs
    assert f"{key} 8 starts several pods" in messages(found)


@pytest.mark.parametrize(
    "suspend, job, is_enabled",
    [
        ("true", "backoffLimit: 0", False),
        ("false", "suspend: true", False),
        ("false", "suspend: false", True),
    ],
)
def test_a_cron_job_that_is_suspended_is_disabled(suspend: str, job: str, is_enabled: bool) -> None:
    assert only_job(import_cron_job(suspend, job)).get("enabled", True) is is_enabled


def test_limits_of_a_pod_are_imported_and_what_has_no_key_is_reported() -> None:
    policy = "podFailurePolicy: {rules: [{action: Ignore}]}"
    found = import_cron_job(job=policy)

    keys = only_job(found)
    assert (keys["timeout"], keys["kill_after"]) == ("10m", "2m")
    report = messages(found)
    for key in ("hostNetwork of the pod", "stdin of the container", "podFailurePolicy of the job"):
        assert key in report


def import_units(timer: str, service: str) -> Imported:
    sources = [
        Origin(f"[Timer]\n{timer}\n", "r.timer"),
        Origin(f"[Service]\n{service}\n", "r.service"),
    ]
    return read.read(sources, None, None, START)


def test_settings_of_systemd_that_are_not_known_to_be_harmless_are_reported() -> None:
    service = (
        "Type=oneshot\nDescription=x\nConditionACPower=true\nOnFailure=a.service\nExecStart=/usr/bin/fwupdmgr refresh\n"
        "After=network-online.target time-sync.target\nWants=tunnel.service network.target"
    )
    found = import_units("OnCalendar=hourly\nRandomizedOffsetSec=1h", service)

    report = messages(found)
    assert "r.service:4: dropped: r.service: [Service] ConditionACPower=true" in report
    assert "r.service: [Service] OnFailure=a.service" in report
    assert "r.timer: [Timer] RandomizedOffsetSec=1h" in report
    assert "r.service: [Service] Wants=tunnel.service network.target" in report
    assert "Description" not in report
    assert "After" not in report


def test_exit_codes_that_systemd_takes_for_success_are_imported() -> None:
    found = import_units(
        "OnCalendar=hourly", "SuccessExitStatus=2 101 SIGKILL\nExecStart=/usr/bin/a"
    )

    assert only_job(found)["exit_codes"] == {"success": [0, 2, 101]}
    assert "SuccessExitStatus=SIGKILL" in messages(found)


@pytest.mark.parametrize("prefix", ["@", ":", "-:", "|", "-+", "!!"])
def test_a_prefix_that_changes_how_a_command_is_run_is_left_out(prefix: str) -> None:
    report = messages(import_units("OnCalendar=hourly", f"ExecStart={prefix}/usr/bin/a"))

    assert f"{prefix}/usr/bin/a is not one plain command: write it without the prefixes" in report


def test_a_setting_in_the_section_of_others_is_ignored_as_by_systemd_and_reported() -> None:
    wrong = "[Timer]\nExecStart=/bin/b\n[Unit]\nExecStartPre=/bin/b\nType=oneshot\n[Install]\nEnvironment=A=1\n"
    found = import_units(
        "OnCalendar=hourly\n[Unit]\nOnCalendar=daily", f"ExecStart=/bin/a\n{wrong}"
    )

    job = only_job(found)
    assert (job["cron"], job["command"], job.get("env")) == ("0 * * * *", ["/bin/a"], None)
    report = messages(found)
    for setting in (
        "[Timer] ExecStart=/bin/b",
        "[Unit] ExecStartPre=/bin/b",
        "[Install] Environment=A=1",
    ):
        assert f"dropped: r.service: {setting}" in report
    assert "dropped: r.timer: [Unit] OnCalendar=daily" in report


def test_persistent_has_no_effect_without_a_calendar() -> None:
    assert (
        only_job(import_units("OnUnitActiveSec=1h\nPersistent=true", "ExecStart=/a"))["catchup"]
        == "none"
    )
    assert (
        only_job(import_units("OnCalendar=hourly\nPersistent=true", "ExecStart=/a"))["catchup"]
        == "latest"
    )


def test_a_calendar_event_may_have_a_fraction_of_zero() -> None:
    assert (
        only_job(import_units("OnCalendar=*-*-* 10:00:00.000", "ExecStart=/a"))["cron"]
        == "0 10 * * *"
    )


@pytest.mark.parametrize(
    "event, expected",
    [
        ("*-*~01 06:00", "0 6 L * *"),
        ("*-*~03 06:00", "0 6 L-2 * *"),
        ("02~03", "0 0 L-2 2 *"),
        ("Mon *-05~07/1", "0 0 * 5 L1"),  # the example of systemd.time(7)
        ("Mon..Wed *-*~07/1 06:00", "0 6 * * L1,L2,L3"),
        ("*-*~31/1", "0 0 * * *"),
    ],
)
def test_days_from_the_end_of_the_month_are_those_of_systemd(event: str, expected: str) -> None:
    found = import_units(f"OnCalendar={event}", "ExecStart=/a")

    assert only_job(found)["cron"] == expected
    compare(found, datetime(2026, 1, 1, tzinfo=UTC), 3 * 366)
    assert found.differing == 0


@pytest.mark.parametrize("event", ["*-*~02/1", "Mon *-*~01", "*-*~07/2", "*-*~40", "*-*~"])
def test_other_days_from_the_end_are_left_out(event: str) -> None:
    found = import_units(f"OnCalendar={event}", "ExecStart=/a")

    assert (found.jobs, found.has_refusals) == ([], True)


def test_an_interval_of_weeks_is_left_out() -> None:
    assert "no cron expression" in messages(import_units("OnUnitActiveSec=2w", "ExecStart=/a"))


def test_escapes_of_systemd_are_left_out() -> None:
    assert "variables or escapes of systemd" in messages(
        import_units("OnCalendar=hourly", r"ExecStart=/a x\x20y")
    )


def test_every_entry_of_a_beat_schedule_is_imported_or_reported() -> None:
    text = """
app.conf.beat_schedule = {'a': {'task': 'tasks.add', 'schedule': crontab(minute=0)}}
app.conf.beat_schedule['b'] = {'task': 'tasks.add', 'schedule': crontab(minute=5)}
app.conf.beat_schedule.update({'c': {'task': 'tasks.add', 'schedule': crontab(minute=6)}})
app.conf.beat_schedule |= {'d': {'task': 'tasks.add', 'schedule': crontab(minute=7)}}
app.conf.beat_schedule |= {'e': {'task': 'tasks.add', 'schedule': crontab(minute=8), 'relative': True}}
app.conf.update({'beat_schedule': {'f': {'task': 'tasks.add', 'schedule': crontab(minute=9)}}})
app.conf.beat_schedule[name] = {'task': 'tasks.add', 'schedule': crontab(minute=9)}
app.conf.beat_schedule.setdefault('g', {})
sender.add_periodic_task(crontab(hour=7), test.s('x'))
"""

    found = import_text(text, "celery")

    assert [(job.name, job.line) for job in found.jobs] == [
        ("a", 2),
        ("c", 4),
        ("d", 5),
        ("e", 6),
        ("f", 7),
    ]
    report = messages(found)
    assert "source:3: left out: beat_schedule is app.conf.beat_schedule['b']: write it" in report
    assert "source:6: dropped: e: relative has no counterpart" in report
    assert "source:8: left out: beat_schedule is app.conf.beat_schedule[name]" in report
    assert "source:9: left out" in report
    assert (
        "source:10: left out: sender.add_periodic_task(crontab(hour=7), test.s('x')): write it"
        in report
    )
    assert "5 jobs imported, 4 left out" in report


@pytest.mark.parametrize("field", ["?", "1-5,?", "?/5"])
def test_a_question_mark_which_celery_refuses_is_left_out(field: str) -> None:
    text = f"beat_schedule = {{'a': {{'task': 'm.f', 'schedule': crontab(minute='{field}')}}}}\n"

    assert 'source:1: left out: a: the minute "?" is not in 0-59' in messages(
        import_text(text, "celery")
    )


def test_a_step_without_a_range_which_celery_refuses_is_left_out() -> None:
    text = """
app.conf.beat_schedule = {'a': {'task': 'tasks.add', 'schedule': crontab(minute='5/15')}}
app.conf.beat_schedule |= {'b': {'task': 'tasks.add', 'schedule': crontab(minute='5-59/15', hour='22-2/2')}}
"""
    found = import_text(text, "celery")

    assert [job.name for job in found.jobs] == ["b"]
    assert (
        'source:2: left out: a: Celery refuses the minute "5/15": a step needs a range'
        in messages(found)
    )


def test_a_file_with_add_periodic_task_only_is_one_of_celery() -> None:
    assert read.kind_of(Origin("sender.add_periodic_task(10.0, test.s())", "app.py")) == "celery"


@pytest.mark.parametrize(
    "fields, is_enabled, message",
    [
        ({"expires": "2020-01-01T00:00:00Z"}, False, "its end 2020-01-01 00:00Z is not imported"),
        ({"expires": "2030-01-01T00:00:00Z"}, True, "its end 2030-01-01 00:00Z is not imported"),
        (
            {"start_time": "2030-01-01T00:00:00Z"},
            False,
            "its start 2030-01-01 00:00Z is to come: the job is disabled",
        ),
        ({"headers": '{"a": 1}'}, True, "headers has no counterpart"),
        ({"expire_seconds": 60}, True, "expire_seconds becomes catchup_window: 1m"),
        ({"priority": 0}, True, "priority has no counterpart"),
    ],
)
def test_a_periodic_task_that_does_not_run_now_is_disabled_and_its_other_fields_are_reported(
    fields: dict[str, Any], is_enabled: bool, message: str
) -> None:
    task = {"name": "a", "task": "tasks.add", "crontab": 1, "enabled": True} | fields
    rows = [
        {"model": "django_celery_beat.crontabschedule", "pk": 1, "fields": {"minute": "0"}},
        {"model": "django_celery_beat.periodictask", "pk": 1, "fields": task},
    ]

    found = import_text(json.dumps(rows), "celery")

    assert only_job(found).get("enabled", True) is is_enabled
    assert message in messages(found)


ENTRY = "beat_schedule = {'a': {'task': 'm.f', 'schedule': crontab(hour=3)}, 'b': {'task': 'm.g', 'schedule': 3600}}\n"


@pytest.mark.parametrize(
    "text",
    [
        "timezone = 'Asia/Tokyo'\n",
        "CELERY_TIMEZONE: str = 'Asia/Tokyo'\n",
        "TZ = 'Asia/Tokyo'\ntimezone = TZ\n",
        "class Config:\n    TZ = 'Asia/Tokyo'\n    timezone = TZ\n",
        "app.conf['timezone'] = 'Asia/Tokyo'\n",
        "app.conf.update(timezone='Asia/Tokyo')\n",
        "app.conf.update({'timezone': 'Asia/Tokyo'})\n",
        "app = Celery('shop', timezone='Asia/Tokyo')\n",
        "if DEBUG:\n    CELERY_TIMEZONE = 'Asia/Tokyo'\n",
        "app.conf.timezone = 'Asia/Tokyo'\ntimezone = None\n",
        "CELERY = {'timezone': 'Asia/Tokyo'}\n",
    ],
)
def test_the_time_zone_of_celery_is_found_wherever_it_is_set_to_a_constant(text: str) -> None:
    found = import_text(text + ENTRY, "celery")

    assert [job.keys["timezone"] for job in found.jobs] == ["Asia/Tokyo", "UTC"]
    assert "it sets no timezone" not in messages(found)


@pytest.mark.parametrize(
    "text, written",
    [
        ("TZ = os.environ['TZ']\ntimezone = TZ\n", "TZ"),
        ("\nCELERY_TIMEZONE = os.environ.get('TZ', 'UTC')\n", "os.environ.get('TZ', 'UTC')"),
        ("\napp.conf.timezone = settings.TIME_ZONE\n", "settings.TIME_ZONE"),
        ("\ntimezone = f'Europe/{CITY}'\n", "f'Europe/{CITY}'"),
        ("class Config:\n    timezone = zone()\n", "zone()"),
        ("\nconf.update(timezone=TZ)\n", "TZ"),
        ("\nconf.update({'timezone': A if B else C})\n", "A if B else C"),
        ("\ntimezone = 'Europe/' + CITY\n", "'Europe/' + CITY"),
        ("\ntimezone = 7\n", "7"),
        ("\napp.conf.timezone = ZoneInfo('Asia/Tokyo')\n", "ZoneInfo('Asia/Tokyo')"),
        ("def f(request):\n    timezone = request.user.zone\n", "request.user.zone"),
    ],
)
def test_a_time_zone_of_celery_that_is_not_a_constant_leaves_the_file_out(
    text: str, written: str
) -> None:
    found = import_text(text + ENTRY, "celery")

    assert found.jobs == []
    assert (
        f"source:2: left out: its time zone {written} is not a constant, and nothing is exec"
        in messages(found)
    )


def test_a_file_of_celery_with_several_time_zones_is_left_out() -> None:
    text = "class Live:\n    timezone = 'Asia/Tokyo'\nclass Test:\n    timezone = 'UTC'\n"

    found = import_text(text + ENTRY, "celery")

    assert (
        "source:4: left out: it has several time zones, Asia/Tokyo and UTC: pass a file"
        in messages(found)
    )


@pytest.mark.parametrize(
    "text",
    [
        "TIME_ZONE = 'America/Sao_Paulo'\n",
        "enable_utc = False\n",
        "app.config_from_object('django.conf:settings')\n",
        "from .base import *\n",
    ],
)
def test_a_file_of_celery_without_a_time_zone_is_reported(text: str) -> None:
    found = import_text(text + ENTRY, "celery")

    assert [job.keys["timezone"] for job in found.jobs] == ["UTC", "UTC"]
    assert (
        "source: changed: it sets no timezone or CELERY_TIMEZONE: UTC is used. Pass --timezone if"
        in messages(found)
    )


@pytest.mark.parametrize(
    "part, effect, message",
    [
        ("'enabled': ENABLED", "left out", "a: enabled is ENABLED: write True or False"),
        ("'options': OPTIONS", "dropped", "a: its options OPTIONS are not a dict of constants"),
        ("'description': TEXT", "dropped", "a: its description is not a constant"),
        ("'kwargs': KWARGS", "left out", "a: its kwargs"),
        ("'kwargs': {'n': COUNT}", "left out", "a: it has a value that is not a constant"),
        ("'args': ARGS", "left out", "a: it has positional arguments"),
        (
            "**BASE",
            "left out",
            "a: {'task': 'm.f', 'schedule': crontab(hour=3), **BASE} is not a constant",
        ),
    ],
)
def test_a_value_of_a_celery_entry_that_is_not_a_constant_is_reported(
    part: str, effect: str, message: str
) -> None:
    text = f"beat_schedule = {{'a': {{'task': 'm.f', 'schedule': crontab(hour=3), {part}}}}}\n"

    assert f"source:1: {effect}: {message}" in messages(import_text(text, "celery"))


@pytest.mark.parametrize(
    "expires, window",
    [
        ("600", "10m"),
        ("30.0", "1m"),
        ("timedelta(hours=2)", "2h"),
        ("datetime(2026, 1, 1)", None),
        ("0", None),
    ],
)
def test_what_a_celery_task_expires_after_becomes_its_catchup_window(
    expires: str, window: str | None
) -> None:
    options = f"{{'expires': {expires}, 'queue': 'slow'}}"
    text = f"beat_schedule = {{'a': {{'task': 'm.f', 'schedule': crontab(hour=3), 'options': {options}}}}}\n"

    found = import_text(text, "celery")

    assert only_job(found).get("catchup_window") == window
    report = messages(found)
    assert "source:1: dropped: a: the option queue of the task" in report
    assert (f"expires becomes catchup_window: {window}" in report) is (window is not None)
    assert ("dropped: a: expires of the task: write catchup_window" in report) is (window is None)


def test_a_crontab_of_a_dump_without_a_time_zone_is_reported() -> None:
    rows = [
        {"model": "django_celery_beat.crontabschedule", "pk": 1, "fields": {"minute": "0"}},
        {
            "model": "django_celery_beat.periodictask",
            "pk": 1,
            "fields": {"name": "a", "task": "m.f", "crontab": 1, "enabled": True},
        },
    ]

    report = messages(import_text(json.dumps(rows), "celery", "Asia/Tokyo"))

    assert "changed: a: its crontab schedule has no timezone: Asia/Tokyo is used" in report


def test_a_workflow_of_argo_is_left_out_and_the_cron_jobs_beside_it_are_imported() -> None:
    workflow = "kind: CronWorkflow\nmetadata: {name: settle}\nspec: {schedule: '0 2 * * *'}\n"
    text = f"{workflow}---{CRON_JOB}".replace("SUSPEND", "false").replace("JOB", "backoffLimit: 0")
    text = text.replace("CONTAINERS", "containers: [{command: [run-shard]}]")

    found = read.read([Origin(text, "all.yaml")], None, None, START)

    assert [job.name for job in found.jobs] == ["shards"]
    assert (
        "all.yaml:1: left out: CronWorkflow settle: CronWorkflows of Argo are not imported: write"
        in messages(found)
    )


@pytest.mark.parametrize("comment", ["# --dry-run \\", "; --dry-run", "  # --dry-run"])
def test_a_comment_between_the_lines_of_a_setting_is_not_part_of_it(comment: str) -> None:
    found = import_units(
        "OnCalendar=hourly", f"ExecStart=/usr/bin/rsync -a \\\n{comment}\n  --delete \\\n /srv/ /b/"
    )

    assert only_job(found)["command"] == ["/usr/bin/rsync", "-a", "--delete", "/srv/", "/b/"]


def test_a_setting_is_complete_at_the_end_of_a_unit_without_a_newline() -> None:
    sources = [
        Origin("[Timer]\nOnCalendar=hourly", "r.timer"),
        Origin("[Service]\nExecStart=/bin/a \\", "r.service"),
    ]

    assert only_job(read.read(sources, None, None, START))["command"] == ["/bin/a"]


def test_a_percent_sign_in_an_environment_of_systemd_is_one_and_a_specifier_is_left_out() -> None:
    assert only_job(import_units("OnCalendar=hourly", "Environment=A=%%Y B=1\nExecStart=/a"))[
        "env"
    ] == {
        "A": "%Y",
        "B": "1",
    }
    for setting in ("A=1 UNIT=%n", r"A=x\x20y", "A=%%%h"):
        found = import_units("OnCalendar=hourly", f"Environment={setting}\nExecStart=/a")
        assert found.jobs == []
        assert f"left out: r.timer: r.service: Environment={setting} uses specifiers" in messages(
            found
        )


@pytest.mark.parametrize("timer, service", [("t@.timer", "t@.service"), ("t@a.timer", "t.service")])
def test_a_template_of_systemd_is_left_out_with_what_to_do(timer: str, service: str) -> None:
    sources = [
        Origin("[Timer]\nOnCalendar=hourly\n", timer),
        Origin("[Service]\nExecStart=/bin/a\n", service),
    ]

    report = messages(read.read(sources, None, None, START))

    assert (
        f"{timer}: left out: {timer}: template units are not supported: write the timer and its service"
        in report
    )


@pytest.mark.parametrize(
    "timer, service, message",
    [
        (
            "RandomizedDelaySec=soon",
            "Type=oneshot",
            "r.timer:3: dropped: r.timer: RandomizedDelaySec=soon is not a",
        ),
        (
            "",
            "Type=oneshot\nTimeoutStartSec=long",
            "r.service:3: dropped: r.service: the timeout long is not a time",
        ),
    ],
)
def test_a_time_span_of_systemd_that_is_none_is_reported(
    timer: str, service: str, message: str
) -> None:
    found = import_units(f"OnCalendar=hourly\n{timer}", f"{service}\nExecStart=/a")

    assert message in messages(found)
    assert "spread" not in only_job(found)


def test_a_byte_order_mark_at_the_start_of_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "r.timer").write_bytes(b"\xef\xbb\xbf[Timer]\nOnCalendar=hourly\n")
    (tmp_path / "r.service").write_bytes(b"\xef\xbb\xbf[Service]\nExecStart=/bin/a\n")

    done = run(tmp_path / "r.timer", tmp_path / "r.service")

    assert (done.return_value, "command: [/bin/a]" in done.stdout) == (0, True)


def import_command(command: str, more: str = "") -> Imported:
    text = CRON_JOB.replace("SUSPEND", "false").replace("JOB", "backoffLimit: 0")
    return import_text(
        text.replace("CONTAINERS", f"containers: [{{command: {command}{more}}}]"), "kubernetes"
    )


@pytest.mark.parametrize("substitution", ["$(hostname)", "$(date +%F)", "$(cat /x | wc -l)"])
def test_a_substitution_of_the_shell_in_a_cron_job_is_kept(substitution: str) -> None:
    found = import_command(f'[sh, -c, "echo {substitution} > /tmp/x"]')

    assert only_job(found)["command"] == ["sh", "-c", f"echo {substitution} > /tmp/x"]


@pytest.mark.parametrize(
    "more",
    [
        ", env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
        ", envFrom: [{secretRef: {name: s}}]",
    ],
)
def test_a_variable_that_only_the_cluster_has_leaves_the_cron_job_out(more: str) -> None:
    found = import_command('[a, "$(TOKEN)"]', more)

    assert found.jobs == []
    assert (
        '$(TOKEN) in its command has no value in the manifest: run a shell that reads "$TOKEN"'
        in messages(found)
    )


@pytest.mark.parametrize(
    "suspend, job, effect, message",
    [
        ("yes", "backoffLimit: 0", "left out", "suspend is yes: write true or false"),
        (
            '"{{ .Values.off }}"',
            "backoffLimit: 0",
            "left out",
            "suspend is {{ .Values.off }}: write true or false",
        ),
        ("false", 'backoffLimit: "{{ 3 }}"', "dropped", "backoffLimit {{ 3 }} is not a number"),
        (
            "false",
            'activeDeadlineSeconds: "60"',
            "dropped",
            "activeDeadlineSeconds 60 is not a number",
        ),
    ],
)
def test_a_value_of_a_cron_job_that_is_not_a_constant_is_reported(
    suspend: str, job: str, effect: str, message: str
) -> None:
    assert f"source:2: {effect}: CronJob shards: {message}" in messages(
        import_cron_job(suspend, job)
    )
