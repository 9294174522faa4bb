"""A rank's notes outlive its process in the send log, up to the step from which it continues."""

from __future__ import annotations

from rolemesh.api.workload import RankContext
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_durable.rank.notes import Notes


def test_a_rank_takes_up_its_notes_after_the_step_from_which_it_continues_in_its_timeline(shm):
    def life(generation, resume, timeline=0):
        ctx = RankContext()
        log = SendLog(shm, "a", 0, generation=generation, resume=resume, timeline=timeline)
        notes = Notes(ctx, log)
        notes.remember(resume)
        return ctx, log, notes

    ctx, log, notes = life(0, -1)
    for ctx.step in range(4):
        assert "read" not in notes
        notes["read"], notes["clock"] = [ctx.step], 1.5
        assert notes["read"] == [ctx.step]
    log.close()
    for generation, resume in ((1, 0), (2, 1)):
        ctx, log, notes = life(generation, resume)
        for ctx.step in range(resume + 1, 4):
            assert dict(notes) == {"read": [ctx.step], "clock": 1.5}
        ctx.step = 4
        assert not notes
        log.close()
    ctx, log, notes = life(3, 1, timeline=1)
    ctx.step = 2
    assert not notes
    log.close()
