"""Of the suite `dispatch`, what policies decide there: where a request begins, and whether it may wait."""

from bench.mutate.mutation import Mutation

SUBMITTING = "platform/dispatch/submitting.py"
REQUESTS = "platform/dispatch/requests.py"
REPORTING = "platform/dispatch/reporting.py"
ANSWERS = "platform/dispatch/answers.py"
PREFIXES = "platform/dispatch/prefixes.py"
ADMISSION = "platform/policy/admission.py"
DEADLINES = "platform/policy/deadlines.py"
ENTRANCE = "platform/policy/entrance.py"
PLACEMENT = "platform/policy/placement.py"
PLACER = "platform/policy/placer.py"
INDEX = "platform/policy/router_index.py"
ROOM = "platform/policy/room.py"
ROOMS = "platform/policy/rooms.py"
ROUTER = "platform/policy/router.py"

POLICIES = [
    Mutation("held prefixes kept", INDEX, "entry.pop(slot, None)", "pass"),
    Mutation("held prefixes not forgotten", INDEX, "        if is_reset:\n", "        if False:\n"),
    Mutation(
        "prefix with a hole",
        INDEX,
        "!= _REPORTED:\n                break",
        "!= _REPORTED:\n                continue",
    ),
    Mutation(
        "a hit is worth nothing",
        ROOM,
        "waiting.prompt_tokens - int(cached_tokens))",
        "waiting.prompt_tokens)",
    ),
    Mutation("prompts before it cost nothing", ROOM, "cost.token_ms * (before + new)", "cost.token_ms * new"),
    Mutation("nothing is guessed", PLACER, "prefixes.placed(key, head.chains, now_ms)", "pass"),
    Mutation("what nobody holds has no home", ROOMS, "if waiting.chains and not hits:", "if False:"),
    Mutation("tenants share prefixes", PREFIXES, "self._secret, submit.tenant,", 'self._secret, "",'),
    Mutation(
        "short prompts move",
        PLACEMENT,
        "if prompt_tokens - cached_tokens < PREFILL_REMOTE_TOKENS:",
        "if False:",
    ),
    Mutation("helper far behind", PLACEMENT, "r.pending_tokens < PREFILL_BACKLOG_TOKENS", "True"),
    Mutation(
        "cached prompts cost all",
        SUBMITTING,
        "version.queue.prefixes.most(request.waiting.chains, now_ms)",
        "0",
    ),
    Mutation(
        "more is promised than is booked",
        ADMISSION,
        "or not self.bookings.book(waiting, now_ms + told_ms):\n            return 0",
        "or not self.bookings.book(waiting, now_ms + told_ms):\n            return 60_000",
    ),
    Mutation("a last token may be late", ADMISSION, "if waiting.whole_by_ms < inf:", "if False:"),
    Mutation(
        "a whole answer's first token may be late",
        ADMISSION,
        "if waiting.service_ms - whole_ms > own_ms - allowed_ms:",
        "if True:",
    ),
    Mutation("a full queue breaks promises", ADMISSION, "part * most) and not is_booked", "part * most)"),
    Mutation(
        "rows beside it cost nothing",
        ENTRANCE,
        "estimate.row_limit - drain.free_rows / max(1, drain.replicas) + 1",
        "estimate.row_limit",
    ),
    Mutation(
        "a last token is not waited for",
        DEADLINES,
        "min(waiting.latest_ms, waiting.whole_by_ms - waiting.service_ms)",
        "waiting.latest_ms",
    ),
    Mutation("failed rows count whole", REPORTING, "was_cut=row in cut", "was_cut=False"),
    Mutation(
        "cancelled rows count whole", REPORTING, "was_cut or bool(request.cancel_reason) or", "was_cut or"
    ),
    Mutation(
        "who waited in vain is told anything",
        ANSWERS,
        "queue.retry_after_ms(request.waiting, now_ms)",
        "5_000",
    ),
    Mutation(
        "who waits for the whole is not known",
        REQUESTS,
        "request.deadline_ms if submit.is_whole else math.inf",
        "math.inf",
    ),
    Mutation("nobody waits for what is computed anew", ROOM, "score_ms += busy * own_ms", "pass"),
    Mutation("guesses never fade", INDEX, "return exp(-age_ms / FADE_MS) if", "return 1.0 if"),
    Mutation("names grow for ever", INDEX, "if len(self._entries) > self._most_names:", "if False:"),
    Mutation("decodes leave all of a step", ROOM, "(cost.base_ms + decode_ms + spare_ms) / spare_ms", "1.0"),
    Mutation("who is suspect is chosen", ROUTER, "if replica.reported_ms >= suspect_ms:", "if True:"),
    Mutation(
        "what is stale is believed", ROUTER, "is_stale=replica.reported_ms < stale_ms", "is_stale=False"
    ),
    Mutation("no pool is for long prompts", ROUTER, "replica.is_for_long_prompts != is_long", "False"),
    Mutation("a loaded home is kept", ROUTER, "one.room.rows < most_rows and", ""),
    Mutation("nobody is drawn", ROUTER, "tied[min(rng.sample(range(len(tied)), 2))]", "tied[0]"),
]
