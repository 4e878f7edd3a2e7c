"""Wire messages of the scripted worker, written short."""

from gpuworker.wire.messages import End, Frame


def end_of(sid: int, reason: str, *, output_tokens: int = 0) -> End:
    return End(
        sid=sid,
        reason=reason,
        prompt_tokens=128,
        cached_tokens=0,
        output_tokens=output_tokens,
        queue_ms=0,
        prefill_ms=1,
        decode_ms=1,
        preemptions=0,
    )


def frame_of(rows: list[tuple[int, int, int, str]], ends: list[End] | None = None) -> Frame:
    """`rows`: sid, output tokens before, output tokens, text."""
    return Frame(
        step=1,
        sids=[row[0] for row in rows],
        starts=[row[1] for row in rows],
        counts=[row[2] for row in rows],
        texts=[row[3] for row in rows],
        ends=ends or [],
    )
