"""Texts that are easily torn: clusters of several code points, joiners, marks, directions, line ends."""

from hypothesis import strategies as st

HARD = {
    "clusters": "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪",
    "marks": "e\u0301o\u0302\u0327 Z\u0337\u0321\u0348a\u0334l",
    "directions": "مرحبا \u200fשלום\u200e 123 \u202eabc\u202c",  # noqa: RUF001
    "cjk": "你好，世界 こんにちは 한국어 \U00020bb7",  # noqa: RUF001
    "line ends": "\u2028\u2029\u0085\r\n\v\f\x1c\x00\x7f",
    "framing": 'data: {"a": "\\u0041"}\n\nevent: error\ndata: [DONE]\n\n',
    "edges": "\ufeff\ufffd\U0010ffff\\ud800",
}
characters = st.characters(exclude_categories=["Cs"])
texts = st.one_of(
    st.text(characters, max_size=12),
    st.text(st.sampled_from("".join(HARD.values())), max_size=20),
    st.sampled_from(list(HARD.values())),
)
