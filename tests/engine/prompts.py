"""Twenty prompts for the comparison with the reference implementation: of varied kind, language, length."""

STORY = (
    "The lighthouse keeper wrote down the weather every evening, although nobody had asked him to. "
    "On the ninth of March the wind turned north, the glass fell, and a schooner with two broken masts "
    "came round the point under what was left of its sails. He counted eleven people on deck. "
)

RAW = [
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain,",
    "def fibonacci(n):\n    ",
    "SELECT customer_id, SUM(amount) FROM orders WHERE",
    "#include <stdio.h>\n\nint main(void) {\n",
    '{"name": "Alice", "age": 31, "address": {"city":',
    "La capitale de l'Italie est",
    "Der schnelle braune Fuchs",
    "日本の首都は",
    "Москва — это",
    "😀 😃 😄 😁",
    "1, 1, 2, 3, 5, 8, 13,",
    "a",
    STORY * 17,
]

CHAT = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "Translate to Spanish: the cat sleeps on the chair.",
    "Write a Python function that reverses a string. 🐍",
    "Summarise this text.\n\n" + STORY * 6,
]


def prompt_texts() -> list[str]:
    chat = [
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
        for message in CHAT
    ]
    return RAW + chat
