"""What a newcomer copies from the terminal once everything runs."""

from typing import Any, Final

from devservices.state import UpSettings

QUESTION: Final = "What is the capital of France?"  # one that a very small model answers


def ready_text(settings: UpSettings, seeded: dict[str, Any], model: str) -> str:
    """Begins with the line `ready <url>`, which scripts wait for."""
    key, admin = seeded["tenants"][0]["api_key"], seeded["admin"]
    url = settings.base_url
    return f"""ready {url}

curl -N {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "stream": true, "temperature": 0,
       "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'

# Python, after: pip install openai
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
question = [{{"role": "user", "content": "{QUESTION}"}}]
for chunk in client.chat.completions.create(model="{model}", messages=question, temperature=0, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

console {url}/console/   user {admin["username"]}   password {admin["password"]}
keys    {settings.state / "demo.json"}   logs {settings.state / "log"}   Ctrl-C stops everything"""
