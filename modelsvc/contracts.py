"""What the gateway knows of a model it routes to. No Django here."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The version of a model that requests run on now.

    `digest` is the weights' digest (see `gpuworker.manifest`). The tokenizer and the chat template lie in
    the weight store under that digest. `max_context_tokens` bounds prompt plus output,
    `max_output_tokens` the output alone; None where only the context does. `smaller` is the slug of the model
    that tenants who accept it get under pressure; "" where there is none.
    """

    slug: str
    digest: str
    max_context_tokens: int
    owned_by: str
    created_at: datetime
    revision: int
    max_output_tokens: int | None = None
    smaller: str = ""
