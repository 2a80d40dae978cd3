"""The namespace and the time zone of a file, read without the rest, are those that the whole check finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from yamlsched.schedule import load as head
from yamlsched.schedule.load import load

MISTAKES = Path(__file__).parent / "mistakes"


def assert_head_alike(data: bytes) -> None:
    loaded = load(data, "schedules.yaml", None)
    assert head.read_head(data, "schedules.yaml") == (loaded.namespace, loaded.timezone), data


@pytest.mark.parametrize("file", sorted(MISTAKES.glob("*.yaml")), ids=lambda file: file.name)
def test_namespace_and_time_zone_of_an_invalid_file_are_those_of_the_whole_check(
    file: Path,
) -> None:
    assert_head_alike(file.read_bytes())


VALUES = (
    "", "shop", "Shop", "'shop '", '"shop\\n"', "a" * 63, "a" * 64, "''", "1", "null", "~", "[shop]", "{a: b}", "*x",
    "*y", "&y shop", "!!str 1", "!!str shop", "!other shop", "!!int shop", "010", ".inf", "|\n  shop\n", ">-\n  UTC\n",
    "Europe/Berlin", "europe/berlin", "Factory", "CET", "local", "UTC", "+01:00",
)  # fmt: skip


@pytest.mark.parametrize("key", ["namespace", "timezone", "namespce", "tz"])
def test_any_value_of_namespace_and_time_zone_is_read_as_by_the_whole_check(key: str) -> None:
    for value in VALUES:
        for more in (
            "",
            "namespace: other\n",
            "timezone: Asia/Tokyo\n",
            "version: 2\n",
            "{\n",
            "x-b: *none\n",
        ):
            text = f"version: 1\nx-a: &x Europe/Paris\n{key}: {value}\n{more}jobs:\n  a: {{handler: m.f}}\n"
            assert_head_alike(text.encode())
    for data in (
        b"",
        b"[]",
        b"a",
        b"\xff",
        b"namespace: \xff\n",
        b"\xef\xbb\xbfnamespace: a\n",
        "namespace: é\n".encode(),
    ):
        assert_head_alike(data)
