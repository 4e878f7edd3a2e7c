"""Tool definitions: not offered, but a request that turns them off is served without them."""

from gateway.dialects.openai.neutral import is_neutral, is_one_of
from gateway.dialects.openai.refusals import unsupported
from gateway.dialects.openai.schema import ChatBody

_DEFINITIONS = {"tools": "tool_choice", "functions": "function_call"}  # and what turns them off


def tools_refuse(body: ChatBody) -> frozenset[str]:
    """The definitions to pass over, because the request itself turns them off. Raises ApiError."""
    turned_off = set()
    for definitions, choice in _DEFINITIONS.items():
        if is_neutral(body, definitions):
            continue
        asked = getattr(body, choice)
        if not asked or not is_one_of(asked, ["none"]):
            reason = f'are not supported: leave them out, or send a {choice} of "none"'
            raise unsupported(definitions, reason)
        turned_off.add(definitions)
    return frozenset(turned_off)
