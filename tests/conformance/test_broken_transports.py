"""For every standard test of a transport there is one that does just that wrong, and it is caught."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance import broken_transports as broken
from tests.conformance.harness import outcomes, own_tests

from rolemesh_testing import TransportConformance
from rolemesh_testing.transports import conformance, party

BROKEN: dict[str, Any] = {
    "test_its_address_is_a_short_line_of_text": broken.Verbose,
    "test_two_ranks_have_two_addresses": broken.Crowded,
    "test_values_of_every_size_arrive_as_they_were_sent": broken.SENDING[broken.Truncating],
    "test_every_bit_of_every_type_arrives": broken.SENDING[broken.Rounding],
    "test_a_value_of_many_buffers_arrives_whole": broken.SENDING[broken.FewBuffers],
    "test_everything_arrives_once_and_in_order": broken.SENDING[broken.Hurrying],
    "test_both_directions": broken.SENDING[broken.Deaf],
    "test_several_peers_send_to_one": broken.SENDING[broken.Twice],
    "test_one_payload_goes_to_several_peers": broken.SENDING[broken.OneOnly],
    "test_a_slot_may_be_written_again_once_it_was_released": broken.SENDING[broken.Lazy],
    "test_a_send_does_not_wait_for_a_peer": broken.SENDING[broken.Blocking],
    "test_connecting_does_not_wait_for_a_peer": broken.Probing,
    "test_frames_sent_before_an_orderly_close_arrive": broken.SENDING[broken.Abrupt],
    "test_closing_keeps_its_time_limit": broken.SENDING[broken.Patient],
    "test_between_two_processes": broken.Homebound,
    "test_a_killed_peer_blocks_no_other": broken.SENDING[broken.Mourning],
    "test_the_next_generation_of_a_peer_is_reached": broken.Reusing,
    "test_it_works_for_single_edges_beside_another_transport": broken.Claiming,
    "test_it_has_refused_no_peer_at_first": broken.Suspicious,
    "test_a_stranger_on_the_network_is_refused_and_counted": broken.Open,
    "test_nothing_is_left_after_close": broken.Forgetting,
    "test_an_unused_transport_can_be_closed": broken.Expecting,
    "test_many_connections_are_closed_again": broken.SENDING[broken.Hoarding],
    "test_several_in_one_process_do_not_disturb_each_other": broken.Global,
}


def test_each_standard_test_has_a_broken_transport() -> None:
    assert BROKEN.keys() == own_tests(TransportConformance)


@pytest.mark.soak
@pytest.mark.slow
def test_the_kit_finds_each_mistake_of_a_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (party, conformance):
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(party.Party.wait_for, "__defaults__", (1.0,))
    classes = {
        f"Test{index:02}": type("Broken", (TransportConformance,), {"plugin": wrong})
        for index, wrong in enumerate(BROKEN.values())
    }
    found = outcomes(classes, chosen={f"Test{index:02}": {test} for index, test in enumerate(BROKEN)})
    missed = [test for index, test in enumerate(BROKEN) if test not in found.failed.get(f"Test{index:02}", {})]
    assert not missed, found.output
