"""The manifests of docs/kubernetes.md, by its text: what KEDA and Kubernetes accept, and the query of the scaler."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest
import yaml

from support.rows import a_job, a_run

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
FILES = dict(re.findall(r"(?s)```yaml\n# (gpu-\w+\.yaml)\n(.*?)```", PAGE))


def fields(required: list[str], **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has no other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
META = {
    "apiVersion": {"const": "keda.sh/v1alpha1"},
    "kind": TEXT,
    "metadata": fields(["name"], name=TEXT),
}
REQUIRED = ["apiVersion", "kind", "metadata", "spec"]
# The fields of KEDA 2.17 that the page may use: apis/keda/v1alpha1/scaledjob_types.go and
# triggerauthentication_types.go, and those of pkg/scalers/postgresql_scaler.go, all of which are strings
TRIGGER = fields(
    ["type", "metadata"],
    type={"const": "postgresql"},
    name=TEXT,
    authenticationRef=fields(["name"], name=TEXT, kind=TEXT),
    metadata=fields(
        ["query", "targetQueryValue"],
        query=TEXT,
        targetQueryValue={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
        activationTargetQueryValue={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
    ),
)
KEDA = {
    "ScaledJob": fields(
        ["jobTargetRef", "triggers"],
        jobTargetRef={"type": "object"},
        pollingInterval=COUNT,
        successfulJobsHistoryLimit=COUNT,
        failedJobsHistoryLimit=COUNT,
        envSourceContainerName=TEXT,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        triggers={"type": "array", "items": TRIGGER, "minItems": 1},
    ),
    "TriggerAuthentication": fields(
        ["secretTargetRef"],
        secretTargetRef={
            "type": "array",
            "items": fields(["parameter", "name", "key"], parameter=TEXT, name=TEXT, key=TEXT),
        },
    ),
}


@pytest.fixture(scope="module")
def keda() -> dict[str, Any]:
    """The manifests for KEDA, by kind."""
    return {found["kind"]: found for found in yaml.safe_load_all(FILES["gpu-keda.yaml"])}


@pytest.mark.parametrize("kind", KEDA)
def test_a_manifest_for_keda_has_the_fields_that_keda_knows(
    keda: dict[str, Any], kind: str
) -> None:
    jsonschema.validate(keda[kind], fields(REQUIRED, **META, spec=KEDA[kind]))


def test_the_scaler_gets_its_connection_from_the_secret_of_the_worker(keda: dict[str, Any]) -> None:
    [trigger] = keda["ScaledJob"]["spec"]["triggers"]
    authentication = keda["TriggerAuthentication"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    [secret] = authentication["spec"]["secretTargetRef"]
    assert secret["parameter"] == "connection"
    [container] = keda["ScaledJob"]["spec"]["jobTargetRef"]["template"]["spec"]["containers"]
    sources = {one["name"]: one["valueFrom"] for one in container["env"]}
    assert sources["YAMLSCHED_DSN"]["secretKeyRef"] == {
        "name": secret["name"],
        "key": secret["key"],
    }


@pytest.mark.parametrize("page", ["kubernetes.md", "started-workers.md"])
def test_the_query_of_a_scaler_has_one_number_also_while_there_is_nothing_to_do(
    db: psycopg.Connection[Any], page: str, keda: dict[str, Any]
) -> None:
    if page == "kubernetes.md":
        query = keda["ScaledJob"]["spec"]["triggers"][0]["metadata"]["query"]
    else:
        text = (ROOT / "docs" / page).read_text("utf-8")
        [query] = re.findall(r"(?s)```sql\n(select coalesce.*?queue_load.*?)```", text)

    def answer() -> Any:
        [row] = db.execute(query).fetchall()  # KEDA takes no row for an error
        return row[0]

    assert answer() == 0
    earlier = "(now() - interval '1 minute')"
    job = a_job(db, overlap="allow")
    times = {"queue": "gpu", "run_at": earlier, "created_at": earlier}
    db.execute(
        "insert into yamlsched.namespaces (namespace) values ('default') on conflict do nothing"
    )
    for _ in range(2):
        a_run(db, job, **times)
    a_run(db, job, status="running", locked_by="gpu-1:web-1:4711:c0ffee", **times)
    a_run(db, job, **(times | {"queue": "other"}))
    assert answer() == 3


@pytest.mark.story
@pytest.mark.skipif(
    not shutil.which("kubernetes-validate"), reason="pip install kubernetes-validate: it is 100 MB"
)
@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_kubernetes_accepts_the_workers_of_the_page(
    keda: dict[str, Any], version: str, tmp_path: Path
) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "made-by-keda"},
        "spec": keda["ScaledJob"]["spec"]["jobTargetRef"],
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    words = ["kubernetes-validate", "--strict", "--kubernetes-version", version]
    done = subprocess.run(
        [*words, tmp_path / "job.yaml"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    printed = done.stdout + done.stderr
    assert (done.returncode, "ERROR" in printed) == (0, False), printed
