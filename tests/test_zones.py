"""Time zones of the tzdata package."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched.errors import ScheduleError
from yamlsched.timetable.zones import zone


@pytest.mark.parametrize(
    "name",
    ["Nowhere/City", "Europe", "leapseconds", "../zones", "A" * 300, "", "UTC\n", "zone.tab"],
)
def test_a_name_without_data_is_one_kind_of_error_that_names_it(name: str):
    with pytest.raises(ScheduleError) as raised:
        zone(name)

    assert str(raised.value).startswith(f'no time zone "{name}" in time zone data 2')


@given(st.text(alphabet="ABCabc/._-+0 \0\n\ud800") | st.text())
def test_no_name_is_too_much(name: str):
    with suppress(ScheduleError):
        assert zone(name).key == name
