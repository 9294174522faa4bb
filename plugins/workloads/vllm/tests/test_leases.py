"""A prompt's KV cache may be fetched once, by who asks in time, with the weights that made it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolemesh_vllm import leases
from rolemesh_vllm.leases import LeaseOffice, Ticket, claim

NEEDS_IPV6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


@pytest.fixture(params=["127.0.0.1", pytest.param("::1", marks=NEEDS_IPV6)])
def office(request: pytest.FixtureRequest) -> Iterator[LeaseOffice]:
    made = LeaseOffice(request.param, "engine-a", lease=30)
    yield made
    made.close()


def ticket(office: LeaseOffice, request: str, *, engine: str = "engine-a", version: int = 4) -> Ticket:
    return Ticket(office=office.address, engine=engine, request=request, version=version, params={"of": request})


def test_a_ticket_is_good_once(office: LeaseOffice) -> None:
    office.grant("a")
    office.grant("b")
    both = [ticket(office, "a"), ticket(office, "b")]
    assert claim(both, 4) == [{"of": "a"}, {"of": "b"}]
    assert claim(both, 4) == [None, None]


def test_rows_without_a_ticket_and_unknown_requests_get_nothing(office: LeaseOffice) -> None:
    office.grant("b")
    assert claim([None, ticket(office, "a"), ticket(office, "b")], 4) == [None, None, {"of": "b"}]


def test_a_cache_of_other_weights_is_not_fetched(office: LeaseOffice) -> None:
    office.grant("a")
    assert claim([ticket(office, "a")], 5) == [None]


def test_a_restarted_engines_old_tickets_are_refused(office: LeaseOffice) -> None:
    office.grant("a")
    assert claim([ticket(office, "a", engine="engine-b")], 4) == [None]


def test_a_lease_near_its_end_is_not_begun(office: LeaseOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    for name in ("early", "late"):
        office.grant(name)
    now[0] = 119.9
    assert office.claim("engine-a", ["early"]) == [True]
    now[0] = 120.1
    assert office.claim("engine-a", ["late"]) == [False]


def test_a_prefill_rank_that_is_gone_costs_a_wait_and_no_error(
    office: LeaseOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ANSWER_S", 1.0)
    gone = LeaseOffice("127.0.0.1", "engine-a", lease=30)
    gone.grant("a")
    gone.close()
    office.grant("b")
    assert claim([ticket(gone, "a"), ticket(office, "b")], 4) == [None, {"of": "b"}]
