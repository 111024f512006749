"""Wrong model files: what to replace in examples/dsl/tiny.py, by what, what the one message then says, and the text at whose line it must
point; None: at the replacement."""

import subprocess
import sys
import tempfile
from pathlib import Path

BASE = Path("examples/dsl/tiny.py").read_text()
LINEAR, UP, NORM = "return g.linear(x, self.weight)", 'self.up = Linear("4 * C", "C")', "g.rms_norm(x, self.norm, eps=\"eps\", name=\"normed\")"
H, SUM, ACT = "h = self.up(" + NORM + ")", 'return g.add(x, self.down(g.gelu(h, name="act")), name="sum")', 'g.gelu(h, name="act")'
X0, LOGITS, LOSSES = ('x = g.embedding(tokens, self.embed, name="x0")', 'logits = self.lm_head(self.blocks(x), name="logits")',
                      'losses = g.cross_entropy(logits, labels, name="losses")')
RESULT = 'return {"logits": logits, "losses": losses, "loss": g.loss_sum(losses, hyper, name="loss")}'
WEIGHT, NORM_W = 'weight = Param(Tensor["out", "inner"], linear=True, init=normal(0.02))', 'norm = Param(Tensor["C"], init="ones", decay=False)'
EMBED, ARRAY = 'embed = Param(Tensor["V", "C"], init=normal(0.02))', 'blocks = Array["L", "Block"]'
INDEXED, HEAD, EPS = '@hf_mapping.indexed("blocks", "transformer.h.{i}")', 'self.lm_head = Linear("V", "C")', 'eps=Key("layer_norm_epsilon", "1e-5", min=0)'
TINY = "class Tiny(Module):"
FORWARD = 'def forward(self, tokens: Tensor["B", "T", "i32"], labels: Any, hyper: Any) -> dict[str, Any]:'

WRONG = [
    # shapes
    (UP, 'self.up = Linear("3 * C", "C")', "Linear: x is (B, T, 3 * C), expected (..., 4 * C), in blocks.{i}.down", SUM),
    (UP, 'self.up = Linear("4 * C", "V")', "Linear: x is (B, T, C), expected (..., V)", H),
    (WEIGHT, 'weight = Param(Tensor["inner", "out"])', "[bias (M)] -> y (N,M), in blocks.{i}.up", LINEAR),
    (WEIGHT, 'weight = Param(Tensor["out"])', "linear: w is (4 * C), expected (M, C)", LINEAR),
    (WEIGHT, 'weight = Param(Tensor["...", "inner"])', 'a weight has a whole shape, without "..."', None),
    (LINEAR, "return x", "Linear: its result is (B, T, C), expected (..., 4 * C)", "@forward"),
    (LINEAR, "return None", "Linear: its result is None, expected a tensor (..., 4 * C)", "@forward"),
    (NORM_W, 'norm = Param(Tensor["V"], init="ones")', "rms_norm: w is (V), expected (C): x (...,C), w (C)", H),
    (SUM, 'return g.add(x, h, name="sum")', "add: b is (B, T, 4 * C), expected (B, T, C): a (*), b (*)", None),
    (ACT, 'g.sub(h, x, name="act")', "sub: b is (B, T, C), expected (B, T, 4 * C): a (*), b (*)", None),
    (ACT, 'g.sub(h, g.reshape(x, "B", "T * C"), name="act")', "sub: b is (B, T * C), expected (B, T, 4 * C): a (*), b (*)", None),
    (ACT, 'g.sum(h, dim=3, name="act")', "sum: dim is 3, expected a number from -3 to 2, as x is (B, T, 4 * C)", None),
    (ACT, 'g.expand(h, size=3, name="act")', "expand: x is (B, T, 4 * C), expected 1 as dim -1", None),
    (ACT, 'g.where(x, h, h, name="act")', "where: cond is (B, T, C), expected f32 (*)", None),
    (SUM, "return h", "Block: its result is (B, T, 4 * C), expected (B, T, C)", "    @forward\n    def forward(self, x: Tensor[\"B\", \"T\", \"C\"])"),
    (EMBED, 'embed = Param(Tensor["C", "V"])', "Block: x is (B, T, V), expected (B, T, C)", LOGITS),
    (EMBED, 'embed = Param(Tensor["V", "C", 2])', "embedding: w is (V, C, 2), expected (V, C)", X0),
    (X0, "x = g.embedding(self.embed, tokens)", "embedding: tokens is (V, C), expected i32 (B, T)", None),
    (LOGITS, 'logits = self.lm_head(x, name="logits", part="qkv")\n            logits = self.blocks(logits)',
     "Block: x is (B, T, V), expected (B, T, C)", "logits = self.blocks(logits)"),
    (LOSSES, 'losses = g.cross_entropy(labels, logits, name="losses")', "cross_entropy: logits is i32 (B, T), expected (B, T, V)", None),
    (HEAD, 'self.lm_head = Linear("V", "2 * C")', "Linear: x is (B, T, C), expected (..., 2 * C)", LOGITS),
    (ACT, 'g.reshape(h, "B", "T", "C", 3)', "reshape: x is (B, T, 4 * C), expected as many elements as (B, T, C, 3)", SUM[:-40]),
    (ACT, 'g.reshape(h, "B", "T", "C", 2, 2)', "of 1 to 4 dims", None),
    (ACT, 'g.swiglu(h, x, name="act")', "swiglu: up is (B, T, C), expected (B, T, 4 * C)", None),
    (ACT, 'g.cast(h, dtype="f16")', "cast: dtype is 'f16', expected \"f32\" or \"bf16\" or \"i32\"", None),
    (ACT, 'g.sum(h, dtype="i32")', "sum: dtype is 'i32', expected \"f32\" or \"bf16\"", None),
    (ACT, 'g.concat(h, x, dim=1, name="act")', "concat: b is (B, T, C), expected any (B, any, 4 * C)", None),
    (ACT, 'g.concat(h, h, dim=3, name="act")', "concat: dim is 3, expected a number from -3 to 2, as a is (B, T, 4 * C)", None),
    (ACT, 'g.concat(h, h, name="act")', "Linear: x is (B, T, (4 * C) + (4 * C)), expected (..., 4 * C), in blocks.{i}.down", None),
    (ACT, 'g.slice(h, dim=-1, begin=0, size="C", name="act")', "Linear: x is (B, T, C), expected (..., 4 * C), in blocks.{i}.down", None),
    (ACT, 'g.slice(h, dim=4, size=1, name="act")', "slice: dim is 4, expected a number from -3 to 2, as x is (B, T, 4 * C)", None),
    (ACT, 'g.pad(h, before=1, name="act")', "Linear: x is (B, T, (4 * C) + 1), expected (..., 4 * C), in blocks.{i}.down", None),
    (ACT, 'g.topk(h, k=2, name="act")', "Linear: x is (B, T, 2), expected (..., 4 * C), in blocks.{i}.down", None),
    (ACT, 'g.topk(h, count=2, name="act")', "topk has no attribute count; it has k", None),
    (ACT, 'g.gather_rows(h, h, name="act")', "gather_rows: x is (B, T, 4 * C), expected (R, C)", None),
    (ACT, 'g.scatter_add_rows(h, x, size=3, name="act")', "scatter_add_rows: ids is (B, T, C), expected i32 (B, T)", None),
    (ACT, 'g.topk(h, k=0, name="act")', "topk: k is 0, expected 1 or more", None),
    (ACT, 'g.slice(h, size=0, name="act")', "slice: size is 0, expected 1 or more", None),
    (ACT, 'g.slice(h, begin="-1", size="C", name="act")', "slice: begin is -1, expected 0 or more", None),
    (ACT, 'g.pad(h, before=-1, name="act")', "pad: before is -1, expected 0 or more", None),
    (ACT, 'g.full(size=-1, name="act")', "full: size is -1, expected 1 or more", None),
    (ACT, 'g.alibi_table(len=-1, num_heads=2, name="act")', "alibi_table: len is -1, expected 1 or more", None),
    (ACT, 'g.eq(h, g.full(size=1, value=1, dtype="i32", name="one"), name="act")', 'eq: b is i32 (1), expected f32 or bf16, as g.cast(b, dtype="f32") makes it', None),
    (ACT, 'g.topk(h, k=2, name="act").others[1]', "others[1]: expected 0 to 0, as the op has 1 further outputs", None),
    (ACT, 'x.others[0]', "others[0]: the tensor has no further outputs", None),
    (ACT, 'g.dropout(h, h, h, h)', "dropout: doc_id is (B, T, 4 * C), expected i32 (B, T)", None),
    (ACT, 'g.rope(h, h, h)', "rope: x is (B, T, 4 * C), expected (B, T, H, D)", None),
    (RESULT, 'return {"logits": losses, "losses": losses, "loss": losses}', "Tiny: logits is f32 (B, T), expected (B, T, V)", "    @forward\n    " + FORWARD),
    (RESULT, 'return {"logits": logits, "losses": losses, "loss": losses}', "Tiny: loss is f32 (B, T), expected (1)", "    @forward\n    " + FORWARD),
    (RESULT, RESULT.replace('"logits": logits', '"logits": x'), "Tiny: logits is (B, T, C), expected (B, T, V)", "    @forward\n    " + FORWARD),
    (RESULT, RESULT.replace('"losses": losses,', '"losses": g.columns(logits, begin=0, size=1),'), "Tiny: losses is (B, T, 1), expected (B, T)", "    @forward\n    " + FORWARD),
    # ops
    (ACT, "g.gellu(h)", "unknown op gellu; did you mean gelu?", None),
    (ACT, "g.zzz(h)", "unknown op zzz; `surogate ops` lists them", None),
    (ACT, "g.adamw(h)", "adamw: the engine makes it", None),
    (ACT, "g.gelu()", "gelu: x is missing; expected x (...) -> y (...)", None),
    (ACT, "g.gelu(h, h)", "gelu: 2 inputs, expected at most 1", None),
    (ACT, "g.gelu(3)", "gelu: x is 3, expected a tensor", None),
    (ACT, "g.gelu(h, tanhh=True)", "gelu has no attribute tanhh; did you mean tanh?", None),
    (ACT, "g.gelu(h, tanh=3)", "gelu: tanh is 3, expected bool or an expression", None),
    (ACT, "g.gelu(h, tanh=\"Q\")", '"Q": unknown symbol Q', None),
    (ACT, 'g.gelu(h, tanh=each("C", "i"))', "gelu: tanh is a list, expected bool or an expression", None),
    (ACT, 'g.rope_table(len="P", head_dim="C", frequencies=2)', 'rope_table: frequencies is 2, expected a list, as each("D / 2", "i + 1")', None),
    (ACT, 'g.rope_table(len="P", head_dim="C", frequencies=each("C / 2", "j"))', '"j": unknown symbol j', None),
    (ACT, 'g.rope_table(len="P", head_dim="C", frequencies=each("j", "i"))', '"j": unknown symbol j', None),
    (ACT, "g.add(h)", "add: b is missing", None),
    (NORM, 'g.rms_norm(x, self.norm, eps=True)', "rms_norm: eps is True, expected float or an expression", None),
    (NORM, 'g.rms_norm(x, self.norm, eps="1 +")', 'expression "1 +": expected a number, a symbol or "("', None),
    (NORM, 'g.rms_norm(x, self.norm, eps="eps $ 2")', 'expression "eps $ 2": unexpected "$"', None),
    (NORM, 'g.rms_norm(x, self.norm, eps="(eps")', 'expression "(eps": expected ")"', None),
    (NORM, 'g.rms_norm(x, self.norm, eps="eps ? 1")', 'expected ":"', None),
    (NORM, 'g.rms_norm(x, self.norm, eps="eps", name="sum")', 'add: there is a value named "blocks.{i}.sum"', SUM),
    (H, "h = self.up(x) if x else x", "a tensor is neither true nor false", None),
    (H, "assert x\n            h = self.up(x)", "a tensor is neither true nor false", None),
    (H, "h = self.up(x) if not self.norm else x", "a tensor is neither true nor false", None),
    (H, "h = self.up(x) if x == 0 else x", "tensors can't be compared", None),
    (H, "h = self.up(x) if x != self.norm else x", "tensors can't be compared", None),
    # weights
    (NORM_W, NORM_W + '\n    more = Param(Tensor["C"])', "blocks.{i}.more: no op reads this weight", 'more = Param(Tensor["C"])'),
    (H, "self.norm\n            h = self.up(x)", "blocks.{i}.norm: no op reads this weight", NORM_W),
    (EMBED, EMBED + '\n    more = Param(Tensor["C"], when="V > 2")', "more: no op reads this weight", 'more = Param(Tensor["C"], when="V > 2")'),
    (SUM, 'return g.add(x, x, name="sum")', "blocks.{i}.down.weight: no op reads this weight", WEIGHT),
    (WEIGHT, 'weight = Param(["out", "inner"])', 'expected the shape as Tensor["M", "K"]', None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], colour=1)', "a weight has no colour; it may have init, linear", None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], init="one")', 'init: expected "zeros", "ones" or normal(deviation), found "one"', None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner", "i32"])', "a weight of i32; expected f32 or bf16", None),
    (WEIGHT, 'weight = Param(Tensor["out", None])', "expected a dim (a symbol, number or expression), found None", None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner *"])', 'expression "inner *": expected a number, a symbol or "("', None),
    (WEIGHT, 'weight = Param(Tensor["out", "W"])', '"W": unknown symbol W; expected one of B, C, L, P, T, V, bf16, eps, i, reach, in blocks.{i}.up', None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], when="biased")', '"biased": unknown symbol biased', None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], when="C > 8")', "linear: w isn't there unless C > 8; expected a weight that always is", LINEAR),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], when=False)', "linear: w is missing", LINEAR),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], frozen="no")', "weight: frozen is 'no', expected True or False", None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], matrices="4")', "weight: matrices is '4', expected the rows of each in a tuple", None),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], matrices=("W", "C"))', '"W": unknown symbol W', None),
    ('{"embed": "transformer.wte.weight"}', '{"embed": "lm_head.weight"}', "lm_head.weight is 'lm_head.weight' in a model folder, as embed is", WEIGHT),
    (WEIGHT, 'weight = Param(Tensor["out", "inner"], linear=True, module="same")',
     'blocks.{i}.down.weight is the weight of the linear layer same, as blocks.{i}.up.weight is, and LoRA would name both the same; give each module="NAME"', None),
    # modules
    (ARRAY, 'blocks = Array["L"]', 'Array takes a count and a block: Array["n_layers", "Block"]', None),
    (ARRAY, 'blocks = Array["L", "Blok"]', "Array: 'Blok' is no @block of this file", None),
    (ARRAY, 'blocks = Array["M", "Block"]', '"M": unknown symbol M', None),
    (LOGITS, "logits = self.blocks()", "blocks: expected the tensor that goes from one to the next", None),
    (LOGITS, "logits = self.blocks(x, x)", "Block: too many positional arguments", None),
    (LOGITS, 'logits = Linear("V", "C")(x)', "Linear isn't an attribute of the model", None),
    (HEAD, HEAD + "\n        self.other = self.lm_head", "other: the same module as lm_head", "@module"),
    ("    @forward\n    def forward(self, x: Tensor[\"...\"", "    def forward(self, x: Tensor[\"...\"",
     "Linear has 0 methods with @forward, expected 1", "@module"),
    ("    @forward\n    def forward(self, x: Tensor[\"B\"", '    @save("act", "atc")\n    @forward\n    def forward(self, x: Tensor["B"',
     "@save: Block makes no 'atc'; it makes normed, up, act, down, sum", None),
    (ACT, 'g.gelu(h, name="act", save="yes")', "gelu: save is 'yes', expected True", None),
    # what Python itself refuses
    (UP, 'self.up = Linear("4 * C", "C", bias=True)', "TypeError: Linear.__init__() got an unexpected keyword argument 'bias'", None),
    (ACT, 'g.gelu(hh, name="act")', "NameError: name 'hh' is not defined", None),
    (ACT, 'g.gelu(h, name="act"', "SyntaxError: ", None),
    (SUM, "return x + self.down(h)", "tensors have no operators; expected g.add(a, b)", None),
    (SUM, "return 2 * x", "tensors have no operators; expected g.add(a, b), g.mul(a, b) or, with a number, g.scale(x, by=2)", None),
    (SUM, 'return x.view("B")', "a tensor has no view; ops are methods of the graph, as g.reshape(", None),
    (INDEXED, INDEXED + '\n@hf_mapping(embd="wte")', "@hf_mapping: Tiny has no embd; did you mean embed?", "@model\n" + TINY),
    (SUM, "return g.add(x, self.dwn(h))", "AttributeError: 'Block' object has no attribute 'dwn'", None),
    # config and names
    (EPS, 'eps="layer_norm_epsilon"', "eps: expected Key(\"hidden_size\") or Size(\"hidden_size\"), found 'layer_norm_epsilon'", None),
    (EPS, 'eps=Key("layer_norm_epsilon", most=3)', "Key has no most; it may have default", None),
    (EPS, 'eps=Key("layer_norm_epsilon", "E")', '"E": unknown symbol E', None),
    ('V=Size("vocab_size"), ', 'near=Key("near", "1", per="L"), V=Size("vocab_size"), ', '"L": L is named below; a key reads symbols above it', None),
    (EPS, EPS + ', require={"C % 2": "odd", "Z": "no"}', '"Z": unknown symbol Z', None),
    (EPS, EPS + ', near=Key("near", "i % 2", per="M")', '"M": unknown symbol M', None),
    (EPS, EPS + ', near=Key("near", "j", per="L")', '"j": unknown symbol j; expected one of C, L, V, eps, i', None),
    (EPS, EPS + ', near=Key("near", "1", per="L"), require={"near": "no"}', "near is a list; expected the index of one value, as near[i]", None),
    (NORM, 'g.rms_norm(x, self.norm, eps="eps[i]")', '"eps[i]": eps is one number; expected it without [ ]', None),
    (NORM, 'g.rms_norm(x, self.norm, eps="eps[i")', 'expression "eps[i": expected "]"', None),
    (EPS, EPS + ', roles={"vocabulary": "W"}', "roles: vocabulary is W; expected one number's symbol", None),
    (EPS, EPS + ', roles={"size": "V"}', "roles: size is V; expected one number's symbol under vocabulary, positions, tied", None),
    ('V=Size("vocab_size"), ', 'Z=Size("vocab_size"), ', "no symbol says how many tokens there are; expected V, or roles=", None),
    (INDEXED, INDEXED + '\n@hf_export.indexed("blocks", "h")', '@hf_export.indexed: expected the index in the name, as "model.layers.{i}", found "h"',
     "@hf_export"),
    (INDEXED, INDEXED + '\n@hf_export({"blocks.up": "up"})', "blocks.{i}.up.weight is 'up.weight' in a model folder, the same in every turn", WEIGHT),
    (INDEXED, '@hf_mapping.indexed("blocks", "transformer.h")', "expected the index in the name, as", None),
    ('"transformer.wte.weight"}', '"transformer.wte.weight", "blocks.up": "up"}', "blocks.{i}.up.weight is 'up.weight' in a model folder, the same in every turn;"
     " expected {i}", WEIGHT),
    (FORWARD, FORWARD.replace("hyper: Any", 'hyper: Any, kind: Input["i64"]'), "Input['i64', 0]: expected \"i32\" or \"f32\"", None),
    (FORWARD, FORWARD.replace("labels: Any", 'labels: Input["i32"]'), "Tiny: labels is an input of the engine", "    @forward\n    "
     + FORWARD.replace("labels: Any", 'labels: Input["i32"]')),
    (FORWARD, FORWARD.replace("labels", "classes"), "Tiny: there is no input classes; a model reads tokens, labels", "    @forward\n    " + FORWARD.replace("labels", "classes")),
    (RESULT, "return logits", "Tiny: its @forward gives (B, T, V), expected a dict of logits, which may have hidden, losses and loss too", "    @forward\n    " + FORWARD),
    ("@model\n" + TINY, "@abstract\n@model\n" + TINY, "Tiny is abstract; build a model that extends it", "@model\n" + TINY),
    ("@model\n" + TINY, '@tied_to("embed", "lm_head.weigth")\n@model\n' + TINY, 'the model has no weight "lm_head.weigth"', "@model\n" + TINY),
    ("@model\n" + TINY, '@tied_to("lm_head.weight", "blocks")\n@model\n' + TINY, 'the model has no weight "blocks"', "@model\n" + TINY),
    ("@block\n", '@extends(3)\n@block\n', "@extends: expected a @module, @block or @model, found 3", None),
    ("    @forward\n    def forward(self, x: Tensor[\"...\"", '    @recompute("attn")\n    @forward\n    def forward(self, x: Tensor["..."',
     'expected one of norm, qkv, att, ffn, swiglu, found "attn"', None),
    # wrong types and names
    (ACT, 'g.gelu(h, name=3)', "gelu: name is 3, expected a text without blanks", None),
    (ACT, 'g.gelu(h, name="a b")', "gelu: name is 'a b', expected a text without blanks", None),
    (ACT, 'g.gelu(h, part="mlp")', "gelu: part is 'mlp', expected one of norm, qkv, att, ffn, swiglu, block", None),
    (ACT, 'g.scale(h, by=float("nan"))', "scale: by is nan, expected a finite number", None),
    # repeats
    (ACT, 'g.repeat("L", h, h)', 'repeat: expected how often, a function and what it is given first', None),
    (ACT, 'g.repeat("L", lambda y: self.down(y), h)', "repeat: a turn gives (B, T, C), expected (B, T, 4 * C) as it is given", None),
    (ACT, 'g.repeat("L", lambda y: (y, y), h)', "repeat: a turn gives (B, T, 4 * C), (B, T, 4 * C), expected (B, T, 4 * C) as it is given", None),
    (ACT, 'g.repeat("L", lambda y: None, h)', "repeat: a turn's result is None, expected a tensor", None),
    (ACT, 'g.repeat("layers", lambda y: y, h)', 'unknown symbol layers', None),
    (X0, X0 + '\n            seen = []\n            x = g.repeat(2, lambda y: seen.append(g.gelu(y)) or y, x)\n            x = g.add(x, seen[0])',
     "add: b was made inside of a repeat, and isn't there outside of it", "x = g.add(x, seen[0])"),
    (ACT, 'g.select("C > 1", h, h, name="act")', "select: expected two functions, as lambda: self.full(x)", None),
    (ARRAY, 'blocks = Array["L", "Linear"]', "Array: Linear takes arguments (missing a required argument: 'out')", None),
    (ARRAY, 'blocks = Array["L", "Tiny"]', "more than 4 Arrays inside of one another", None),
    (ARRAY, 'blocks = Array[-1, "Block"]', "Array: -1 times; expected 0 to 65536, or a symbol", None),
    (UP, UP + "; self.me = Block()", "Tiny: modules hold one another without end", "@model\n" + TINY),
    (UP, 'self.up = Linear("(" * 5000 + "C" + ")" * 5000, "C")', "longer than 4,096 bytes", "weight = Param"),
    (UP, 'self.up = Linear("(" * 100 + "C" + ")" * 100, "C")', "deeper than 64 levels", "weight = Param"),
    (INDEXED, INDEXED + "\n@hf_mapping(embed=3)", "@hf_mapping: embed is 3, expected a name, concat(...), transpose(...) or rows(...)", "@hf_mapping(embed=3)"),
    (INDEXED, INDEXED + '\n@hf_mapping(["embed"])', '@hf_mapping: expected names as q="q_proj"', '@hf_mapping(["embed"])'),
    (INDEXED, INDEXED + '\n@hf_export(embed="a b")', "embed is 'a b' in a model folder, expected a name without blanks", EMBED),
    (INDEXED, INDEXED + '\n@hf_export(embed=rows("w", "Q", 8))', '"Q": unknown symbol Q', EMBED),
    (INDEXED, INDEXED + "\n@hf_export(embed=concat())", "concat: expected the names of tensors", "@hf_export(embed=concat())"),
    (INDEXED, INDEXED + '\n@hf_export(embed=concat("w.{h}", h=2, k=3))', 'concat: 2 indexes, expected one, as h="H"', '@hf_export(embed=concat("w.{h}", h=2, k=3))'),
    (INDEXED, INDEXED + '\n@hf_export(embed=concat("w.{h}", h="Q"))', '"Q": unknown symbol Q', EMBED),
    (INDEXED, INDEXED + '\n@tied_to("lm_head.weight", "embed")\n@tied_to("embed", "lm_head.weight")', "is tied to lm_head.weight, which is tied itself",
     "@model\n" + TINY),
    (EPS, 'eps=Key(7, "1")', "Key: expected texts in a tuple", None),
    (EPS, 'eps=Key("layer_norm_epsilon", "1e-5", min="0")', "Key: min is '0', expected a number", None),
    (EPS, 'eps=Key("layer_norm_epsilon", "1e-5", choices=["a"])', "Key: choices: expected a dict from texts to whole numbers", None),
    (EPS, EPS + ', ignored="rope"', "hf_config: ignored: expected texts in a tuple, as", None),
    (EPS, EPS + ', require=["C > 1"]', "hf_config: require: expected a dict from texts to texts", None),
    (EPS, EPS + ', Größe=Size("size")', "Größe: not a name for a symbol; expected ASCII letters", None),
    (EPS, EPS + ', B=Size("size")', "B: not a name for a symbol", None),
    (EMBED, "embed = Param(Tensor[\"V\", \"C\"], init=0.02)", "init: expected \"zeros\", \"ones\" or normal(deviation), found 0.02", None),
    (EMBED, "embed = Param(Tensor[\"V\", \"C\"], init=normal(-1))", "normal: a deviation of -1, expected a number from 0 on", None),
    (EMBED, "embed = Param(Tensor[\"V\", \"C\"], init=normal(\"std\"))", '"std": unknown symbol std', None),
    (RESULT, 'return {"logits": logits, "losses": None, "loss": logits}', "output: losses is None, expected a tensor", "    @forward\n    " + FORWARD),
    (SUM, "return [1][2]", "IndexError: list index out of range", None),
]


def run(old: str, new: str, message: str, at: str | None, folder: Path) -> str:
    if BASE.count(old) < 1:
        return f"the example has no {old!r}"
    text = BASE.replace(old, new, 1).replace("import Array,", "import Array, Input, abstract, concat, each, extends, hf_export, recompute, rows, save, tied_to,")
    begin = text.find(at) if at else text.find(new)
    want = text.count("\n", 0, begin) + 1
    path = folder / "wrong.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, "-m", "surogate.dsl", "check", str(path)], capture_output=True, text=True)
    got = done.stderr.strip()
    if done.returncode != 1 or "\n" in got or message not in got:
        return f"expected one line with {message!r}, got {got}"
    return "" if got.startswith(f"{path}:{want}: ") else f"expected line {want}, got {got}"


def main() -> None:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for old, new, message, at in WRONG:
            if problem := run(old, new, message, at, Path(folder)):
                failed += 1
                print(f"FAILED: {new}: {problem}")
    print(f"{len(WRONG) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
