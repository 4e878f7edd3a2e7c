"""What fairness needs across a takeover: who was given more than others, as text in the lease's store.

The rest comes back from workers and gateways. Without it all flows are equal from that moment.
"""

import heapq
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from policy.flow import Flow

Leads = Mapping[str, Mapping[Flow, int]]  # by digest: microseconds of virtual time, `ModelQueue.leads`
NO_LEADS: Final[Leads] = MappingProxyType({})
MOST_FLOWS = 4_096  # those that are furthest; the others are equal

logger = logging.getLogger(__name__)


class _Lead(msgspec.Struct, array_like=True):
    digest: str
    tenant: str
    klass: str
    lead_us: int


_decoder = msgspec.json.Decoder(list[_Lead])


def leads_write(leads: Leads) -> str:
    found = (_Lead(digest, *flow, lead) for digest, flows in leads.items() for flow, lead in flows.items())
    most = heapq.nlargest(MOST_FLOWS, found, key=lambda lead: lead.lead_us)
    return msgspec.json.encode(most).decode()


def leads_read(text: str) -> Leads:
    """None where it is empty, or another release's."""
    leads: dict[str, dict[Flow, int]] = {}
    try:
        for lead in _decoder.decode(text) if text else ():
            leads.setdefault(lead.digest, {})[Flow(lead.tenant, lead.klass)] = max(0, lead.lead_us)
    except msgspec.MsgspecError as error:
        logger.warning("what the last dispatcher left cannot be read: %s", error)
        return NO_LEADS
    return leads
