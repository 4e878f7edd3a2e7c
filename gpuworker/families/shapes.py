"""The tensors a model consists of, by name, in the Hugging Face layout."""

from collections.abc import Iterable

from gpuworker.families.config import ModelConfig

IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # old checkpoints carry it; it is computed from the config
WEIGHT_DTYPES = ("BF16", "F16", "F32")  # as safetensors spells them; anything else is quantised


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a model of this config consists of."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    products = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    for name, (outputs, inputs, has_bias) in products.items():
        layer[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            layer[f"{name}.bias"] = (outputs,)
    if config.qk_norm:
        layer |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (config.head_dim,))
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def names_compare(config: ModelConfig, present: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names the model lacks, and names of tensors it would not use."""
    needed = weight_shapes(config).keys()
    found = {name for name in present if not name.endswith(IGNORED_SUFFIXES)}
    if config.tied_embeddings:
        found.discard("lm_head.weight")
    return sorted(needed - found), sorted(found - needed)
