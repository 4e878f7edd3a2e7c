"""Every bound of the gateway in one place: sizes, counts, waits. docs/streaming.md repeats these values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout_s: float = 30.0
    max_open_requests: int = 4096
    max_buffered_body_bytes: int = 256 * 1024 * 1024  # all requests of this process together
    default_max_tokens: int = 1024
    max_deadline_s: float = 600.0
    max_queue_s: float = (
        30.0  # until the first token, of interactive requests whose clients state no deadline
    )
    max_queue_s_per_token: float = 0.01  # of the prompt, more: the slowest replicas compute it in that time
    max_open_requests_per_key: int = 1024  # where the key says nothing
    max_sockets: int = 4096
    max_sockets_per_key: int = 64
    max_socket_requests: int = 64  # at once on one socket
    max_socket_message_bytes: int = 4 * 1024 * 1024 + 64 * 1024  # a body, and the frame around it
    socket_ping_s: float = 20.0  # silence before a ping
    socket_close_s: float = 0.2  # between a revoked key's last error frames and the close
    resume_grace_s: float = 30.0  # a generation goes on without its client this long, if that was asked for
    max_stored_answer_bytes: int = 1024 * 1024  # larger ones are not kept for a repeated key
    deadline_grace_s: float = 5.0  # the dispatcher and the worker end a request first
    keepalive_s: float = 10.0  # silence before a comment is sent
    pause_bytes: int = 64 * 1024  # unsent, per stream: beyond it the replica pauses, below half it goes on
    max_pending_bytes: int = 1024 * 1024  # beyond it the stream is cut at once
    slow_reader_s: float = 30.0  # a write that nobody reads
    final_write_s: float = 2.0  # for the error event of a stream that was cut
    drain_s: float = 10.0  # SLUICE_DRAIN_S: uvicorn's --timeout-graceful-shutdown cancels what is left
    drain_margin_s: float = 2.0  # before that the streams left are ended, with their error event and usage
    settle_s: float = 5.0  # wait for the worker's final counts after a cancel
    worker_unreachable_s: float = 5.0  # no token connection to the replica a request was placed on
    dispatcher_grace_s: float = 10.0  # queued requests outlive a dispatcher's restart this long
    watchdog_interval_s: float = 1.0
    quota_answer_s: float = 0.02  # of the quota store: without it, this gateway grants by itself
    spool_quota_bytes: int = 1 << 30
    max_spool_fraction: float = 0.8  # fuller: admit nothing, because unbilled service is a loss
    spool_aside_retry_s: float = 60.0
    header_timeout_s: float = 10.0
    max_header_bytes: int = 32 * 1024  # request line, headers and trailers; also any run of chunk framing
    max_header_count: int = 100
    max_pipelined: int = 8  # requests waiting on a connection behind the one being served
    linger_s: float = 2.0  # between the last byte of an answer and the close, if the client still sends
    linger_bytes: int = 8 * 1024 * 1024  # read and dropped meanwhile
    write_buffer_bytes: int = 32 * 1024  # of the server: a reader is slow while it takes less than half of it
    send_buffer_bytes: int = 128 * 1024  # of the kernel, which doubles it: unread events that nobody counts
