"""Imports from Kubernetes, systemd, Celery and APScheduler: what has no equivalent is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.imports import START, import_text, messages, only_job
from yamlsched.cli import cli
from yamlsched.extras.importing import read
from yamlsched.extras.importing.model import Imported, Origin


@pytest.mark.parametrize(
    "scheduler",
    ["S(job_defaults={'max_instances': 3, 'misfire_grace_time': 3600})", "s.configure(job_defaults=d)"],
)
def test_job_defaults_of_a_scheduler_apply_to_its_jobs(scheduler: str) -> None:
    text = "from m import f\nd = {'max_instances': 3, 'misfire_grace_time': 3600}\n"
    keys = only_job(import_text(f"{text}{scheduler}\ns.add_job(f, 'cron', hour=3)\n", "apscheduler"))

    assert (keys["overlap"], keys["catchup"], keys["catchup_window"]) == ("allow", "latest", "1h")


def test_settings_of_a_scheduler_are_reported() -> None:
    text = "from m import f\ns = BlockingScheduler(jobstores=a, timezone='UTC', **b)\ns.configure(c)\n"
    text += "s.add_listener(f)\nimport structlog\nstructlog.configure(x=1)\n"
    report = messages(import_text(f"{text}s.add_job(f, 'cron', hour=3)\n", "apscheduler"))

    assert "source:2: dropped: jobstores of the scheduler has no counterpart" in report
    assert "source:2: dropped: ** of the scheduler" in report
    assert "source:3: dropped: its arguments of the scheduler" in report
    assert "source:4: dropped: add_listener of the scheduler" in report
    assert "x of the scheduler" not in report
    assert "timezone" not in report


@pytest.mark.parametrize(
    "text",
    [
        "from apscheduler.schedulers.blocking import BlockingScheduler as S\ns = S(timezone={zone})\n",
        "s.configure(timezone={zone})\n",
    ],
)
def test_the_time_zone_of_a_scheduler_is_found_under_another_name(text: str) -> None:
    start = "from m import f\n" + text.format(zone="'Asia/Tokyo'")
    job = "s.add_job(f, 'cron', hour=3)\n"
    assert only_job(import_text(f"{start}{job}", "apscheduler"))["timezone"] == "Asia/Tokyo"


@pytest.mark.parametrize("setting", ["timezone='Asia/Tokyo'", "job_defaults={'max_instances': 3}"])
def test_a_file_of_several_schedulers_with_settings_is_left_out(setting: str) -> None:
    jobs = "s.add_job(f, 'cron', hour=3)\nt.add_job(f, 'cron', hour=4)\n"
    found = import_text(f"from m import f\ns = XScheduler()\nt = XScheduler({setting})\n{jobs}", "apscheduler")

    assert found.jobs == []
    assert "source:3: left out: it has several schedulers with settings: pass a file for each" in messages(found)
    assert len(import_text(f"from m import f\ns = XScheduler()\nt = XScheduler()\n{jobs}", "apscheduler").jobs) == 2


def test_job_defaults_that_are_not_constant_are_reported() -> None:
    text = "from m import f\nS(job_defaults=read())\ns.add_job(f, 'cron', hour=3)\n"

    assert "source:2: dropped: job_defaults are not one dict" in messages(import_text(text, "apscheduler"))


@pytest.mark.parametrize("format_name, exit_code", [("github", 0), ("sarif", 0), ("text", 1)])
def test_programs_and_directories_that_a_review_machine_lacks_do_not_fail_it(
    format_name: str, exit_code: int, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        'version: 1\njobs:\n  a: {cron: "5 1 * * *", command: [bin/a]}\n'
        '  b: {cron: "5 1 * * *", command: [/bin/true], cwd: /no/such/directory}\n'
    )

    done = CliRunner().invoke(cli, ["validate", "--format", format_name, "--strict", str(file)], standalone_mode=False)

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
    text = CRON_JOB.replace("SUSPEND", suspend).replace("JOB", job).replace("CONTAINERS", containers)
    return import_text(text, "kubernetes")


@pytest.mark.parametrize("key", ["parallelism", "completions"])
def test_a_cron_job_of_several_pods_is_left_out(key: str) -> None:
    found = import_cron_job(job=f"{key}: 8")

    assert not found.jobs
    assert f"{key} 8 starts several pods" in messages(found)


@pytest.mark.parametrize(
    "suspend, job, is_enabled",
    [
        ("yes", "backoffLimit: 0", False),
        ("On", "backoffLimit: 0", False),
        ("true", "backoffLimit: 0", False),
        ("false", "suspend: true", False),
        ("no", "suspend: off", True),
    ],
)
def test_a_cron_job_that_is_suspended_is_disabled(suspend: str, job: str, is_enabled: bool) -> None:
    assert only_job(import_cron_job(suspend, job)).get("enabled", True) is is_enabled


def test_limits_of_a_pod_are_imported_and_what_has_no_key_is_reported() -> None:
    policy = (
        "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [42]}}, {action: Ignore}]}"
    )
    found = import_cron_job(job=policy)

    keys = only_job(found)
    assert (keys["timeout"], keys["kill_after"], keys["exit_codes"]) == ("10m", "2m", {"discard": [42]})
    report = messages(found)
    for key in ("hostNetwork of the pod", "stdin of the container", "podFailurePolicy Ignore"):
        assert key in report


def import_units(timer: str, service: str) -> Imported:
    sources = [Origin(f"[Timer]\n{timer}\n", "r.timer"), Origin(f"[Service]\n{service}\n", "r.service")]
    return read.read(sources, None, None, START)


def test_settings_of_systemd_that_are_not_known_to_be_harmless_are_reported() -> None:
    service = (
        "Type=oneshot\nDescription=x\nConditionACPower=true\nOnFailure=a.service\nExecStart=/usr/bin/fwupdmgr refresh\n"
        "After=network-online.target time-sync.target\nWants=tunnel.service network.target"
    )
    found = import_units("OnCalendar=hourly\nRandomizedOffsetSec=1h", service)

    report = messages(found)
    assert "r.service:4: dropped: r.service: ConditionACPower=true" in report
    assert "r.service: OnFailure=a.service" in report
    assert "r.timer: RandomizedOffsetSec=1h" in report
    assert "r.service: Wants=tunnel.service network.target" in report
    assert "Description" not in report
    assert "After" not in report


def test_exit_codes_that_systemd_takes_for_success_are_imported() -> None:
    found = import_units("OnCalendar=hourly", "SuccessExitStatus=2 101 DATAERR SIGKILL\nExecStart=/usr/bin/a")

    assert only_job(found)["exit_codes"] == {"success": [0, 2, 65, 101]}
    assert "SuccessExitStatus=SIGKILL" in messages(found)


def test_a_prefix_that_changes_privileges_is_reported() -> None:
    report = messages(import_units("OnCalendar=hourly", "User=app\nExecStart=-+/usr/bin/a"))

    assert "r.service: the prefix + of /usr/bin/a, which changes its privileges" in report
    assert "a failure of /usr/bin/a is ignored" in report


@pytest.mark.parametrize("prefix", ["@", ":", "-:", "|"])
def test_a_prefix_that_changes_how_a_command_is_read_is_left_out(prefix: str) -> None:
    report = messages(import_units("OnCalendar=hourly", f"ExecStart={prefix}/usr/bin/a"))

    assert f"{prefix}/usr/bin/a has the prefix {prefix}: write the command without it" in report


def test_a_setting_in_the_section_of_others_is_ignored_as_by_systemd_and_reported() -> None:
    wrong = "[Timer]\nExecStart=/bin/b\n[Unit]\nExecStartPre=/bin/b\nType=oneshot\n[Install]\nEnvironment=A=1\n"
    found = import_units("OnCalendar=hourly\n[Unit]\nOnCalendar=daily", f"ExecStart=/bin/a\n{wrong}")

    job = only_job(found)
    assert (job["cron"], job["command"], job.get("env")) == ("0 * * * *", ["/bin/a"], None)
    report = messages(found)
    for setting in ("[Timer] ExecStart=/bin/b", "[Unit] ExecStartPre=/bin/b", "[Install] Environment=A=1"):
        assert f"dropped: r.service: {setting}" in report
    assert "dropped: r.timer: [Unit] OnCalendar=daily" in report


def test_persistent_has_no_effect_without_a_calendar() -> None:
    assert only_job(import_units("OnUnitActiveSec=1h\nPersistent=true", "ExecStart=/a"))["catchup"] == "none"
    assert only_job(import_units("OnCalendar=hourly\nPersistent=true", "ExecStart=/a"))["catchup"] == "latest"


def test_a_calendar_event_may_have_a_fraction_of_zero() -> None:
    assert only_job(import_units("OnCalendar=*-*-* 10:00:00.000", "ExecStart=/a"))["cron"] == "0 10 * * *"


def test_escapes_of_systemd_are_left_out() -> None:
    assert r"uses escapes of systemd" in messages(import_units("OnCalendar=hourly", r"ExecStart=/a x\x20y"))


def test_every_entry_of_a_beat_schedule_is_imported_or_reported() -> None:
    text = """
app.conf.beat_schedule = {'a': {'task': 'tasks.add', 'schedule': crontab(minute=0)}}
app.conf.beat_schedule['b'] = {'task': 'tasks.add', 'schedule': crontab(minute=5)}
app.conf.beat_schedule.update({'c': {'task': 'tasks.add', 'schedule': crontab(minute=6)}})
app.conf.beat_schedule |= {'d': {'task': 'tasks.add', 'schedule': crontab(minute=7)}}
app.conf.beat_schedule.update(e={'task': 'tasks.add', 'schedule': crontab(minute=8), 'relative': True})
app.conf.update({'beat_schedule': {'f': {'task': 'tasks.add', 'schedule': crontab(minute=9)}}})
app.conf.beat_schedule[name] = {'task': 'tasks.add', 'schedule': crontab(minute=9)}
app.conf.beat_schedule.setdefault('g', {})
sender.add_periodic_task(crontab(hour=7), test.s('x'))
"""

    found = import_text(text, "celery")

    assert [(job.name, job.line) for job in found.jobs] == [(name, line) for line, name in enumerate("abcdef", 2)]
    report = messages(found)
    assert "source:6: dropped: e: relative has no counterpart" in report
    assert "source:8: left out: beat_schedule is app.conf.beat_schedule[name]" in report
    assert "source:9: left out" in report
    assert "source:10: left out: sender.add_periodic_task(crontab(hour=7), test.s('x')): write it" in report
    assert "6 jobs imported, 3 left out" in report


@pytest.mark.parametrize("field", ["?", "1-5,?", "?/5"])
def test_a_question_mark_which_celery_refuses_is_left_out(field: str) -> None:
    text = f"beat_schedule = {{'a': {{'task': 'm.f', 'schedule': crontab(minute='{field}')}}}}\n"

    assert 'source:1: left out: a: the minute "?" is not in 0-59' in messages(import_text(text, "celery"))


def test_a_step_without_a_range_which_celery_refuses_is_left_out() -> None:
    text = """
app.conf.beat_schedule = {'a': {'task': 'tasks.add', 'schedule': crontab(minute='5/15')}}
app.conf.beat_schedule['b'] = {'task': 'tasks.add', 'schedule': crontab(minute='5-59/15', hour='22-2/2')}
"""
    found = import_text(text, "celery")

    assert [job.name for job in found.jobs] == ["b"]
    assert 'source:2: left out: a: Celery refuses the minute "5/15": a step needs a range' in messages(found)


def test_a_file_with_add_periodic_task_only_is_one_of_celery() -> None:
    assert read.kind_of(Origin("sender.add_periodic_task(10.0, test.s())", "app.py")) == "celery"


@pytest.mark.parametrize(
    "fields, is_enabled, message",
    [
        ({"expires": "2020-01-01T00:00:00Z"}, False, "its end 2020-01-01 00:00Z is not imported"),
        ({"expires": "2030-01-01T00:00:00Z"}, True, "its end 2030-01-01 00:00Z is not imported"),
        ({"start_time": "2030-01-01T00:00:00Z"}, False, "its start 2030-01-01 00:00Z is to come: the job is disabled"),
        ({"headers": '{"a": 1}'}, True, "headers has no counterpart"),
        ({"expire_seconds": 60}, True, "expire_seconds has no counterpart"),
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


WORKFLOW = """
kind: CronWorkflow
metadata: {name: settle}
spec:
  schedules: [SCHEDULES]
  timezone: Etc/UTC
  workflowSpec: {entrypoint: main, templates: [{name: main, TEMPLATE}]}
"""
CONTAINER = "container: {command: [bin/settle]}"


def import_workflow(template: str = CONTAINER, schedules: str = '"0 2 * * *"', **keys: Any) -> Imported:
    return import_text(WORKFLOW.replace("SCHEDULES", schedules).replace("TEMPLATE", template), "kubernetes", **keys)


@pytest.mark.parametrize(
    ("schedules", "keys"),
    [
        ('"0 2 * * *"', {"cron": "0 2 * * *"}),
        ('"0 2 * * *", "0 2 * * *"', {"cron": "0 2 * * *"}),
        ('"0 2 * * *", "30 3 * * 1"', {"crons": ["0 2 * * *", "30 3 * * 1"]}),
        ('"TZ=Asia/Tokyo 0 2 * * *", "CRON_TZ=Asia/Tokyo 0 3 * * *"', {"crons": ["0 2 * * *", "0 3 * * *"]}),
    ],
)
def test_the_schedules_of_a_workflow_are_one_job(schedules: str, keys: dict[str, Any]) -> None:
    zone = "Asia/Tokyo" if "Tokyo" in schedules else "Etc/UTC"

    assert {"command": ["bin/settle"], "timezone": zone, **keys}.items() <= only_job(
        import_workflow(schedules=schedules)
    ).items()


@pytest.mark.parametrize("schedules", ["", "1", '"0 2 * * *", 7', '"0 2 * * *", {}', '"0 2 * * *", "0 2 30 2 *"'])
def test_a_workflow_with_a_schedule_that_is_none_is_left_out(schedules: str) -> None:
    found = import_workflow(schedules=schedules)

    assert found.jobs == []
    assert "left out: CronWorkflow settle: " in messages(found)


@pytest.mark.parametrize(
    ("retries", "max_attempts"),
    [
        ("", 1), ("retryStrategy: {limit: 2}, ", 3), ('retryStrategy: {limit: "0"}, ', 1), ("retryStrategy: {}, ", 100),
        ('retryStrategy: {limit: "asInt(x)"}, ', 1), ("retryStrategy: [], ", 1), ("retryStrategy: {limit: 500}, ", 100),
    ],
)  # fmt: skip
def test_a_workflow_is_repeated_as_often_as_its_template_says(retries: str, max_attempts: int) -> None:
    assert only_job(import_workflow(retries + CONTAINER))["max_attempts"] == max_attempts
    assert ("limit asInt(x) of the retryStrategy" in messages(import_workflow(retries + CONTAINER))) == (
        "(x)" in retries
    )
    advised = only_job(import_workflow(retries + CONTAINER, policy="advised"))
    assert advised.get("max_attempts", 1) == max_attempts


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("script: {command: [sh], source: date}", "its entrypoint is not a template with a container"),
        ("container: 7", "its entrypoint is not a template with a container"),
        ("container: {image: shop}", "it runs the entry point of the image shop"),
        ('container: {command: [echo], env: [{name: A, value: "{{workflow.uid}}"}]}', "parameters of Argo"),
        ('container: {command: [echo], workingDir: "/{{inputs.parameters.x}}"}', "parameters of Argo"),
    ],
)
def test_a_workflow_whose_command_cannot_be_known_is_left_out(template: str, message: str) -> None:
    found = import_workflow(template)

    assert found.jobs == []
    assert message in messages(found)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"schedule": "0 1 * * *", "schedules": ["0 2 * * *"]}, "it has spec.schedule and spec.schedules"),
        ({"schedules": "* * * * *"}, "no list of strings in spec.schedules"),
        ({"schedules": [7, None]}, "no list of strings in spec.schedules"),
        ({"schedules": []}, "no list of strings in spec.schedules"),
    ],
)
def test_a_workflow_whose_schedules_are_unclear_is_left_out(schedule: dict[str, Any], message: str) -> None:
    workflow = {"kind": "CronWorkflow", "metadata": {"name": "a"}, "spec": schedule}

    found = read.read([Origin(json.dumps(workflow), "all.json")], None, None, START)

    assert found.jobs == []
    assert message in messages(found)


def test_workflows_are_found_by_their_kind_wherever_they_stand() -> None:
    item = json.dumps({"kind": "CronWorkflow", "metadata": {"name": "a"}, "spec": {
        "schedule": "0 2 * * *", "workflowSpec": {"entrypoint": "m", "templates": [
            {"name": "m", "container": {"command": ["x"]}}]}}})  # fmt: skip
    source = Origin(f'{{"kind": "List", "items": [{item}]}}', "all.json")

    assert read.kind_of(source) == "kubernetes"
    assert read.kind_of(Origin("kind: CronWorkflow\n", "stdin")) == "kubernetes"
    assert only_job(read.read([source], None, None, START))["command"] == ["x"]
