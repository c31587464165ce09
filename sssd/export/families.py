"""The supported decoder families, each declared: how its config becomes a Decoder and how its tensors are called.

Knows Hugging Face's field and tensor names, and no file format. To add a family, write a function from Config to
Decoder (usually `replace(common(...), ...)`), a table of stems that differ from `_LAYER`, and one entry of FAMILIES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sssd.architecture import Activation, Decoder, Layer
from sssd.errors import ExportError, UnsupportedModel
from sssd.export.config_fields import Config
from sssd.export.naming import Fused, Naming
from sssd.export.ropes import make_rope

REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type` of Hugging Face checkpoints."""

    decoder: Callable[[Config, int], Decoder]  # (config with defaults, max_len)
    namings: tuple[Naming, ...]  # layouts in use; the one whose embedding is there is taken
    defaults: Mapping[str, object] = field(default_factory=dict)  # fields that configs may leave out
    section: str | None = None  # where config.json keeps the text decoder's fields; None = at its top


def family_of(model_type: str) -> Family:
    """The family of a model_type. Raises UnsupportedModel listing the supported ones."""
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"model_type {model_type!r} is not supported, only {', '.join(sorted(FAMILIES))}; "
            "--exporter optimum may trace it (see docs/optimum.md)"
        )
    return FAMILIES[model_type]


# ---- what families share -----------------------------------------------------------------------


def common(config: Config, max_len: int) -> Decoder:
    """The decoder that most fields describe: pre-norms, one rope, full attention, no biases."""
    n_heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    n_kv_heads = config.integer("num_key_value_heads", n_heads)
    n_layers = config.integer("num_hidden_layers")
    for name, value in (("num_attention_heads", n_heads), ("num_key_value_heads", n_kv_heads)):
        if value < 1:
            raise ExportError(f"{config.where}: {name} is {value}, it must be at least 1")
    if n_heads % n_kv_heads:
        raise ExportError(f"{config.where}: {n_heads} attention heads cannot share {n_kv_heads} key-value heads evenly")
    head_dim = config.integer("head_dim", hidden // n_heads)
    return Decoder(
        family=config.text("model_type"),
        vocab_size=config.integer("vocab_size"),
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        layers=(Layer(rope=0, window=None),) * n_layers,
        ropes=(make_rope(config, head_dim, max_len),),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        activation=_activation(config),
        attn_scale=head_dim**-0.5,
        tied=config.flag("tie_word_embeddings"),
    )


def _activation(config: Config) -> Activation:
    name = config.text("hidden_activation", config.text("hidden_act", "silu"))
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"{config.where}: activation {name!r} is not supported, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def with_windows(decoder: Decoder, config: Config, *, default_types: tuple[str, ...], max_len: int) -> Decoder:
    """The decoder with `sliding_window` on its sliding layers (`layer_types`, or else `default_types`)."""
    types = config.texts("layer_types") if config.has("layer_types") else default_types
    unknown = sorted(set(types) - set(_LAYER_TYPES))
    if unknown:
        raise UnsupportedModel(f"{config.where}: layer types {', '.join(unknown)}: only {', '.join(_LAYER_TYPES)} work")
    if len(types) != len(decoder.layers):
        raise ExportError(f"{config.where}: layer_types has {len(types)} entries for {len(decoder.layers)} layers")
    window = config.optional_integer("sliding_window")
    if window is not None and window < 1:
        raise ExportError(f"{config.where}: sliding_window is {window}, it must be at least 1")
    # A window that no position can leave is no window: the graph needs no second mask for it.
    window = None if window is None or window >= max_len else window
    layers = tuple(
        replace(layer, window=window if kind == "sliding_attention" else None)
        for layer, kind in zip(decoder.layers, types, strict=True)
    )
    return replace(decoder, layers=layers)


def _all(kind: str, decoder: Decoder) -> tuple[str, ...]:
    return (kind,) * len(decoder.layers)


def _with_biases(decoder: Decoder, config: Config) -> Decoder:
    bias = config.flag("attention_bias")
    return replace(decoder, qkv_bias=bias, o_bias=bias, mlp_bias=config.flag("mlp_bias"))


# ---- the families ------------------------------------------------------------------------------


def _llama(config: Config, max_len: int) -> Decoder:
    return _with_biases(common(config, max_len), config)


def _mistral(config: Config, max_len: int) -> Decoder:
    decoder = common(config, max_len)
    return with_windows(decoder, config, default_types=_all("sliding_attention", decoder), max_len=max_len)


def _qwen_windows(decoder: Decoder, config: Config, max_len: int) -> Decoder:
    if not config.flag("use_sliding_window"):
        return decoder
    first = config.integer("max_window_layers", 28)
    types = tuple(_LAYER_TYPES[i >= first] for i in range(len(decoder.layers)))
    return with_windows(decoder, config, default_types=types, max_len=max_len)


def _qwen2(config: Config, max_len: int) -> Decoder:
    return _qwen_windows(replace(common(config, max_len), qkv_bias=True), config, max_len)


def _qwen3(config: Config, max_len: int) -> Decoder:
    return _qwen_windows(replace(_with_biases(common(config, max_len), config), qk_norm="head"), config, max_len)


def _gemma3(config: Config, max_len: int) -> Decoder:
    refused = [name for name in ("final_logit_softcapping", "attn_logit_softcapping") if config.has(name)]
    refused += ["use_bidirectional_attention"] if config.flag("use_bidirectional_attention") else []
    if refused:
        raise UnsupportedModel(
            f"{config.where}: {', '.join(refused)} set: only gemma3 models without them are supported"
        )
    decoder = _with_biases(common(config, max_len), config)
    pattern = config.integer("sliding_window_pattern", 6)
    types = tuple(_LAYER_TYPES[(i + 1) % pattern != 0] for i in range(len(decoder.layers)))
    local = make_rope(config, decoder.head_dim, max_len, layer_type="sliding_attention")
    types = config.texts("layer_types") if config.has("layer_types") else types
    decoder = replace(
        with_windows(decoder, config, default_types=types, max_len=max_len),
        ropes=(decoder.ropes[0], local),
        post_norms=True,
        qk_norm="head",
        attn_scale=config.number("query_pre_attn_scalar") ** -0.5,
        embed_scale=decoder.hidden**0.5,
    )
    layers = (replace(layer, rope=_LAYER_TYPES.index(kind)) for layer, kind in zip(decoder.layers, types, strict=True))
    return replace(decoder, layers=tuple(layers))


def _phi3(config: Config, max_len: int) -> Decoder:
    decoder = common(config, max_len)
    return with_windows(decoder, config, default_types=_all("sliding_attention", decoder), max_len=max_len)


def _granite(config: Config, max_len: int) -> Decoder:
    return replace(
        _with_biases(common(config, max_len), config),
        attn_scale=config.number("attention_multiplier", 1.0),
        embed_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
    )


def _olmo2(config: Config, max_len: int) -> Decoder:
    return replace(_with_biases(common(config, max_len), config), pre_norms=False, post_norms=True, qk_norm="full")


def _smollm3(config: Config, max_len: int) -> Decoder:
    decoder = _with_biases(common(config, max_len), config)
    n_layers, interval = len(decoder.layers), config.integer("no_rope_layer_interval", 4)
    has_rope = tuple((i + 1) % interval != 0 for i in range(n_layers))
    if config.has("no_rope_layers"):  # despite its name it lists 1 for a layer with rope
        has_rope = tuple(bool(x) for x in config.numbers("no_rope_layers"))[:n_layers]
    if len(has_rope) < n_layers:
        raise ExportError(f"{config.where}: no_rope_layers has {len(has_rope)} entries for {n_layers} layers")
    if config.flag("use_sliding_window"):
        types = tuple(_LAYER_TYPES[not rope] for rope in has_rope)
        decoder = with_windows(decoder, config, default_types=types, max_len=max_len)
    layers = (replace(layer, rope=0 if rope else None) for layer, rope in zip(decoder.layers, has_rope, strict=True))
    return replace(decoder, layers=tuple(layers))


# ---- their tensors -----------------------------------------------------------------------------

_LAYER: dict[str, str | Fused] = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_QK_NORMS: dict[str, str | Fused] = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
_PHI3_QKV = Fused("self_attn.qkv_proj", ("q", "k", "v"))
_PHI3_GATE_UP = Fused("mlp.gate_up_proj", ("gate", "up"))
_PHI3_LAYER = _LAYER | {"q": _PHI3_QKV, "k": _PHI3_QKV, "v": _PHI3_QKV, "gate": _PHI3_GATE_UP, "up": _PHI3_GATE_UP}
_OLMO2_LAYER = (
    _LAYER | _QK_NORMS | {"attn_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
)
_GEMMA3_LAYER = _OLMO2_LAYER | {"mlp_norm": "pre_feedforward_layernorm"}
_BUFFERS = (".rotary_emb.inv_freq",)
_VISION = ("vision_tower.", "multi_modal_projector.")


def _naming(layer: dict[str, str | Fused], *, root: str = "model.", head: str = "lm_head") -> Naming:
    return Naming(
        embed=f"{root}embed_tokens",
        final_norm=f"{root}norm",
        lm_head=head,
        layer_prefix=root + "layers.{i}.",
        layer=layer,
        ignored=_BUFFERS,
    )


def _gemma3_naming(*, root: str = "model.", head: str = "lm_head") -> Naming:
    return replace(_naming(_GEMMA3_LAYER, root=root, head=head), norm_offset=1.0, ignored=_BUFFERS + _VISION)


_PLAIN = (_naming(_LAYER),)
_GEMMA3_DEFAULTS: dict[str, object] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
_GEMMA3 = Family(_gemma3, (_gemma3_naming(),), _GEMMA3_DEFAULTS)

FAMILIES: dict[str, Family] = {
    "llama": Family(_llama, _PLAIN),
    "mistral": Family(_mistral, _PLAIN, {"num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": Family(_qwen2, _PLAIN, {"sliding_window": 4096}),
    "qwen3": Family(_qwen3, (_naming(_LAYER | _QK_NORMS),), {"head_dim": 128, "sliding_window": 4096}),
    "gemma3_text": _GEMMA3,
    "gemma3": replace(
        _GEMMA3,
        namings=(
            _gemma3_naming(root="language_model.model.", head="language_model.lm_head"),
            _gemma3_naming(root="model.language_model."),
        ),
        section="text_config",
    ),
    "phi3": Family(_phi3, (_naming(_PHI3_LAYER),), {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}),
    "granite": Family(_granite, _PLAIN),
    "olmo2": Family(_olmo2, (_naming(_OLMO2_LAYER),), {"rms_norm_eps": 1e-5}),
    "smollm3": Family(
        _smollm3,
        _PLAIN,
        {"num_key_value_heads": 4, "rope_theta": 2_000_000.0, "tie_word_embeddings": True},
    ),
}
