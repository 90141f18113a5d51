"""Small models of real architectures: the graph's value in NumPy against PyTorch's."""

# ruff: noqa: E402 -- torch and transformers are optional

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn
from torch_reference import compared

pytestmark = pytest.mark.torch

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 61,
}
LAZY = {"use_cache": False, "return_dict": False}
Made = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _tokens(*shape: int) -> Any:
    return torch.randint(0, 60, shape, generator=torch.Generator().manual_seed(3))


def _causal(config: Any, **options: Any) -> Made:
    model = transformers.AutoModelForCausalLM.from_config(config, **options)
    return model, (_tokens(2, 7),), LAZY


def _llama() -> Made:
    return _causal(transformers.LlamaConfig(**SMALL, num_key_value_heads=2))


def _qwen3() -> Made:
    return _causal(transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8))


def _mixtral() -> Made:
    config = transformers.MixtralConfig(
        **SMALL, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=2
    )
    return _causal(config, experts_implementation="batched_mm")


def _gemma() -> Made:
    return _causal(transformers.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8))


def _gpt2() -> Made:
    return _causal(
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=16)
    )


def _neox() -> Made:
    return _causal(transformers.GPTNeoXConfig(**SMALL))


def _bert() -> Made:
    model = transformers.AutoModel.from_config(transformers.BertConfig(**SMALL))
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, 5:] = 0
    return model, (_tokens(2, 7),), {"attention_mask": mask, "return_dict": False}


def _vit() -> Made:
    config = transformers.ViTConfig(**{**SMALL, "image_size": 16, "patch_size": 4})
    return (
        transformers.AutoModelForImageClassification.from_config(config),
        (_image(16),),
        {"return_dict": False},
    )


def _convnext() -> Made:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32
    )
    return (
        transformers.AutoModelForImageClassification.from_config(config),
        (_image(32),),
        {"return_dict": False},
    )


def _resnet() -> Made:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2])
    return (
        transformers.AutoModelForImageClassification.from_config(config),
        (_image(32),),
        {"return_dict": False},
    )


def _t5() -> Made:
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=61
    )
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    return model, (), {"input_ids": _tokens(2, 7), "decoder_input_ids": _tokens(2, 4), **LAZY}


def _whisper() -> Made:
    config = transformers.WhisperConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        vocab_size=61,
        num_mel_bins=8,
        max_source_positions=10,
        pad_token_id=1,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
    )
    model = transformers.AutoModelForSpeechSeq2Seq.from_config(config)
    sound = torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(1))
    return model, (), {"input_features": sound, "decoder_input_ids": _tokens(1, 4), **LAZY}


def _mamba() -> Made:
    config = transformers.MambaConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4, use_mambapy=False
    )
    return transformers.AutoModelForCausalLM.from_config(config), (_tokens(1, 5),), LAZY


def _image(size: int) -> Any:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))


def _unet() -> Made:
    blocks = pytest.importorskip("diffusers.models.unets.unet_2d_blocks")
    block = blocks.CrossAttnDownBlock2D(
        in_channels=8,
        out_channels=8,
        temb_channels=12,
        num_layers=1,
        num_attention_heads=2,
        cross_attention_dim=10,
        resnet_groups=4,
        downsample_padding=1,
    )
    g = torch.Generator().manual_seed(5)
    return (
        block,
        (
            torch.randn(1, 8, 8, 8, generator=g),
            torch.randn(1, 12, generator=g),
            torch.randn(1, 3, 10, generator=g),
        ),
        {},
    )


def _dit() -> Made:
    attention = pytest.importorskip("diffusers.models.attention")
    block = attention.BasicTransformerBlock(
        dim=16,
        num_attention_heads=2,
        attention_head_dim=8,
        num_embeds_ada_norm=10,
        norm_type="ada_norm_zero",
        attention_bias=True,
        activation_fn="gelu-approximate",
        norm_elementwise_affine=False,
    )
    hidden = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(5))
    return block, (hidden, None, None, None, torch.tensor([3, 7]), None, torch.tensor([1, 2])), {}


def _cnn() -> Made:
    """A training-mode network: batch statistics, transposed convolution, in-place activations."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=4, dilation=2),
        nn.GroupNorm(2, 8),
        nn.SiLU(inplace=True),
        nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1),
        nn.InstanceNorm2d(6),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5),
        nn.LogSoftmax(1),
    )
    return model.train(), (_image(16),), {}


def _encoder() -> Made:
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, activation="gelu")
    return layer.train(), (torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(9)),), {}


MODELS: dict[str, Callable[[], Made]] = {
    name.__name__.removeprefix("_"): name
    for name in (
        _llama,
        _qwen3,
        _mixtral,
        _gemma,
        _gpt2,
        _neox,
        _bert,
        _vit,
        _convnext,
        _resnet,
        _t5,
        _whisper,
        _mamba,
        _unet,
        _dit,
        _cnn,
        _encoder,
    )
}
BARRIERS = {"mixtral": {"aten.topk"}}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in BARRIERS])
def test_model_has_torch_value(name: str) -> None:
    """The model lowers without a barrier, and its graph computes what the module does."""
    torch.manual_seed(0)
    model, inputs, keywords = MODELS[name]()
    model = model.double() if name in ("cnn", "encoder") else model.eval()
    if name in ("cnn", "encoder"):
        inputs = tuple(x.double() for x in inputs)
    graph = compared(
        model, inputs, keywords, tolerance=1e-9 if name in ("cnn", "encoder") else 2e-4
    )
    assert not graph.barriers


def test_the_sweep_has_sixteen_whole_models() -> None:
    """With the ten whole ONNX models the evaluator is compared on 26."""
    assert len(MODELS) - len(BARRIERS) == 16


def test_mixture_of_experts_has_one_barrier_a_layer() -> None:
    """Routing by top-k is a barrier; the experts are gemms whose weights are looked up."""
    from torch_reference import lowered

    model, inputs, keywords = MODELS["mixtral"]()
    graph, _ = lowered(model.eval(), inputs, keywords)
    assert graph.barriers == {"aten.topk": 2}


def test_spelled_out_composites_are_recognised() -> None:
    """A Llama layer has 22 ops: its RMS norms and rotary embeddings are composites."""
    from torch_reference import lowered

    model, inputs, keywords = _causal(
        transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1}, num_key_value_heads=2)
    )
    graph, _ = lowered(model.eval(), inputs, keywords)
    labels = [op.label for op in graph.ops]
    assert labels.count("rms_norm") == 2 * 3
    assert labels.count("rope") == 2
    assert "3 rms_norm, 2 rope" in graph.notes[0]


def test_composites_can_stay_spelled_out() -> None:
    """Without composites a Llama layer keeps one op for each call."""
    from fuseledger.frontends import torch as frontend

    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1}, num_key_value_heads=2)
    model, inputs, keywords = _causal(config)
    graph = frontend.from_module(model.eval(), inputs, keywords, composites=False)
    assert "rms_norm" not in {op.label for op in graph.ops}
    assert [op.function for op in graph.ops[1:6]] == ["square", "mean", "add", "rsqrt", "mul"]
    assert not graph.notes
