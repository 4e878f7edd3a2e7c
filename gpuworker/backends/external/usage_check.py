"""What an upstream says it produced, beside what we counted: one is billed, a difference is told."""

from dataclasses import dataclass

SLACK_TOKENS = 3  # an end token, and one cut in two
SLACK_PART = 0.1  # text that is tokenised anew may take fewer tokens than were sampled


@dataclass(frozen=True, slots=True)
class Verdict:
    output_tokens: int  # to bill
    problem: str  # "" when both agree


def output_judge(*, told: int | None, counted: int, own: int) -> Verdict:
    """`told` by the upstream, None when it did not; `counted` was given to gateways and cannot be taken back;
    `own` is what our tokenizer makes of the text, or the number of ids.

    The upstream is believed up to our own count and some slack: no tenant pays for tokens that nobody saw.
    """
    if told is None:
        return Verdict(max(counted, own), "")
    slack = max(SLACK_TOKENS, int(own * SLACK_PART))
    most = max(counted, own + slack)
    billed = min(max(told, counted), most)
    if abs(told - own) <= slack and billed == max(told, counted):
        return Verdict(billed, "")
    return Verdict(billed, f"told {told} output tokens, {own} were counted, {billed} are billed")


def prompt_problem(*, told: int, own: int) -> str:
    """Our own count is billed in any case: it is what was sent, and what quotas were asked for."""
    slack = max(SLACK_TOKENS, int(own * SLACK_PART))
    return f"told {told} prompt tokens, {own} were sent" if abs(told - own) > slack else ""
