"""Each form of a secret, for each consumer of the one list of forms; and what looks like one and is none."""

from __future__ import annotations

import io
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.imports import import_text, messages
from yamlsched import log
from yamlsched.db.dsn import redactor
from yamlsched.extras.importing.write import as_jobs
from yamlsched.runs.backoff import Backoff
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, after_attempt
from yamlsched.schedule.checks import check_all
from yamlsched.schedule.load import load
from yamlsched.secret_forms import mask, mask_command, mask_value
from yamlsched.sync.edits import _shown
from yamlsched.worker.output import AttemptOutput

COMMANDS = r"""
curl -H "Authorization: Bearer hunter2x" https://h
curl --header=X-Api-Key:hunter2x https://h
curl -H "X-Api-Key: hunter2x" https://h
curl -H "PRIVATE-TOKEN: hunter2x" https://h
curl -b "Cookie: id=hunter2x" https://h
curl --oauth2-bearer hunter2x https://h
curl -u maria:hunter2x https://h
curl --user maria:hunter2x https://h
curl --proxy-user=maria:hunter2x https://h
docker login -u maria -p hunter2x registry
/usr/bin/mongodump -u a -p hunter2x
/usr/bin/mongodump --uri mongodb://a:hunter2x@db/x
smbclient //h/s -U maria%hunter2x
openssl enc -pass pass:hunter2x -in a
openssl rsa -passin pass:hunter2x
ldapsearch -D cn=x -w hunter2x
7z a -phunter2x a.7z d
zip -P hunter2x a.zip d
zip -Phunter2x a.zip d
mysql -phunter2x db
mysqldump -u root -phunter2x db
mysqldump --password=hunter2x db
mytool --password hunter2x db
redis-cli -a hunter2x ping
sshpass -p hunter2x ssh h
sshpass -phunter2x ssh h
sqlcmd -S h -U u -P hunter2x
lftp -u maria,hunter2x ftp.h
plink -pw hunter2x h
sqlplus scott/hunter2x@db
env PGPASSWORD=hunter2x pg_dump
git clone https://ghp_hunter2xhunter2xhunter2x@github.com/a/b
git clone https://maria:hunter2x@host/a
curl https://hooks.slack.com/services/T0/B0/hunter2x
curl https://h/?token=hunter2x&a=1
mytool --api-key=hunter2x
wget --http-password=hunter2x https://h
curl -d '{"password": "hunter2x"}' https://h
sh -c "mysqldump -phunter2x db | gzip"
nice -n 5 mysqldump -phunter2x db
snowsql --private-key-passphrase hunter2x
psql "host=db password=hunter2x"
psql postgresql://app:hun@ter2xhunter2x@db/x
""".strip().splitlines()
HARMLESS = r"""
mkdir -p dir
ssh -p 22 host
docker run -p 80:80 nginx
docker run -u 1000:1000 nginx
docker run -u app:staff nginx
server -p 8080
/usr/bin/backup --file=/srv/a.dump --keep 3
curl https://hc-ping.com/6a2c0ad1-1e5e-4c9e-9b44-8ef0d3a1f7c2
curl http://localhost:8080/users/@me
psql -h db -U app -d app --no-password orders
psql postgresql://app@db/app
ssh git@github.com
git clone ssh://git@github.com/a/b
rsync -u web1:/srv/data /backup
cp -u a b
tool --token-file /etc/t
tool --password-file=/run/secrets/x
docker login --password-stdin registry.example.org
sh -c "mysql -p$PW db"
sh -c "mysql -p\"$PW\" db"
sh -c "PGPASSWORD=$PGPW pg_dump"
sh -c "PGPASSWORD=$(cat /run/x) pg_dump"
curl -H "Authorization: Bearer $TOKEN" https://h
curl -H "Content-Type: application/json" https://h
unexpected token: foo
Invalid password: try again
mysql -P 3306 -h db orders
mysql -p orders
zip -r a.zip dir
unzip -p a.zip file
tar -czf a.tgz --exclude=.cache /srv
python -m pytest -p no:cacheprovider
find / -user root -perm 600
tokens=120 keys=3 monkey=1
postgres://app:$PASSWORD@db/x
postgres://app:${PASSWORD}@db/x
GET http://127.0.0.1:5432/a@b
basic authentication failed
bearer authentication required
2026-01-14T02:00:00 INFO attempt.failed job=x run=1 key=x:2026 error="no"
openssl enc -pass file:/etc/p -in a
7z a -p a.7z
ldapsearch -W -x
build docker --secret id=npm,src=/x
if [ "$token" == x ]; then
s3://bucket/key:with:colons@x
""".strip().splitlines()
VALUES = {
    **dict.fromkeys(
        ("PGPASSWORD", "DBPASSWORD", "MYSQL_PWD", "API_KEY", "apiKey", "GITHUB_PAT", "CREDS"),
        "hunter2x",
    ),
    **dict.fromkeys(
        ("NPM_AUTHTOKEN", "BEARER", "SIGNING_SALT", "CERT_PEM", "SESSION_ID"), "hunter2x"
    ),
    "DATABASE_URL": "postgres://app:hunter2x@db/app",
    "REDIS_URL": "redis://:hunter2x@redis",
    "AMQP": "amqp://u:hunter2x@mq",
    "CHAT": "https://hooks.slack.com/services/T0/B0/hunter2x",
    "OPTIONS": "--password=hunter2x",
}
"""Variables that are secrets by their name, and others that are by their value."""
PUBLIC = {
    "TOKEN_FILE": "/etc/t",
    "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google/account.json",
    "DB_URL": "postgresql://app@db/app",
    "PING": "https://hc-ping.com/6a2c0ad1-1e5e-4c9e-9b44-8ef0d3a1f7c2",
    "AUTHOR": "maria",
    "PASSWORD": "$OTHER",
    "PATH": "/usr/bin:/bin",
}
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
RUN = ClaimedRun(1, "purge", None, None, 1, 5, "{}", False, 120.0, "A")


def of_commands(commands: list[str]) -> list[tuple[str, list[str]]]:
    """Return each command with its words, which are one if a shell would not read it."""
    words = []
    for command in commands:
        try:
            words.append((command, shlex.split(command)))
        except ValueError:
            words.append((command, [command]))
    return words


def with_secrets(jobs: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the jobs of which validate reports that they have a secret, in a file of all."""
    file = Path("schedules.yaml")
    lines = [f"  j{nth}: {json.dumps(job)}" for nth, job in enumerate(jobs)]
    loaded = load("\n".join(["version: 1", "jobs:", *lines]).encode(), str(file), None)
    assert len(loaded.jobs) == len(jobs)
    found = {each.line for each in check_all(loaded, file, (), NOW) if each.code == "YS409"}
    return [job for line, job in enumerate(jobs, 3) if line in found]


def test_validate_finds_each_secret_and_nothing_that_only_looks_like_one() -> None:
    commands: list[dict[str, object]] = [{"command": words} for _, words in of_commands(COMMANDS)]
    variables: list[dict[str, object]] = [
        job
        for name, value in VALUES.items()
        for job in (
            {"command": ["true"], "env": {name: value}},
            {"handler": "shop.mail.send", "payload": {"list": [{name: value}]}},
        )
    ]
    harmless: list[dict[str, object]] = [
        *({"command": words} for _, words in of_commands(HARMLESS)),
        *({"command": ["true"], "env": {name: value}} for name, value in PUBLIC.items()),
    ]

    assert with_secrets(commands) == commands
    assert with_secrets(variables) == variables
    assert with_secrets(harmless) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_secret_in_a_command_is_found_by_every_consumer(command: str) -> None:
    words = shlex.split(command)
    end = AttemptEnd(EndKind.RAISED, command, "X", stack=command, output=command)
    outcome = after_attempt(RUN, end, Backoff(), 0.0, redactor(""))
    imported = import_text(f"0 1 * * * {command}\n".replace("%", "\\%"))
    [comment] = [line for line in as_jobs(imported.jobs, "UTC", "").splitlines() if line[0] == "#"]
    texts = {
        "text": mask(command),
        "edits": str(_shown("command", words)),
        "words": str(mask_command(words)),
        "error": outcome.error,
        "stack": outcome.stack,
        "output": outcome.output,
        "comment of import": comment,
        "report of import": messages(imported),
    }

    assert {name: text for name, text in texts.items() if "ter2x" in str(text)} == {}
    assert "the command contains what looks like a secret" in messages(imported)


@pytest.mark.parametrize("name, value", VALUES.items())
def test_a_secret_in_a_variable_is_found_by_every_consumer(name: str, value: str) -> None:
    imported = import_text(f"{name}={value}\n0 1 * * * one\n")

    assert mask_value(name, value) != value
    assert "hunter2x" not in str(_shown("env", {name: value}))
    assert "hunter2x" not in mask(f"{name}={value}")
    assert "hunter2x" not in mask(json.dumps({name: value}))
    assert "env" not in imported.jobs[0].keys
    assert f"{name} looks like a secret" in messages(imported)


def test_what_only_looks_like_a_secret_stays() -> None:
    for command, words in of_commands(HARMLESS):
        assert mask(command) == command
        assert mask_command(words) == words
    for name, value in PUBLIC.items():
        assert mask_value(name, value) == value


@pytest.mark.parametrize(
    "text, masked",
    [
        ("failed: https://u:pa@ss@db.internal/x", "failed: https://u:***@db.internal/x"),
        ("GET /x?token=hunter2x&page=2", "GET /x?token=***&page=2"),
        ("{'password': 'hunter2x', 'user': 'a'}", "{'password': '***', 'user': 'a'}"),
        ('{"password": "hunter2x", "user": "a"}', '{"password": "***", "user": "a"}'),
        (r'"{\"password\": \"hunter2x\"}"', r'"{\"password\": \"***\"}"'),
        ("authorization: Bearer hunter2x", "authorization: Bearer ***"),
        ("a\npassword = 'x y'\nb", "a\npassword = ***\nb"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END", "-----BEGIN PRIVATE KEY-----***-----END"),
    ],
)
def test_a_secret_in_an_error_is_masked_and_the_rest_stays(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_run_prints_is_masked_in_log_lines(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_NOTIFY_URL", "json://u:hunter2y@h/SECRETPATH")
    dsn = "postgresql://app:hunter2x@db/app"
    log.configure(as_json=as_json)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    log.set_mask(redactor(dsn, ["OPS_NOTIFY_URL"]))
    try:
        pipe = AttemptOutput(RUN)
        pipe.add(f"dsn is {dsn}\nhunter2x and /SECRETPATH\npart hunter2y".encode())
        pipe.take(is_kept=False)
    finally:
        log.set_mask(mask)
        log.configure()

    printed = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "dsn is ***" in printed
    assert not any(secret in printed for secret in ("hunter2", "SECRETPATH"))


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "a ", "://", "://a:", "://a:b@", "@", '"', '\\"', '"a":"', "\\", "password="),
        *("password='", "-", "--", "-u a:", "mysql -p", "mysql '", "a-", "cookie:"),
        *("eyJ-", "smbclient -U a", " ", "\n"),
    ],
)
def test_the_work_for_a_long_line_is_proportional_to_its_length(piece: str) -> None:
    hints = "password : = - -u mysql smbclient cookie authorization bearer eyj gh https://"
    text = f"{hints} {piece * (30_000 // len(piece))}"

    assert mask(text)  # a search whose work grows with the square of the length would take minutes
