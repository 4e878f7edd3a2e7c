"""What the page calls each plot of a result, and what it says below the name."""

from dataclasses import dataclass

from fleetsim.report.result import Plot


@dataclass(frozen=True, slots=True)
class Words:
    name: str
    lead: str


PLOTS = {
    "ttft_ms": Words(
        "First token over time", "From arrival to the first token, of requests that got it then."
    ),
    "queue_depth": Words("Queue", "Requests that wait for a replica."),
    "arrivals_per_s": Words("Arrivals", "Requests a second."),
    "tokens_per_s": Words("Tokens a second", "Generated and prefilled, of all replicas."),
    "tenant_tokens_per_s": Words("Service over time", "Output tokens a second by tenant."),
    "utilisation": Words("Utilisation", "Machine time used, of what the replicas have."),
    "usd_per_million": Words("Cost", "Dollars for a million output tokens, of what the replicas cost."),
    "replicas": Words("Replicas", "Ready to take requests."),
}


def words_of(plot: Plot) -> Words:
    return PLOTS.get(plot.id, Words(plot.id.replace("_", " ").capitalize(), ""))
