"""What a config declares: windows, ropes, scales and biases of each family, in both spellings of rope parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sssd.errors import ExportError, UnsupportedModel
from sssd.export.config_fields import Config
from sssd.export.families import FAMILIES
from sssd.export.ropes import positions_allowed, rope_note
from tests.helpers.tiny_directory import CONFIG, declare

GEMMA3: dict[str, Any] = {"model_type": "gemma3_text", "head_dim": 8, "query_pre_attn_scalar": 16, "sliding_window": 8}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 5.0]}


def windows(**fields: Any) -> list[int | None]:
    return [layer.window for layer in declare(**fields).layers]


def config(**fields: Any) -> Config:
    return Config(CONFIG | fields, "config.json")


# ---- layers ------------------------------------------------------------------------------------


def test_mistral_slides_in_every_layer_unless_its_window_is_null() -> None:
    assert windows(model_type="mistral", sliding_window=9) == [9, 9, 9]
    explicit_null = Config(CONFIG | {"sliding_window": None}, "config.json").over(FAMILIES["mistral"].defaults)
    assert [layer.window for layer in FAMILIES["mistral"].decoder(explicit_null, 64).layers] == [None] * 3


def test_a_window_that_no_position_leaves_is_no_window() -> None:
    assert windows(model_type="mistral", sliding_window=63) == [63] * 3
    assert windows(model_type="mistral", sliding_window=64) == [None] * 3
    assert windows(model_type="mistral") == [None] * 3  # 4096 by default


def test_qwen_slides_from_max_window_layers_on_when_asked_to() -> None:
    fields = {"model_type": "qwen2", "sliding_window": 9, "max_window_layers": 1}
    assert windows(**fields) == [None] * 3
    assert windows(**fields, use_sliding_window=True) == [None, 9, 9]


def test_gemma3_has_a_global_layer_after_every_five_local_ones_and_a_rope_for_each_kind() -> None:
    decoder = declare(**GEMMA3, num_hidden_layers=7)
    assert [layer.window for layer in decoder.layers] == [8] * 5 + [None] + [8]
    assert [layer.rope for layer in decoder.layers] == [1] * 5 + [0] + [1]
    assert decoder.ropes[0].inv_freq[1] == pytest.approx(1_000_000 ** (-2 / 8))
    assert decoder.ropes[1].inv_freq[1] == pytest.approx(10_000 ** (-2 / 8))


def test_gemma3_layers_and_scales_follow_the_config() -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    decoder = declare(**GEMMA3, layer_types=types)
    assert [layer.window for layer in decoder.layers] == [None, 8, 8]
    assert (decoder.attn_scale, decoder.embed_scale) == (0.25, 4.0)
    assert (decoder.pre_norms, decoder.post_norms, decoder.qk_norm, decoder.activation) == (
        True,
        True,
        "head",
        "gelu_tanh",
    )
    assert decoder.tied


def test_smollm3_has_no_rope_in_every_fourth_layer_or_where_the_config_lists_zero() -> None:
    fields = {"model_type": "smollm3", "num_hidden_layers": 5}
    assert [layer.rope for layer in declare(**fields).layers] == [0, 0, 0, None, 0]
    assert [layer.rope for layer in declare(**fields, no_rope_layers=[0, 1, 1, 0, 1]).layers] == [None, 0, 0, None, 0]
    with pytest.raises(ExportError, match="no_rope_layers has 2 entries for 5 layers"):
        declare(**fields, no_rope_layers=[0, 1])


def test_olmo2_normalizes_after_its_blocks_and_whole_projections() -> None:
    decoder = declare(model_type="olmo2")
    assert (decoder.pre_norms, decoder.post_norms, decoder.qk_norm) == (False, True, "full")


def test_granite_has_four_multipliers() -> None:
    fields = {"attention_multiplier": 0.1, "embedding_multiplier": 12, "residual_multiplier": 0.2, "logits_scaling": 8}
    decoder = declare(model_type="granite", **fields)
    scales = (decoder.attn_scale, decoder.embed_scale, decoder.residual_scale, decoder.logit_scale)
    assert scales == (0.1, 12.0, 0.2, 0.125)


def test_biases_are_where_the_family_has_them() -> None:
    def biases(**fields: Any) -> tuple[bool, bool, bool]:
        decoder = declare(**fields)
        return decoder.qkv_bias, decoder.o_bias, decoder.mlp_bias

    assert biases() == (False, False, False)
    assert biases(attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases(model_type="qwen2") == (True, False, False)
    assert biases(model_type="qwen3", attention_bias=True) == (True, True, False)


def test_head_dim_is_the_share_of_the_hidden_size_unless_given() -> None:
    assert (declare().head_dim, declare().attn_scale) == (4, 0.5)
    assert declare(head_dim=16).weight_shapes()["layers.0.q.weight"] == (64, 16)


@pytest.mark.parametrize("field", ["final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"])
def test_gemma3_variants_that_compute_something_else_are_refused(field: str) -> None:
    with pytest.raises(UnsupportedModel, match=field):
        declare(**GEMMA3, **{field: True if field.startswith("use") else 30.0})


def test_an_unknown_activation_lists_the_supported_ones() -> None:
    with pytest.raises(UnsupportedModel, match=r"'relu' is not supported, only silu, swish, gelu_pytorch_tanh"):
        declare(hidden_act="relu")


def test_layer_types_must_be_known_and_as_many_as_layers() -> None:
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        declare(**GEMMA3, layer_types=["chunked_attention"] * 3)
    with pytest.raises(ExportError, match="layer_types has 2 entries for 3 layers"):
        declare(**GEMMA3, layer_types=["full_attention"] * 2)


def test_heads_must_share_key_value_heads_evenly() -> None:
    with pytest.raises(ExportError, match="4 attention heads cannot share 3"):
        declare(num_key_value_heads=3)
    with pytest.raises(ExportError, match="num_key_value_heads is 0"):
        declare(num_key_value_heads=0)


# ---- ropes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 3.0}, LLAMA3 | {"rope_type": "llama3"}, {}])
def test_both_spellings_of_rope_parameters_declare_the_same(scaling: dict[str, Any]) -> None:
    old = declare(rope_theta=5e5, rope_scaling=scaling or None)
    new = declare(rope_parameters=scaling | {"rope_theta": 5e5})
    oldest = declare(rope_theta=5e5, rope_scaling={"type" if k == "rope_type" else k: v for k, v in scaling.items()})
    assert old == new == oldest
    assert old != declare()


def test_both_spellings_of_gemma3_ropes_declare_the_same() -> None:
    old = declare(
        **GEMMA3, rope_theta=2e6, rope_local_base_freq=3e4, rope_scaling={"rope_type": "linear", "factor": 8.0}
    )
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6}
    new = declare(**GEMMA3, rope_parameters={"full_attention": full, "sliding_attention": {"rope_theta": 3e4}})
    assert old == new
    assert old.ropes != declare(**GEMMA3).ropes


def test_the_default_and_linear_ropes_are_their_formula() -> None:
    plain = [500_000 ** (-2 * i / 4) for i in range(2)]
    assert declare(rope_theta=5e5).ropes[0].inv_freq == pytest.approx(plain, rel=1e-6)
    linear = declare(rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 4}).ropes[0]
    assert linear.inv_freq == pytest.approx([f / 4 for f in plain], rel=1e-6)
    assert linear.scale == 1.0


def test_llama3_keeps_short_waves_stretches_long_ones_and_blends_between() -> None:
    rope = declare(head_dim=64, rope_theta=5e5, rope_scaling=LLAMA3 | {"rope_type": "llama3"}).ropes[0]
    expected = []
    for i in range(32):
        f = 5e5 ** (-2 * i / 64)
        wave = 2 * math.pi / f
        if wave < 8192 / 4:
            expected.append(f)
        elif wave > 8192 / 1:
            expected.append(f / 8)
        else:
            smooth = (8192 / wave - 1) / (4 - 1)
            expected.append((1 - smooth) * f / 8 + smooth * f)
    kinds = {round(e / 5e5 ** (-2 * i / 64), 3) for i, e in enumerate(expected)}
    assert {1.0, 0.125} < kinds  # all three cases occur
    assert rope.inv_freq == pytest.approx(expected, rel=1e-5)


def test_yarn_scales_attention_and_ramps_from_kept_to_stretched() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    rope = declare(head_dim=64, rope_scaling=scaling).ropes[0]
    plain = np.array([10_000 ** (-2 * i / 64) for i in range(32)])
    ratio = np.array(rope.inv_freq) / plain
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(0.25)
    assert np.all(np.diff(ratio) <= 1e-6)
    assert rope.scale == pytest.approx(0.1 * math.log(4) + 1)
    assert declare(rope_scaling=scaling | {"attention_factor": 1.5}).ropes[0].scale == 1.5
    both = declare(rope_scaling=scaling | {"mscale": 2.0, "mscale_all_dim": 1.0}).ropes[0].scale
    assert both == pytest.approx((0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1))


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_ramps_between_the_dimensions_that_turn_32_times_and_once(truncate: bool) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "truncate": truncate}
    low, high = (64 * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(10_000)) for turns in (32, 1))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    expected = []
    for i in range(32):
        plain = 10_000 ** (-2 * i / 64)
        share = min(max((i - low) / (high - low), 0), 1)
        expected.append(plain / 4 * share + plain * (1 - share))
    assert declare(head_dim=64, rope_scaling=scaling).ropes[0].inv_freq == pytest.approx(expected, rel=1e-5)


def phi3(max_len: int, **fields: Any) -> Any:
    scaled = {"model_type": "phi3", "original_max_position_embeddings": 16, "rope_scaling": LONG}
    return declare(max_len, **(scaled | fields))


def test_longrope_takes_its_long_factors_when_the_context_exceeds_the_original() -> None:
    plain = [1.0, 10_000**-0.5]
    short, long = phi3(16).ropes[0], phi3(17).ropes[0]
    assert short.inv_freq == pytest.approx([plain[0] / 1, plain[1] / 2], rel=1e-6)
    assert long.inv_freq == pytest.approx([plain[0] / 3, plain[1] / 5], rel=1e-6)
    expected = math.sqrt(1 + math.log(64 / 16) / math.log(16))
    assert short.scale == long.scale == pytest.approx(expected)
    assert phi3(64, rope_scaling=LONG | {"type": "su"} | {"rope_type": None}).ropes[0] == long


def test_longrope_needs_a_factor_a_frequency() -> None:
    with pytest.raises(ExportError, match="long_factor has 3 numbers, 2 are needed"):
        phi3(64, rope_scaling=LONG | {"long_factor": [1.0] * 3})


def test_a_partial_rope_turns_the_first_dimensions_only() -> None:
    rope = phi3(64, rope_scaling=None, head_dim=16, partial_rotary_factor=0.5).ropes[0]
    assert rope.inv_freq == pytest.approx([10_000 ** (-2 * i / 8) for i in range(4)], rel=1e-6)
    with pytest.raises(ExportError, match="rope turns 0 of 4"):
        declare(partial_rotary_factor=0.1)


def test_a_choice_about_the_rope_is_noted() -> None:
    long = config(original_max_position_embeddings=16, rope_scaling=LONG)
    assert rope_note(long, 64) == "longrope: long factors at every position, since max_len 64 is over 16"
    assert rope_note(long, 16) == "longrope: short factors at every position, since max_len 16 is within 16"
    dynamic = rope_note(config(rope_scaling={"type": "dynamic", "factor": 2.0}), 64)
    assert dynamic is not None
    assert "does not act within max_len 64" in dynamic
    assert rope_note(config(), 64) is None


def test_only_yarn_allows_more_positions_than_the_config_states() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert positions_allowed(config()) == 64
    assert positions_allowed(config(rope_scaling=yarn)) == 256
    assert positions_allowed(config(rope_scaling={"rope_type": "linear", "factor": 4.0})) == 64
