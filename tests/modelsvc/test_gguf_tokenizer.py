"""The converted tokenizer gives the ids of transformers' own conversion, but where that one is wrong."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from modelsvc.gguf_convert import gguf_open
from modelsvc.gguf_tokenizer import tokenizer_from_gguf
from tests.modelsvc.conftest import DemoModel

HF: Any = transformers  # untyped
TEXTS = [
    "",
    " ",
    "\n\n\t  \r\n",
    "Hello, world!",
    "  leading and trailing  ",
    "The year 2024 had 366 days; pi is 3.14159.",
    "x=1;y=22;z=333",
    "It's they're we've I'm he'll she'd DON'T",
    "CamelCase snake_case kebab-case SCREAMING_CASE",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    '{"key": [1, 2, {"nested": null}], "text": "a\\nb"}',
    "https://example.com/path?query=1&other=two#fragment",
    "naïve café Ærø Straße façade",
    "Ελληνικά Русский עברית العربية हिन्दी ไทย",
    "日本語のテキスト 中文文本 한국어 텍스트",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 emoji ✨",
    "e\u0301 combining, zero\u200bwidth, nbsp\u00a0here",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name>x<file_sep>",
    "<|im_start |> not special <im_end>",
    "control \x00 \x04 \x1d \x7f bytes",
    "a" * 300,
    " " * 100 + "x",
    "tab\tseparated\tvalues\n1\t2\t3",
    "\U0001f9ff\U000e0041\U000f0000 rare planes",
    "¿Qué? ¡Así! «guillemets» “quotes” — …",
]


@pytest.fixture(scope="module")
def ours(demo: DemoModel) -> Tokenizer:
    """As converted by today's code, written and read once."""
    return Tokenizer.from_str(tokenizer_from_gguf(gguf_open(demo.gguf).fields).to_str())


@pytest.fixture(scope="module")
def theirs(demo: DemoModel) -> Any:
    return HF.AutoTokenizer.from_pretrained(demo.gguf.parent, gguf_file=demo.gguf.name)


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_transformers(text: str, ours: Tokenizer, theirs: Any) -> None:
    assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.model
@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60).filter(lambda text: not any(map(str.isnumeric, text))))
def test_ids_equal_those_of_transformers_on_any_text(text: str, ours: Tokenizer, theirs: Any) -> None:
    assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.model
def test_digits_stand_alone_before_words_are_split(ours: Tokenizer, theirs: Any) -> None:
    """SmolLM2 was trained so; transformers' generic GGUF path ignores the file's pre-tokenizer name."""
    assert ours.encode("if x:    1").tokens == ["if", "Ġx", ":", "ĠĠĠĠ", "1"]
    assert theirs.tokenize("if x:    1") == ["if", "Ġx", ":", "ĠĠĠ", "Ġ", "1"]
    assert ours.encode("m ²").tokens == ["m", "Ġ", "Â²"]
    assert theirs.tokenize("m ²") == ["m", "ĠÂ", "²"]


@pytest.mark.model
@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0xFFFF, exclude_categories=["Cs"]))
)
def test_decoding_gives_the_text_back(text: str, ours: Tokenizer) -> None:
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.model
def test_special_tokens_are_one_id_and_are_skipped_in_text(ours: Tokenizer) -> None:
    ids = ours.encode("<|im_start|>user\nHi<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert ours.decode(ids) == "user\nHi"


@pytest.mark.model
def test_transformers_loads_the_folder_with_its_chat_template(demo: DemoModel) -> None:
    tokenizer = HF.AutoTokenizer.from_pretrained(demo.folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert Path(demo.folder / "chat_template.jinja").read_text() == tokenizer.chat_template
