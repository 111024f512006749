"""What the oracle scripts share: Hugging Face models made to compute in double precision, packed batches, comparison.

transformers computes norms, rotary angles and (eager) softmax in float32 whatever the model's dtype is, so that
`model.double()` alone is no fp64 reference. exact() replaces those parts by the formulas written out in fp64.
"""
import math

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

IGNORE = -100


def yarn_frequencies(rope, inv):
    """Peng et al. 2023.

    Pairs that turn more than beta_fast times within the original length keep their frequency; those that turn less than beta_slow times are
    slowed by the factor; between them is a ramp over the pairs.
    """
    pairs, length, base = len(inv), rope["original_max_position_embeddings"], rope["rope_theta"]

    def place(turns):
        return 2 * pairs * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    slowed = [min(1.0, max(0.0, (i - first) / (last - first if last != first else 0.001))) for i in range(pairs)]
    return torch.tensor([f * (1 - s) + f / rope["factor"] * s for f, s in zip(inv.tolist(), slowed)], dtype=torch.float64)


def rotary_scale(config, rope):
    """The factor of cosines and sines."""
    if rope["rope_type"] not in ("yarn", "longrope"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    length = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or config.max_position_embeddings / length
    if rope["rope_type"] == "longrope":  # Ding et al. 2024
        return math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    above, below = (above, below) if above and below else (1.0, 0.0)
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def inverse_frequencies(config, layer_type=None, reach=0):
    """Rotary inverse frequencies, for half of the rotated elements, in fp64. reach: tokens of a row, by which longrope chooses."""
    rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(dim * rope.get("partial_rotary_factor", 1.0))
    inv = torch.tensor([rope["rope_theta"] ** (-i / dim) for i in range(0, dim, 2)], dtype=torch.float64)
    if rope["rope_type"] in ("default", "linear"):
        return inv / rope.get("factor", 1.0)
    if rope["rope_type"] == "yarn":
        return yarn_frequencies(rope, inv)
    if rope["rope_type"] == "longrope":
        which = "long_factor" if reach > rope["original_max_position_embeddings"] else "short_factor"
        return inv / torch.tensor(rope[which], dtype=torch.float64)
    assert rope["rope_type"] == "llama3", rope
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    out = []
    for f in inv.tolist():
        turns = rope["original_max_position_embeddings"] * f / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(keep * f + (1 - keep) * f / rope["factor"])
    return torch.tensor(out, dtype=torch.float64)


def exact_attention(module, query, key, value, attention_mask, scaling, softcap=None, **_):
    """Eager attention that computes in the dtype of its inputs."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = F.softmax(scores + attention_mask, dim=-1, dtype=scores.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("exact", exact_attention)
AttentionMaskInterface.register("exact", eager_mask)


def implementation(config):
    """The attention implementation to load a model with; sdpa has no cap on the scores."""
    return "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"


def exact_norm(module):
    """The norm in fp64; Gemma's norms multiply by 1 + weight."""
    eps = getattr(module, "variance_epsilon", None) or module.eps
    offset = 1.0 if type(module).__name__.startswith("Gemma") else 0.0
    return lambda x: (offset + module.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def exact_rotary(module, theirs, reach):
    """theirs: transformers' frequencies, by the name of their buffer."""
    kinds = module.layer_types if isinstance(getattr(module, "layer_types", None), list) else [None]
    inv = {kind: inverse_frequencies(module.config, kind, reach) for kind in kinds}
    scale = 1.0
    for kind in kinds:
        near = theirs["%sinv_freq" % (kind + "_" if kind else "")]
        if kind is None and module.rope_type != "default":
            near, scale = ROPE_INIT_FUNCTIONS[module.rope_type](module.config, "cpu", seq_len=reach)
            assert abs(scale / rotary_scale(module.config, module.config.rope_parameters) - 1) < 1e-12, "rope's scale differs"
        assert torch.allclose(inv[kind], near.double(), rtol=1e-6, atol=0), "rope differs from transformers"

    def rotary(x, position_ids, layer_type=None):
        angle = position_ids[..., None].double() * inv[layer_type]
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos() * scale, angle.sin() * scale
    return rotary


def exact(model, reach=0):
    """Changes a freshly loaded model to compute in fp64, for rows of `reach` tokens. Checks the frequencies against the model's own."""
    theirs = {n: b.double() for n, b in model.named_buffers()}
    model.double()
    if implementation(model.config) == "eager":
        model.config._attn_implementation = "exact"
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = exact_norm(module)
        elif kind.endswith("RotaryEmbedding"):
            module.forward = exact_rotary(module, {n[len(name) + 1:]: b for n, b in theirs.items() if n.startswith(name + ".")}, reach)
        elif kind.endswith("ScaledWordEmbedding"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
    return model


def document_mask(doc_start, window=None):
    """doc_start [B, T] -> bool [B, 1, T, T]: query t sees keys doc_start[t] .. t, and of these the last `window`."""
    t = torch.arange(doc_start.shape[1])
    seen = (t[None, None, :] <= t[None, :, None]) & (t[None, None, :] >= doc_start[:, :, None])
    return (seen & (t[None, None, :] > t[None, :, None] - (window or len(t))))[:, None]


def document_masks(config, doc_start, dtype):
    """The masks that a model takes: one, or one for each kind of layer."""
    def mask(window):
        seen = document_mask(doc_start, window)
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)

    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        return dict(full_attention=mask(None), sliding_attention=mask(window))
    return mask(None if getattr(config, "layer_types", None) else window)


def forward(model, batch):
    """Logits [B, T, V]. batch: ids, position_ids, doc_start, each int [B, T]."""
    dtype = next(model.parameters()).dtype
    mask = document_masks(model.config, batch["doc_start"], dtype)
    return model(input_ids=batch["ids"], position_ids=batch["position_ids"], attention_mask=mask,
                 use_cache=False).logits


def mean_loss(logits, labels):
    """Mean over labels that aren't IGNORE; labels are already shifted."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long(), ignore_index=IGNORE)


def error(ours, reference):
    """max|difference| / max|reference|."""
    return float((ours.double() - reference.double()).abs().max() / reference.double().abs().max())
