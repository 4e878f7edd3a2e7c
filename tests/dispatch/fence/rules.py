"""What must hold when a world has come to rest: every request has ended as it may, and nothing is left."""

from gateway.upstream.failover import MOVES_MOST
from tests.dispatch.fence.gateway import Order
from tests.dispatch.fence.world import World


def broken(world: World) -> list[str]:
    """Empty when all is well."""
    orders = [order for gateway in world.gateways for order in gateway.orders]
    endings = [
        f"{order.request_id} of {order.digest} {problem}"
        for order in orders
        if (problem := _ending_problem(order))
    ]
    return world.ledger.wrong + endings + _left_over(world) + _charge_problems(world)


def _ending_problem(order: Order) -> str:
    (stream,) = order.streams
    if not order.has_ended:
        return f"was lost: {order.rows} tokens, on {stream.worker or 'no worker'}"
    if order.failure is None:
        is_whole = order.rows == order.max_tokens or order.was_cancelled
        return "" if is_whole else f"ends after {order.rows} of {order.max_tokens} tokens"
    code, moves = order.failure.code, stream.submit.moves
    match code:
        case "replica_lost":
            has_shown = order.rows > 0 and not stream.submit.wants_ids
            is_allowed = order.was_cancelled or has_shown or moves >= MOVES_MOST
        case "request_quarantined":
            is_allowed = moves >= MOVES_MOST
        case "request_cancelled":
            is_allowed = order.was_cancelled
        case "queue_full":  # shed: nothing was served for longer than it may wait
            is_allowed = order.rows == 0
        case _:
            is_allowed = False
    return "" if is_allowed else f"fails with {code} after {moves} moves: {order.failure.message}"


def _left_over(world: World) -> list[str]:
    core = world.dispatcher.core
    found = []
    for gateway in core._members.gateways.values():
        found += [f"the dispatcher keeps {row}" for row in gateway.rows]
    for worker in core._members.workers.values():
        counts = (worker._rows, worker._unprefilled_blocks, worker._unreported_tokens)
        if worker.placed or counts != (0, 0, 0):
            found.append(f"the dispatcher keeps {counts} of {worker.hello.incarnation}")
    for version in core._versions:
        found += [f"the queue keeps {flow}" for flow in version.queue.flows()]
    for node in world.workers:
        if node.is_alive and node.backend.rows:
            found.append(f"{node.incarnation} still runs {list(node.backend.rows)}")
    return found


def _charge_problems(world: World) -> list[str]:
    """A flow pays for what began to run, and for nothing else."""
    dispatcher = world.dispatcher
    if dispatcher.kept_us == dispatcher.charged_us:
        return []
    return [f"charged {dispatcher.charged_us} us for what cost {dispatcher.kept_us}"]
