"""A request of each operation that can be pasted: for curl, and for Python's usual client of that API."""

import json

from gateway.openapi.operations import Operation
from gateway.openapi.site import BASE_URL, MODEL

_OPENAI = f"""from openai import OpenAI

client = OpenAI(
    base_url="{BASE_URL}/v1", api_key="sk-slc-..."
)
"""
_ANTHROPIC = f"""from anthropic import Anthropic

client = Anthropic(
    base_url="{BASE_URL}", api_key="sk-slc-..."
)
"""
_TGI = f"""from huggingface_hub import InferenceClient

client = InferenceClient(
    "{BASE_URL}", token="sk-slc-..."
)
"""
_HTTPX = f"""import httpx

client = httpx.Client(
    base_url="{BASE_URL}",
    headers={{"Authorization": "Bearer sk-slc-..."}},
)
"""
_PYTHON = {
    "createChatCompletion": _OPENAI
    + f"""
stream = client.chat.completions.create(
    model="{MODEL}",
    messages=[{{"role": "user", "content": "Say hello."}}],
    max_tokens=64,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="")
""",
    "createCompletion": _OPENAI
    + f"""
completion = client.completions.create(
    model="{MODEL}", prompt="Say hello:", max_tokens=64
)
print(completion.choices[0].text)
""",
    "createResponse": _OPENAI
    + f"""
response = client.responses.create(
    model="{MODEL}", input="Say hello.", max_output_tokens=64
)
print(response.output_text)
""",
    "listModels": _OPENAI
    + """
for model in client.models.list():
    print(model.id)
""",
    "getModel": _OPENAI
    + f"""
print(client.models.retrieve("{MODEL}").owned_by)
""",
    "createMessage": _ANTHROPIC
    + f"""
message = client.messages.create(
    model="{MODEL}",
    max_tokens=64,
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(message.content[0].text)
""",
    "countMessageTokens": _ANTHROPIC
    + f"""
count = client.messages.count_tokens(
    model="{MODEL}",
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(count.input_tokens)
""",
    "generateCompat": _TGI
    + """
print(client.text_generation("Say hello:", max_new_tokens=64))
""",
    "resumeStream": _HTTPX
    + """
request_id = "019a3c5e-7f00-7000-8000-000000000001"
path = f"/v1/streams/{request_id}"
with client.stream("GET", path, params={"after": 12}) as response:
    for line in response.iter_lines():
        print(line)
""",
    "getUsage": _HTTPX
    + """
request_id = "019a3c5e-7f00-7000-8000-000000000001"
print(client.get(f"/v1/usage/{request_id}").json())
""",
}


def snippets_make(operation: Operation) -> list[dict[str, str]]:
    """As the `x-codeSamples` of an operation."""
    samples = [{"lang": "Shell", "label": "curl", "source": _curl(operation)}]
    if python := _PYTHON.get(operation.id):
        samples.append({"lang": "Python", "label": "Python", "source": python})
    return samples


def _curl(operation: Operation) -> str:
    path = operation.path
    for parameter in operation.parameters:
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", str(parameter.example))
    is_stream_only = operation.event is not None and operation.answer is None
    lines = [f"curl {'-N ' if is_stream_only else ''}{BASE_URL}{path}"]
    if operation.method == "delete":
        lines.append("-X DELETE")
    if not operation.is_public:
        lines.append('-H "Authorization: Bearer $SLUICE_API_KEY"')
    if operation.example is not None:
        lines.append('-H "Content-Type: application/json"')
        body = json.dumps(operation.example, indent=2).replace("\n", "\n  ")
        lines.append(f"-d '{body}'")
    elif operation.method == "post":
        lines.append("-X POST")
    return " \\\n  ".join(lines) + "\n"
