"""Wrong model files: each is a right file with a text replaced. Lists give the replacement, the one message that must follow, and the text whose
line the message must name (None: the replacement)."""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from surogate.dsl.__main__ import main as dsl

IMPORTS = "import Array, Choice, Input, abstract, concat, each, extends, hf_export, recompute, rows, save, tied_to,"
BASE = Path("examples/dsl/tiny.py").read_text().replace("import Array,", IMPORTS)
HEADS = Path("tests/dsl/heads.py").read_text().replace("    Array,", "    Array, Choice, recompute, rows, save,")
HEADS = HEADS.replace("@module\n", 'from surogate.dsl.graph import Value\n\nKEPT = Value("kept", ())\n\n\n@module\n', 1)
MORE_IMPORTS = "import Input, Module, Param, Tensor, hf_config, hf_mapping,"
Z_LOSS, KL = (Path(f"examples/dsl/objectives/{name}.py").read_text().replace("import Module,", MORE_IMPORTS) for name in ("z_loss", "forward_kl"))
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
    (SUM, "return g.add(x, self.dwn(h))", "the module blocks.{i} has no dwn; did you mean down?, in blocks.{i}", None),
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
    (FORWARD, FORWARD.replace("hyper: Any", 'hyper: Any, kind: Input["i64"]'), "Input['i64']: unknown dtype 'i64'; expected 'i32' or 'f32'", None),
    (FORWARD, FORWARD.replace("hyper: Any", 'hyper: Any, kind: Input[3]'), "Input[3]: unknown dtype 3; expected 'i32' or 'f32'", None),
    (FORWARD, FORWARD.replace("hyper: Any", 'hyper: Any, kind: Input["f32", -100]'), "Input['f32', -100]: padding holds -100; expected a whole number, for 'f32' 0", None),
    (FORWARD, FORWARD.replace("hyper: Any", 'hyper: Any, kind: Input["f32", 0, 0]'), "expected a dtype, what padding holds, and how many numbers a token has, 1 to 1024", None),
    (FORWARD, FORWARD.replace("labels: Any", 'labels: Input["i32"]'), "Tiny: labels is an input of the engine", "    @forward\n    "
     + FORWARD.replace("labels: Any", 'labels: Input["i32"]')),
    (FORWARD, FORWARD.replace("labels", "classes"), "Tiny: there is no input classes; a model reads tokens, labels", "    @forward\n    " + FORWARD.replace("labels", "classes")),
    (RESULT, "return logits", "Tiny: its @forward gives (B, T, V), expected a dict of logits, which may have hidden, losses and loss too", "    @forward\n    " + FORWARD),
    ("@model\n" + TINY, "@abstract\n@model\n" + TINY, "Tiny is abstract; build a model that extends it", "@model\n" + TINY),
    ("@model\n" + TINY, '@tied_to("embed", "lm_head.weigth")\n@model\n' + TINY, 'the model has no weight "lm_head.weigth" outside of its Arrays; did you mean lm_head.weight?', None),
    ("@model\n" + TINY, '@tied_to("lm_head.weight", "blocks")\n@model\n' + TINY, 'the model has no weight "blocks" outside of its Arrays; it has embed, lm_head.weight', None),
    ("@block\n", '@extends(3)\n@block\n', "@extends: expected a @module, @block or @model, found 3", None),
    ("    @forward\n    def forward(self, x: Tensor[\"...\"", '    @recompute("attn")\n    @forward\n    def forward(self, x: Tensor["..."',
     'expected one of norm, qkv, att, ffn, swiglu, found "attn"', None),
    # wrong types and names
    (ACT, 'g.gelu(h, name=3)', "gelu: name is 3, expected a text without blanks", None),
    (ACT, 'self.up(x, name=3)', "Linear: name is 3, expected a text without blanks", None),
    (ACT, 'g.gelu(h, name="a b")', "gelu: name is 'a b', expected a text without blanks", None),
    (ACT, 'g.gelu(h, part="mlp")', "gelu: part is 'mlp', expected one of norm, qkv, att, ffn, swiglu, block", None),
    (ACT, 'g.scale(h, by=float("nan"))', "scale: by is nan, expected a finite number", None),
    # brackets, names of attributes, functions
    (EMBED, 'embed = Param("V", "C")', "Param: found 'V', 'C', expected the shape as Tensor[\"M\", \"K\"], and options by name", None),
    (EMBED, 'embed = Param(Tensor("V", "C"), init=normal(0.02))', "Tensor takes its dims in square brackets", None),
    (ARRAY, 'blocks = Array("L", "Block")', "Array takes a count and a block in square brackets", None),
    (ARRAY, 'blocks = Array["L", "Blok"]', "Array: 'Blok' is no @block of this file; did you mean Block?", None),
    (FORWARD, FORWARD.replace("hyper: Any", 'hyper: Any, kind: Input("i32")'), 'Input takes its dtype in square brackets: Input["i32"]', None),
    (ACT, "g.relu2(h)", "unknown op relu2; expected g.relu(x, squared=True)", None),
    (ACT, 'g.geglu(h, h)', "unknown op geglu; expected g.swiglu(gate, up, gelu=True)", None),
    (INDEXED, INDEXED + '\n@hf_mapping("embed", "wte")', "@hf_mapping: expected names as q=\"q_proj\" or {\"q.weight\": \"q_proj.weight\"}, found 'embed', 'wte'",
     '@hf_mapping("embed", "wte")'),
    (ACT, 'g.cast(h, "bf16")', "attributes have names, as dtype='bf16'", None),
    (EPS, 'eps=Key(None, "exp(1)")', 'expression "exp(1)": unknown function exp; expected one of ceil, floor, log, max,', None),
    # Arrays: several tensors, and the turns of a repeat
    (LOGITS, 'logits = self.lm_head(self.blocks(()), name="logits")', "blocks: the first argument is (), expected the tensors that go from one to the next", None),
    (LOGITS, 'logits = self.lm_head(self.blocks((x, x)), name="logits")', "Block: x is ((B, T, C), (B, T, C)), expected a tensor (B, T, C), in blocks.{i}", None),
    (LOGITS, 'logits = self.lm_head(self.blocks((x, 3)), name="logits")', "blocks: tensor 1 is 3, expected a tensor", None),
    (LOGITS, 'x = g.repeat(2, lambda y: g.select("turn > 0", lambda: self.blocks(y), lambda: y, name="z"), x)\n            ' + LOGITS,
     "blocks.{i}.norm: the first turn of g.repeat doesn't apply its Array; expected g.select inside of the block, or the Array in the first turn too", NORM_W),
    # repeats
    (ACT, 'g.repeat("L", h, h)', 'repeat: expected how often, a function and what it is given first', None),
    (ACT, 'g.repeat("L", lambda y: self.down(y), h)', "repeat: a turn gives (B, T, C), expected (B, T, 4 * C) as it is given", None),
    (ACT, 'g.repeat("L", lambda y: (y, y), h)', "repeat: a turn gives (B, T, 4 * C), (B, T, 4 * C), expected (B, T, 4 * C) as it is given", None),
    (ACT, 'g.repeat("L", lambda y: None, h)', "repeat: a turn's result is None, expected a tensor", None),
    (ACT, 'g.repeat("layers", lambda y: y, h)', 'unknown symbol layers', None),
    (X0, X0 + '\n            seen = []\n            x = g.repeat(2, lambda y: seen.append(g.gelu(y)) or y, x)\n            x = g.add(x, seen[0])',
     "add: b was made inside of a repeat, and isn't there outside of it", "x = g.add(x, seen[0])"),
    (X0, X0 + '\n            seen = []\n            x = g.repeat(2, lambda y: g.gelu(seen.append(y) or y), x)\n            x = g.add(x, seen[0])',
     "add: b was made inside of a repeat, and isn't there outside of it; expected what its turns gave", "x = g.add(x, seen[0])"),
    (X0, X0 + '\n            seen = []\n            x = g.repeat(2, lambda y: g.gelu(seen.append(y) or y), x)\n            x = g.repeat(2, lambda y: g.add(y, seen[0]), x)',
     "add: b was made inside of a repeat, and isn't there outside of it; expected what its turns gave", "g.add(y, seen[0])"),
    (X0, X0 + '\n            seen = []\n            x = g.repeat(2, lambda y: seen.append(g.gelu(y)) or y, x)\n            x = g.repeat(2, lambda y: g.add(y, seen[0]), x)',
     "add: b was made inside of a repeat, and isn't there outside of it; expected what its turns gave", "g.add(y, seen[0])"),
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
     '@tied_to("embed"'),
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

# Two tensors go through the blocks.
TWO = BASE.replace('def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:', "def forward(self, state: Any) -> Any:").replace(H, "x, kept = state; " + H)
TWO = TWO.replace(SUM, SUM + ", kept").replace("self.blocks(x)", "self.blocks((x, x))[0]")

# (base file, text to replace, [(replacement, in which & is the old text; the message; the instance; the text whose line the message names)])
MORE = [
    (HEADS, '"B", "T", "H", "D", name="q.heads"', [
        ('"B", "T", "G", "D", name="q.heads"',
         "reshape: x is (B, T, H * D), expected as many elements as (B, T, G, D), of 1 to 4 dims",
         "blocks.{i}.attn", None),
    ]),
    (HEADS, 'q_norm = Param(Tensor["D"]', [
        ('q_norm = Param(Tensor["H"]', "rms_norm: w is (H), expected (D)", "blocks.{i}.attn", "q = g.rms_no"),
    ]),
    (HEADS, 'num_heads="H", num_kv_heads="G"', [
        ('num_heads="G", num_kv_heads="H"',
         "reshape: x is (B, T, G, D), expected as many elements as (B, T, H * D), of 1 to 4 dims",
         "blocks.{i}.attn", "return self."),
    ]),
    (HEADS, 'num_heads="H", num_kv_heads="G", head_dim="D"', [
        ('num_heads="H", num_kv_heads="G", head_dim="2 * D"',
         "attention: head_dim is 2 * D, expected D, as q is (B, T, H, D)",
         "blocks.{i}.attn", None),
        ('num_heads="H"',
         "attention: num_kv_heads is missing; expected a number, 1 or more, or an expression: num_kv_heads=...",
         "blocks.{i}.attn", None),
    ]),
    (HEADS, 'num_heads="H", num_kv_heads="G", head_dim="D", ', [
        ("&causal=True, ",
         "attention has no attribute causal; it has num_heads, num_kv_heads, head_dim, window, scale, softcap, dense, bidirectional",
         "blocks.{i}.attn", None),
    ]),
    (HEADS, "g.attention(q, k, v, doc_start, self.sinks", [
        ("g.attention(q, k, v, self.sinks", "attention: doc_start is (H), expected i32 (B, T)", "blocks.{i}.attn", None),
        ("g.attention(q, v, doc_start, self.sinks", "attention: v is i32 (B, T), expected (B, T, G, E)", "blocks.{i}.attn", None),
    ]),
    (HEADS, "g.attention(q, k, v, doc_start", [
        ("g.attention(k, q, v, doc_start", "attention: v is (B, T, G, D), expected (B, T, H, E)", "blocks.{i}.attn", None),
    ]),
    (HEADS, 'sinks = Param(Tensor["H"]', [
        ('sinks = Param(Tensor["G"]', "attention: sinks is (G), expected (H)", "blocks.{i}.attn", "y = g.attent"),
        ('sinks = Param(Tensor["H", 1]', "attention: sinks is (H, 1), expected (H)", "blocks.{i}.attn", "y = g.attent"),
    ]),
    (HEADS, 'window="near[i] ? W : 0"', [
        ('window="near ? W : 0"',
         'attention: window: "near ? W : 0": near is a list; expected the index of one value, as near[i]',
         "blocks.{i}.attn", None),
        ('window="near[j] ? W : 0"',
         'attention: window: "near[j] ? W : 0": unknown symbol j; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, i, near, reach, sunk, tied',
         "blocks.{i}.attn", None),
        ("window=-1", "attention: window is -1, expected 0 or more", "blocks.{i}.attn", None),
        ('window="near[i] ? W"', 'attention: window: expression "near[i] ? W": expected ":"', "blocks.{i}.attn", None),
        ("window=2.5", "attention: window is 2.5, expected int or an expression", "blocks.{i}.attn", None),
        ('softcap="cap"',
         'attention: softcap: "cap": unknown symbol cap; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, i, near, reach, sunk, tied',
         "blocks.{i}.attn", None),
    ]),
    (HEADS, "g.rope(q, table, positions", [
        ("g.rope(q, positions, table", "rope: table is i32 (B, T), expected f32 (P, R)", "blocks.{i}.attn", None),
        ("g.rope(q, table",
         "rope: positions is missing; expected x (B,T,H,D), table f32 (P,R), positions i32 (B,T) -> y (B,T,H,D): x with the first R of D elements rotated; attrs interleaved:",
         "blocks.{i}.attn", None),
    ]),
    (HEADS, 'len="P", head_dim="D", name="table"', [
        ('head_dim="D", name="table"', "rope_table: len is missing; expected a number, 1 or more, or an expression: len=...", "Heads", None),
        ('len="P", name="table"', "rope_table: head_dim is missing; expected a number, 1 or more, or an expression: head_dim=...", "Heads", None),
        ('len="P", head_dim="D", base=1e4, name="table"',
         "rope_table has no attribute base; it has len, head_dim, theta, scale, frequencies",
         "Heads", None),
    ]),
    (HEADS, '"B", "T", "H * D", name="y.flat"', [
        ('"B * T", "H * D", name="y.flat"',
         "Attention: its result is (B * T, C), expected (B, T, C)",
         "blocks.{i}.attn", '    @forward\n    def forward(self, x: Tensor["B", "T", "C"], table: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:'),
        ('-1, "H * D", name="y.flat"',
         'reshape: dims are (-1, H * D), expected each to be 1 or more, as "T"; none is left to be found',
         "blocks.{i}.attn", None),
        ('("B", "T", "H * D"), name="y.flat"',
         "reshape: expected a dim (a symbol, number or expression), found ('B', 'T', 'H * D')",
         "blocks.{i}.attn", None),
    ]),
    (HEADS, "self.attn(h, table, positions, doc_start)", [
        ("self.attn(h, table, positions)",
         "Attention: missing a required argument: 'doc_start'; expected x, table, positions, doc_start",
         "blocks.{i}.attn", None),
        ("self.attn(h, table, positions, mask=doc_start)",
         "Attention: missing a required argument: 'doc_start'; expected x, table, positions, doc_start",
         "blocks.{i}.attn", None),
        ("self.attention(h, table, positions, doc_start)", "the module blocks.{i} has no attention; did you mean attn?", "blocks.{i}", None),
        ("Attention()(h, table, positions, doc_start)",
         "Attention isn't an attribute of the model; expected it to be set in __init__ or in the class",
         "blocks.{i}", None),
        ("self.attn(doc_start, table, positions, doc_start)", "Attention: x is i32 (B, T), expected (B, T, C)", "blocks.{i}.attn", None),
        ("self.attn.q", "add: b is the module blocks.{i}.attn.q, expected a tensor: what calling it gives", "blocks.{i}", None),
    ]),
    (HEADS, "lambda: self.wide(x)", [
        ("lambda: self.wide.weight", "select: its second branch gives (C, C), expected (B, T, C) as its first", "blocks.{i}", None),
        ('lambda: g.cast(self.wide(x), dtype="f32")',
         "select: its second branch gives f32 (B, T, C), expected (B, T, C) as its first",
         "blocks.{i}", None),
        ("lambda: None", "select: a branch's result is None, expected a tensor", "blocks.{i} where !(near[i])", None),
        ("lambda y: self.wide(y)",
         "TypeError: Block.forward.<locals>.<lambda>() missing 1 required positional argument: 'y'",
         "blocks.{i} where !(near[i])", None),
        ("self.wide(x)", "select: expected two functions, as lambda: self.full(x)", "blocks.{i}", None),
    ]),
    (HEADS, '"near[i]", lambda: self.mlp', [
        ('"near", lambda: self.mlp', 'select: when: "near": near is a list; expected the index of one value, as near[i]', "blocks.{i}", None),
        ("x, lambda: self.mlp", "select: when: expected a dim (a symbol, number or expression), found (B, T, C)", "blocks.{i}", None),
        ("True, lambda: self.mlp", "select: when: expected a dim (a symbol, number or expression), found True", "blocks.{i}", None),
        ('"near[i] = 1", lambda: self.mlp', 'select: when: expression "near[i] = 1": unexpected "="', "blocks.{i}", None),
    ]),
    (HEADS, 'y = g.select("near[i]", lambda: self.mlp(x), lambda: self.wide(x), name="part")', [
        ('kept = []\n            y = g.select("near[i]", lambda: kept.append(self.mlp(x)) or kept[0], lambda: self.wide(x), name="part")\n            y = g.add(y, kept[0], name="again")',
         "add: b was made in a branch of g.select, and isn't there outside of it; expected what g.select gave",
         "blocks.{i}", "y = g.add(y,"),
    ]),
    (HEADS, 'self.gate, self.up, self.down = Linear("F", "C"), Linear("F", "C"), Linear("C", "F")', [
        ('self.gate, self.up, self.down = Linear("F", "C"), Linear("2 * F", "C"), Linear("C", "F")',
         "swiglu: up is (B, T, 2 * F), expected (B, T, F)",
         "blocks.{i}.mlp where near[i]", "return self.d"),
        ('self.gate, self.up, self.down = Linear("F", "C"), Linear("F", "C"), Linear("C", "2 * F")',
         "Linear: x is (B, T, F), expected (..., 2 * F)",
         "blocks.{i}.mlp.down where near[i]", "return self.d"),
    ]),
    (HEADS, 'g.swiglu(self.gate(x), self.up(x), name="act")', [
        ('g.swiglu(self.gate(x), name="act")', "Linear: x is (B, T, F / 2), expected (..., F)", "blocks.{i}.mlp.down where near[i]", None),
    ]),
    (HEADS, '            return g.add(x, y, name="sum")', [
        ('            g.add(x, y, name="sum")',
         "Block: its result is None, expected a tensor (B, T, C); a @forward returns what it makes",
         "blocks.{i}", '    @forward\n    def forward(self, x: Tensor["B", "T", "C"], table: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:\n        with graph() as g:\n            h = g.rms_norm(x, self.norm, eps="eps", name="normed")'),
        ("            return x, y",
         "Block: its result is ((B, T, C), (B, T, C)), expected a tensor (B, T, C)",
         "blocks.{i}", '    @forward\n    def forward(self, x: Tensor["B", "T", "C"], table: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:\n        with graph() as g:\n            h = g.rms_norm(x, self.norm, eps="eps", name="normed")'),
    ]),
    (HEADS, "            return self.o(", [
        ("            self.o(",
         "Attention: its result is None, expected a tensor (B, T, C); a @forward returns what it makes",
         "blocks.{i}.attn", '    @forward\n    def forward(self, x: Tensor["B", "T", "C"], table: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:'),
    ]),
    (HEADS, 'return {"logits": self.lm_head(hidden, name="logits"), "hidden": hidden}', [
        ('{"logits": self.lm_head(hidden, name="logits"), "hidden": hidden}',
         "Heads: its @forward gives None, expected a dict of logits, which may have hidden, losses and loss too",
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:'),
        ('return {"logits": self.lm_head(hidden, name="logits"), "hiden": hidden}',
         "Heads: an output is named 'hiden'; did you mean hidden?",
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:'),
        ('return {"logits": g.reshape(self.lm_head(hidden), "B * T", "V"), "hidden": hidden}',
         "Heads: logits is (B * T, V), expected (B, T, V)",
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:'),
        ('return {"logits": self.lm_head(hidden), "hidden": hidden, 3: hidden}',
         "Heads: an output is named 3; expected a text without blanks",
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:'),
        ('return {"logits": self.lm_head(hidden), "hidden": hidden, "a b": hidden}',
         "Heads: an output is named 'a b'; expected a text without blanks",
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:'),
    ]),
    (HEADS, "hidden = g.rms_norm(x,", [
        ("print(x.lse)\n            &", 'a tensor has no lse; ops are methods of the graph, as g.reshape(x, "B", "T", "H", "D")', "Heads", None),
        ("x = self.blocks.block(x, table, positions, doc_start)\n            &",
         "rms_norm: w was made inside of a repeat, and isn't there outside of it; expected what the blocks gave",
         "blocks.{i}", "h = g.rms_no"),
        ("g.add(x, self.blocks.norm)\n            &", "the module blocks has no norm; it has block", "Heads", None),
        ("g.add(x, self.blocks.block.norm)\n            &",
         "add: b was made inside of a repeat, and isn't there outside of it; expected what the blocks gave",
         "Heads", None),
    ]),
    (HEADS, 'return {"logits"', [
        ('g.topk(hidden, k=2).others["ids"]\n            return {"logits"',
         "others['ids']: expected a number; by name it is an attribute of the tensor: .ids",
         "Heads", None),
        ('(a, b) = g.topk(hidden, k=2)\n            return {"logits"',
         "a tensor is one value, no tuple; expected the further outputs of its op by name: .ids",
         "Heads", None),
        ('for v in hidden: pass\n            return {"logits"',
         "a tensor is one value, no tuple; expected the further outputs of its op by name: .rstd",
         "Heads", None),
        ('float(hidden)\n            return {"logits"',
         "a tensor's numbers aren't known here; expected ops of the graph, as g.sum(x), or expressions of the config",
         "Heads", None),
        ('hidden < x\n            return {"logits"',
         "tensors can't be compared: their numbers aren't known here; expected g.ge(a, b) or g.gt(a, b), whose result is 0 or 1 for each element",
         "Heads", None),
        ('hidden ** 2\n            return {"logits"',
         "tensors have no operators; expected g.add(a, b), g.mul(a, b) or, with a number, g.scale(x, by=2)",
         "Heads", None),
        ('g.sum(g.topk(hidden, k=2).others[0])\n            return {"logits"',
         'sum: x is i32 (B, T, 2), expected f32 or bf16, as g.cast(x, dtype="f32") makes it',
         "Heads", None),
        ('g.exp(tokens)\n            return {"logits"',
         'exp: x is i32 (B, T), expected f32 or bf16, as g.cast(x, dtype="f32") makes it',
         "Heads", None),
        ('g.cast(hidden, dtype="float32")\n            return {"logits"',
         "cast: dtype is 'float32', expected \"f32\" or \"bf16\" or \"i32\"",
         "Heads", None),
        ('g.cast(hidden, "f32")\n            return {"logits"', "cast: 2 inputs, expected at most 1", "Heads", None),
        ('g.concat([hidden, hidden])\n            return {"logits"',
         "concat: a is [(B, T, C), (B, T, C)], expected a tensor: inputs stand one by one",
         "Heads", None),
        ('g.sum(hidden, axis=1)\n            return {"logits"', "sum has no attribute axis; it has dim, dtype", "Heads", None),
        ('g.sum(hidden, dim="1")\n            return {"logits"', "sum: dim is '1', expected a number from -3 to 2, as x is (B, T, C)", "Heads", None),
        ('g.slice(hidden, begin="C", size=1)\n            return {"logits"',
         "slice: begin is C and size 1, expected no more than the C of the dim, as x is (B, T, C)",
         "Heads", None),
        ('g.slice(hidden, dim=-1, begin="C / 2", size="C")\n            return {"logits"',
         "slice: begin is C / 2 and size C, expected no more than the C of the dim, as x is (B, T, C)",
         "Heads", None),
        ('g.topk(hidden, k="2 * C")\n            return {"logits"',
         "topk: k is 2 * C, expected no more than the C of the dim, as x is (B, T, C)",
         "Heads", None),
        ('g.full(value=1)\n            return {"logits"',
         "full: size is missing; expected a number, 1 or more, or an expression: size=...",
         "Heads", None),
        ('g.scale(hidden, 2)\n            return {"logits"', "scale: 2 inputs, expected at most 1", "Heads", None),
        ('g.softcap(hidden)\n            return {"logits"',
         "softcap: cap is missing; expected a number, 1 or more, or an expression: cap=...",
         "Heads", None),
        ('g.add(hidden, 1)\n            return {"logits"', "add: b is 1, expected a tensor, as g.full(size=1, value=1)", "Heads", None),
        ('g.add(hidden, b=hidden, c=hidden)\n            return {"logits"', "add has no attribute c; it has none", "Heads", None),
        ('g.pick(hidden, hidden)\n            return {"logits"', "pick: ids is (B, T, C), expected i32 (B, T)", "Heads", None),
        ('g.label_mask(hidden)\n            return {"logits"', "label_mask: labels is (B, T, C), expected i32 (...)", "Heads", None),
        ('g.loss_sum(hidden, hidden)\n            return {"logits"', "loss_sum: losses is (B, T, C), expected f32 (B, T)", "Heads", None),
        ('g.relu(hidden, name="x0")\n            return {"logits"',
         'relu: there is a value named "x0"; give this one another: name="..."',
         "Heads", None),
        ('g.relu(hidden, name="tokens")\n            return {"logits"',
         'relu: there is a value named "tokens"; give this one another: name="..."',
         "Heads", None),
        ('g.relu(hidden, name="embed")\n            return {"logits"',
         'relu: there is a value named "embed"; give this one another: name="..."',
         "Heads", None),
        ('g.rmsnorm(hidden)\n            return {"logits"', "unknown op rmsnorm; did you mean rms_norm?", "Heads", None),
        ('g.RMSNorm(hidden)\n            return {"logits"', "unknown op RMSNorm; did you mean rms_norm?", "Heads", None),
        ('g.matmul(hidden, self.embed)\n            return {"logits"',
         "unknown op matmul; products with a weight are g.linear(x, w), w of (out, in)",
         "Heads", None),
        ('g.transpose(hidden)\n            return {"logits"', "unknown op transpose; no op turns dims; attention takes (B, T, H, D)", "Heads", None),
        ('g.all_to_all(hidden)\n            return {"logits"', "all_to_all: x is (B, T, C), expected (ranks n)", "Heads", None),
        ('g.reshape(hidden, "B", "T", "H", "W")\n            return {"logits"',
         "reshape: x is (B, T, C), expected as many elements as (B, T, H, W), of 1 to 4 dims",
         "Heads", None),
        ('g.layer_norm(hidden, self.norm, self.embed)\n            return {"logits"', "layer_norm: b is (V, C), expected (C)", "Heads", None),
        ('g.embedding(hidden, self.embed)\n            return {"logits"', "embedding: tokens is (B, T, C), expected i32 (B, T)", "Heads", None),
        ('g.embedding(tokens, self.norm)\n            return {"logits"', "embedding: w is (C), expected (V, C)", "Heads", None),
        ('g.mul(hidden, g.mean(hidden, dim=1), name="m")\n            g.mul(hidden, g.reshape(hidden, "B * T", "C"))\n            return {"logits"',
         "mul: b is (B * T, C), expected (B, T, C)",
         "Heads", "g.mul(hidden, g.r"),
    ]),
    (HEADS, '@tied_to("lm_head.weight", "embed", when="tied")', [
        ('@tied_to("lm_head.weight", "norm", when="tied")',
         "lm_head.weight is (V, C), expected (C) as norm, which it is tied to",
         "lm_head", "weight = Par"),
        ('@tied_to("lm_head", "embed", when="tied")',
         '@tied_to: the model has no weight "lm_head" outside of its Arrays; did you mean lm_head.weight?',
         "", None),
        ('@tied_to("lm_head.weight", "embd", when="tied")',
         '@tied_to: the model has no weight "embd" outside of its Arrays; did you mean embed?',
         "", None),
        ('@tied_to("lm_head.weight", "embed", when="tie")',
         '@tied_to: when: "tie": unknown symbol tie; expected one of B, C',
         "", None),
        ('@tied_to("blocks.{i}.attn.q.weight", "embed")',
         '@tied_to: the model has no weight "blocks.{i}.attn.q.weight" outside of its Arrays; it has embed, norm, lm_head.weight',
         "", None),
        ('@tied_to("blocks.wide.weight", "embed")',
         '@tied_to: the model has no weight "blocks.wide.weight" outside of its Arrays; it has embed, norm, lm_head.weight',
         "", None),
        ("&\n&", "@tied_to: lm_head.weight is tied to embed and to embed; expected one of them", "", None),
    ]),
    (HEADS, '@hf_mapping(embed="model.embed_tokens.weight")', [
        ('@hf_mapping(embed="model.embed_tokens.{i}.weight")',
         "embed is 'model.embed_tokens.{i}.weight' in a model folder: \"i\": unknown symbol i; expected one of B, C",
         "Heads", "embed = Para"),
        ('@hf_mapping(embed="norm")',
         "norm is 'norm' in a model folder, as embed is; give each its own name, or say @tied_to",
         "Heads", '    norm = Param(Tensor["C"], init="ones")\n    blocks = Array["L", "Block"]'),
        ('@hf_mapping({"lm_head.wieght": "head"})', "@hf_mapping: Linear has no wieght; did you mean weight?", "", "@model"),
        ('@hf_mapping({"blocks.attn.q.weights": "head"})', "@hf_mapping: Linear has no weights; did you mean weight?", "", "@model"),
        ('@hf_mapping({"blocks.attn.qq.weight": "head"})', "@hf_mapping: Attention has no qq; did you mean q?", "", "@model"),
        ('@hf_mapping({"blocks.attn.q.weight": "model.layers.{j}.q"})',
         "blocks.{i}.attn.q.weight is 'model.layers.{j}.q' in a model folder: \"j\": unknown symbol j; expected one of B, C",
         "blocks.{i}.attn.q", "weight = Par"),
        ('@hf_mapping({"embed": rows("wte", "0", "Q")})',
         'embed: total: "Q": unknown symbol Q; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, near, reach, sunk, tied',
         "Heads", "embed = Para"),
        ('@hf_mapping({"embed": {"stack": ["a", "b"]}})',
         "@hf_mapping: embed is {'stack': ['a', 'b']}, expected a name, concat(...), transpose(...) or rows(...)",
         "", None),
        ('@hf_mapping({"embed": {}})', "@hf_mapping: embed is {}, expected a name, concat(...), transpose(...) or rows(...)", "", None),
    ]),
    (HEADS, '@hf_mapping.indexed("blocks", "model.layers.{i}")', [
        ("",
         "blocks.{i}.norm is 'blocks.norm' in a model folder, the same in every turn; expected {i} in it",
         "blocks.{i}", 'norm = Param(Tensor["C'),
        ('@hf_mapping.indexed("block", "model.layers.{i}")', "@hf_mapping: Heads has no block; did you mean blocks?", "", "@model"),
        ('@hf_mapping.indexed("blocks", "model.layers.{layer}")',
         "blocks.{i}.norm is 'model.layers.{layer}.norm' in a model folder: \"layer\": unknown symbol layer; expected one of B, C",
         "blocks.{i}", 'norm = Param(Tensor["C'),
        ('@hf_mapping.indexed("blocks", 3)', '@hf_mapping.indexed: expected the index in the name, as "model.layers.{i}", found 3', "", None),
        ('@hf_mapping.indexed("embed", "x.{i}")', "@hf_mapping.indexed: embed is no Array; expected one", "", "@model"),
    ]),
    (HEADS, 'weight = Param(Tensor["out", "inner"], linear=True, init=normal(0.02))', [
        ('weight = Param(Tensor["out", "inner"], linear="yes")', "lm_head.weight: linear is 'yes', expected True or False", "Heads", None),
        ('weight = Param(Tensor["out", "inner", "fp32"])',
         'lm_head.weight: "fp32": fp32 is neither a symbol nor a dtype; did you mean f32?',
         "Heads", None),
        ('weight = Param(Tensor["out", "inner"], dtype="fp32")', "a weight's dtype is 'fp32', expected \"f32\" or \"bf16\"", "", None),
        ("weight = Param(Tensor[()])", "lm_head.weight is (), expected 1 to 4 dims, each 1 or more", "Heads", None),
        ('weight = Param(Tensor["out", 0])', "lm_head.weight is (V, 0), expected 1 to 4 dims, each 1 or more", "Heads", None),
        ('weight = Param(Tensor["out", "inner", 1, 1, 1])', "lm_head.weight is (V, C, 1, 1, 1), expected 1 to 4 dims, each 1 or more", "Heads", None),
        ('weight = Param(Tensor["out", "T"])', "linear: w is (H * D, T), expected (M, C)", "blocks.{i}.attn.q", "return g.lin"),
        ('weight = Param(Tensor["out", "inner"], matrices=("out", "out"))',
         'lm_head.weight: matrices: "out": unknown symbol out; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, near, reach, sunk, tied',
         "Heads", None),
        ('weight = Param(Tensor["out", "inner"], init={"uniform": 1})',
         "init: expected \"zeros\", \"ones\" or normal(deviation), found {'uniform': 1}",
         "", None),
        ('weight = Param(Tensor["out", "inner"], init={"normal": -1})',
         "normal: a deviation of -1, expected a number from 0 on, or an expression",
         "", None),
        ('weight = Param(Tensor["out", "inner"], init={"normal": "a"})',
         'lm_head.weight: init: "a": unknown symbol a; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, near, reach, sunk, tied',
         "Heads", None),
        ('weight = Param(Tensor["out", "inner"], module=3)', "a weight's module is 3, expected the name of a linear layer", "", None),
        ('weight = Param(Tensor["out", "inner"], when="sunk >")',
         'blocks.{i}.attn.q.weight: when: expression "sunk >": expected a number, a symbol or "("',
         "blocks.{i}.attn.q", None),
        ('weight = Param(Tensor["out", "inner"], when=3)', "a weight's when is 3, expected True, False, or an expression of the config", "", None),
    ]),
    (HEADS, "q_norm = Param(", [
        ('größe = Param(Tensor["D"])\n    q_norm = Param(',
         "blocks.{i}.attn.größe: no op reads this weight; expected an op that does, or frozen=True for one that is only loaded and saved",
         "", None),
    ]),
    (HEADS, "self.sinks,", [
        ("self.sinks if self.sinks else None,",
         "a tensor is neither true nor false: its numbers aren't known here; expected g.select for the config's choices, or, of a weight with when=, `is None`",
         "blocks.{i}.attn", None),
        ("self.sink,", "the module blocks.{i}.attn has no sink; did you mean sinks?", "blocks.{i}.attn", None),
        ("g.scale(self.sinks, by=2),", "scale: x isn't there unless sunk; expected a weight that always is", "blocks.{i}.attn", None),
    ]),
    (HEADS, 'blocks = Array["L", "Block"]', [
        ('blocks = Array["L", Block()]', "Array: the module Block is no @block of this file", "", None),
        ('blocks = Array["L", "Mlp"]', "Mlp: too many positional arguments; expected x", "blocks.{i}", "x = self.blo"),
        ('blocks = Array["near", "Block"]', 'Array: "near": near is a list; expected the index of one value, as near[i]', "blocks", None),
        ('blocks = Array["L / 2.5 +", "Block"]', 'expression "L / 2.5 +": expected a number, a symbol or "("', "", None),
        ('blocks = Array["L", "Block", 3]', 'Array takes a count and a block: Array["n_layers", "Block"]', "", None),
        ('blocks = Array[True, "Block"]', "expected a dim (a symbol, number or expression), found True", "", None),
        ('blocks = Array[2.5, "Block"]', "expected a dim (a symbol, number or expression), found 2.5", "", None),
    ]),
    (HEADS, "self.blocks(g.embedding", [
        ("self.blocks[0](g.embedding",
         "blocks: the blocks of an Array run one after the other, and none stands alone; expected self.blocks(x)",
         "Heads", None),
    ]),
    (HEADS, 'self.blocks(g.embedding(tokens, self.embed, name="x0"), table, positions, doc_start)', [
        ('self.blocks(g.embedding(tokens, self.embed, name="x0"))',
         "Block: missing a required argument: 'table'; expected x, table, positions, doc_start",
         "blocks.{i}", None),
        ("self.blocks(tokens, table, positions, doc_start)", "Block: x is i32 (B, T), expected (B, T, C)", "blocks.{i}", None),
    ]),
    (HEADS, "x = self.blocks(g.embedding", [
        ("for block in self.blocks:\n                pass\n            &",
         "blocks: the blocks of an Array run one after the other, and none stands alone; expected self.blocks(x)",
         "Heads", None),
    ]),
    (HEADS, 'eps=Key("rms_norm_eps", "1e-6", min=0)', [
        ('eps=Key("rms_norm_eps", 1e-6, minimum=0)',
         "Key has no minimum; it may have default, null, needed_if, choices, min, above, max, integer, per, unused, type",
         "", None),
        ('eps=Key("rms_norm_eps", "1e-6", type="float")', "Key: type is 'float', expected number, flag or text", "", None),
        ('eps=Key("rms_norm_eps", "1e-6", min=2, max=1)', "Key: no number is at least 2 and at most 1", "", None),
        ('eps=Key("", "1")', "Key: '' names no key of config.json", "", None),
        ('eps=Key([], "1")', "Key: [] names no key of config.json", "", None),
        ('eps=Choice("act", "1")', 'Choice: expected choices={"TEXT": NUMBER, ...}, the texts that are supported', "", None),
        ('eps=Key("act", choices={})', 'Key: choices: expected texts and their numbers, as {"TEXT": 1}, found none', "", None),
        ('&, T=Size("dim")',
         "T: not a name for a symbol; expected ASCII letters, digits and _, and another than B, T, P, reach, i, j, k, l and those of functions",
         "", '@hf_config("'),
        ('&, i=Size("dim")',
         "i: not a name for a symbol; expected ASCII letters, digits and _, and another than B, T, P, reach, i, j, k, l and those of functions",
         "", '@hf_config("'),
        ('&, sqrt=Size("dim")',
         "sqrt: not a name for a symbol; expected ASCII letters, digits and _, and another than B, T, P, reach, i, j, k, l and those of functions",
         "", '@hf_config("'),
    ]),
    (HEADS, 'C % H == 0": "hidden_size', [
        ('C % Hd == 0": "hidden_size',
         '"C % Hd == 0": unknown symbol Hd; expected one of C, D, F, G, H, L, V, W, eps, near, sunk, tied',
         "", '@hf_config("'),
    ]),
    (HEADS, "require={\"C % H == 0\": \"hidden_size isn't a multiple of num_attention_heads\"}", [
        ("requires={}", 'requires: expected Key("hidden_size") or Size("hidden_size"), found {}', "", '@hf_config("'),
    ]),
    (HEADS, 'D=Key(None, "C / H")', [
        ("D=Key(None)", 'Key(None) says nothing; expected what the symbol is, as in Key(None, "C / H")', "", None),
    ]),
    (HEADS, 'D=Key(None, "C / H"), W=Size("sliding_window", 8)', [
        ('W=Size("sliding_window", "D"), D=Key(None, "C / H")', '"D": D is named below; a key reads symbols above it', "", None),
    ]),
    (HEADS, "    @forward\n    def forward(self, tokens", [
        ("    def forward(self, tokens", "Heads has 0 methods with @forward, expected 1", "", "@model"),
        ("    @forward\n    def more(self, x): return x\n&", "Heads has 2 methods with @forward, expected 1", "", "@model"),
    ]),
    (HEADS, "doc_start: Any) -> dict", [
        ("doc_start: Any, *more: Any) -> dict",
         'Heads: there is no input more; a model reads tokens, labels, positions, doc_start, doc_id, step, hyper; or its own: more: Input["i32"]',
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any, *more: Any) -> dict[str, Any]:'),
        ('doc_start: Any, x: Tensor["B", "T"]) -> dict',
         'Heads: there is no input x; a model reads tokens, labels, positions, doc_start, doc_id, step, hyper; or its own: x: Input["i32"]',
         "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any, x: Tensor["B", "T"]) -> dict[str, Any]:'),
    ]),
    (HEADS, 'tokens: Tensor["B", "T", "i32"]', [
        ('tokens: Tensor["B", "T", "i64"]',
         "Heads: tokens is i32 (B, T), expected i64 (B, T)",
         "Heads", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i64"], positions: Any, doc_start: Any) -> dict[str, Any]:'),
        ('tokens: Tensor["B", "T", "int32"]', 'Heads: tokens: "int32": int32 is neither a symbol nor a dtype; did you mean i32?', "Heads", None),
    ]),
    (HEADS, 'x: Tensor["B", "T", "C"], table', [
        ('x: Tensor["B", "T", "D"], table', "Attention: x is (B, T, C), expected (B, T, D)", "blocks.{i}.attn", "x = g.add(x,"),
    ]),
    (HEADS, '-> Tensor["B", "T", "C"]:\n        with graph() as g:\n            q', [
        ('-> Tensor["B", "T", "Cc"]:\n        with graph() as g:\n            q',
         'Attention: its result: "Cc": unknown symbol Cc; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, i, near, reach, sunk, tied',
         "blocks.{i}.attn", None),
    ]),
    (HEADS, "@block\n", [
        ("@block()\n", "TypeError: block() missing 1 required positional argument: 'cls'", "", None),
        ('@save("sum")\n@block\n', "@save stands before a method, found <class 'wrong.Block'>", "", None),
    ]),
    (HEADS, '    @forward\n    def forward(self, x: Tensor["...', [
        ('    @forward\n    @save(3)\n    def forward(self, x: Tensor["...',
         '@save: expected texts in a tuple, as ("rope", "bias"), found (3,)',
         "", "@save(3)"),
        ('    @save("out")\n&', "@save: Linear makes no 'out'; it makes nothing with a name", "blocks.{i}.attn.q", None),
        ("    @recompute\n&", "@recompute: expected one of norm, qkv, att, ffn, swiglu, found a method", "", None),
    ]),
    (HEADS, 'def __init__(self) -> None:\n        self.lm_head = Linear("V", "C")', [
        ('def __init__(self, size) -> None:\n        self.lm_head = Linear("V", "C")',
         "Heads takes arguments (missing a required argument: 'size'); expected a @model whose __init__ has none",
         "", "@model"),
    ]),
    (HEADS, 'self.lm_head = Linear("V", "C")', [
        ('self.lm_head = [Linear("V", "C")]',
         '@tied_to: the model has no weight "lm_head.weight" outside of its Arrays; it has embed, norm',
         "", '@tied_to("lm'),
        ('self.lm_head = Linear("C", "V")', "Linear: x is (B, T, C), expected (..., V)", "lm_head", 'return {"log'),
        ('self.lm_head = Linear(Tensor["V"], "C")',
         'lm_head.weight: "out": unknown symbol out; expected one of B, C, D, F, G, H, L, P, T, V, W, bf16, eps, near, reach, sunk, tied',
         "Heads", "weight = Par"),
        ("&; self.norm = 3", "rms_norm: w is 3, expected a tensor, as g.full(size=1, value=3)", "Heads", "hidden = g.r"),
        ('&; self.spare = Linear("C", "C")',
         "spare.weight: no op reads this weight; expected an op that does, or frozen=True for one that is only loaded and saved",
         "", "weight = Par"),
    ]),
    (HEADS, "self.attn = Attention()", [
        ("self.attn = Block()", "Heads: modules hold one another without end", "", "@model"),
    ]),
    (HEADS, 'return {"logits": self.lm_head(hidden, name="logits"), "hidden": hidden}', [
        ('return {"logits": self.lm_head(hidden), "losses": g.cast(tokens, dtype="i32"), "loss": g.full(size=1, name="one")}',
         "Heads: losses is i32 (B, T), expected f32 (B, T)", "", '    @forward\n    def forward(self, tokens: Tensor["B", "T", "i32"]'),
        ('y = g.relu(hidden, name="one\\n")', "relu: name is 'one\\n', expected a text", "Heads", None),
        ('self.lm_head(hidden, name="l.1")\n            g.topk(hidden, k=2, name="l")',
         'topk: there is a value named "l.1", as its further output would be', "Heads", 'g.topk(hidden, k=2, name="l")'),
        ('g.cross_entropy(self.lm_head(hidden), tokens).hits', "and its op's further outputs are .lse", "Heads", None),
        ('g.add(self.lm_head(hidden), KEPT)', "add: b is of another graph; expected a value that this @forward was given or made", "Heads", None),
    ]),
    (HEADS, "def __init__(self) -> None:\n        self.lm_head", [
        ("def __init__() -> None:\n        self.lm_head", "Heads takes arguments (invalid method signature); expected a @model whose __init__ has none", "",
         "@model"),
    ]),
    (TWO, SUM + ", kept", [
        (SUM, "Block: its result is (B, T, C), expected ((B, T, C), (B, T, C)) as its first input", "blocks", "@block"),
        (SUM + ", kept, x", "Block: its result is ((B, T, C), (B, T, C), (B, T, C)), expected ((B, T, C), (B, T, C)) as its first input", "blocks", "@block"),
        (SUM + ", self.up(kept)", "Block: its result is ((B, T, C), (B, T, 4 * C)), expected ((B, T, C), (B, T, C)) as its first input", "blocks", "@block"),
    ]),
    (TWO, "x, kept = state", [
        ("x, kept, more = state", "ValueError: not enough values to unpack (expected 3, got 2)", "blocks.{i}", None),
    ]),
    (TWO, "self.blocks((x, x))[0]", [
        ("self.blocks((x, x))", "Linear: x is ((B, T, C), (B, T, C)), expected a tensor (..., C)", "lm_head", None),
        ("self.blocks(x)[0]", "a tensor is one value, no tuple; expected g.slice or g.columns for parts of it", "blocks.{i}", "x, kept = state"),
    ]),
    (Z_LOSS, 'return {"losses": losses, "loss": loss, "z_loss": z_loss}', [
        ('return {"losses": losses, "z_loss": z_loss}',
         "ZLoss: its @forward gives {'losses': f32 (B, T), 'z_loss': f32 (1)}, expected a dict of loss, which may have losses and other numbers too",
         "", "@forward"),
        ('return {"losses": losses, "loss": losses}', "ZLoss: loss is f32 (B, T), expected (1)", "", "@forward"),
        ('return {"losses": squares, "loss": loss, "lse": lse}', "ZLoss: lse is f32 (B, T), expected (1)", "", "@forward"),
        ('return {"losses": g.sum(losses), "loss": loss}', "ZLoss: losses is f32 (B, 1), expected (B, T)", "", "@forward"),
        ('return {"logits": logits, "loss": loss}', "ZLoss: logits is the model's; expected loss, losses and further numbers", "", "@forward"),
        ('return {"loss": loss, "x": 3}', "output: x is 3, expected a tensor, as g.full(size=1, value=3)", "", "@forward"),
    ]),
    (Z_LOSS, "labels: Any, hyper: Any", [
        ("&, teacher: Any",
         "ZLoss: there is no input teacher; an objective reads tokens, labels, positions, doc_start, doc_id, step, hyper, hidden, logits, teacher_logits; or",
         "", "@forward"),
        ("&, hidden_states: Any",
         "ZLoss: there is no input hidden_states; an objective reads tokens, labels, positions, doc_start, doc_id, step, hyper, hidden, logits, teacher_logits;",
         "", "@forward"),
        ('&, reward: Input["f16"]', "Input['f16']: unknown dtype 'f16'; expected 'i32' or 'f32'", "", None),
    ]),
    (Z_LOSS, "weight = 1e-4", [
        ('weight = Param(Tensor["V"])', "weight: an objective has no weights of its own; expected it in the model", "ZLoss", None),
        ('weight = 1e-4\n    scale = Param(Tensor["C"])',
         "scale: an objective has no weights of its own; expected it in the model",
         "", "scale = Para"),
    ]),
    (Z_LOSS, "lse = losses.lse", [
        ("lse = losses.lsee",
         "a tensor has no lsee; ops are methods of the graph, as g.reshape(x, \"B\", \"T\", \"H\", \"D\"), and its op's further outputs are .lse",
         "ZLoss", None),
        ("lse = losses.others[2]", "others[2]: expected 0 to 1, as the op has 2 further outputs", "ZLoss", None),
        ("lse = g.mul(losses, labels).lse", 'mul: b is i32 (B, T), expected f32 or bf16, as g.cast(b, dtype="f32") makes it', "ZLoss", None),
    ]),
    (Z_LOSS, "g.mul(lse, lse)", [
        ("g.mul(lse, logits)", "mul: b is (B, T, V), expected (B, T)", "ZLoss", None),
    ]),
    (Z_LOSS, "g.label_mask(labels)", [
        ("labels", 'mul: b is i32 (B, T), expected f32 or bf16, as g.cast(b, dtype="f32") makes it', "ZLoss", "squares = g."),
    ]),
    (Z_LOSS, "g.loss_sum(squares, hyper", [
        ("g.loss_sum(squares",
         "loss_sum: hyper is missing; expected losses f32 (B,T), hyper f32 (S), [acc f32 (1)] -> loss f32 (1) = inv_tokens * sum",
         "ZLoss", None),
    ]),
    (Z_LOSS, "@objective", [
        ('@objective\n@hf_config("X")',
         'no symbol says how many tokens there are; expected V, or roles={"vocabulary": SYMBOL}',
         "", '@hf_config("X")'),
    ]),
    (KL, "g.sub(theirs, own)", [
        ("g.sub(theirs, teacher.logits)", "NameError: name 'teacher' is not defined", "ForwardKL", None),
    ]),
    (KL, 'g.reshape(g.sum(terms), "B", "T")', [
        ("g.sum(terms)", "mul: b is f32 (B, T), expected (B, T, 1)", "ForwardKL", None),
    ]),
    (KL, "temperature = 2.0", [
        ("temperature = 0", "ZeroDivisionError: division by zero", "ForwardKL", "cold = 1 / s"),
    ]),
    (KL, "g.log_softmax(g.scale(logits, by=cold", [
        ("g.softmaxx(g.scale(logits, by=cold", "unknown op softmaxx; did you mean softmax?", "ForwardKL", None),
    ]),
]

# A model of shipped parts. Its mistakes may show in a shipped file; then the message ends with the line of this one: message, instance, the text at
# that line (None: at the replacement).
PARTS = '''from typing import Any

from surogate.dsl import Array, Module, Number, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, tied_to
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, Linear, RMSNorm, changed


@module
class Attention(llama.Attention):
    more = {"window": "4"}


@block
class Block(llama.Block):
    attention = Attention

    def __init__(self) -> None:
        super().__init__()
        self.third = RMSNorm("C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            y = self.third(self.attn(self.norm1(x), rope, positions, doc_start))
            x = g.add(x, y, name="res1")
            return g.add(x, self.mlp(self.norm2(x)), name="res2")


@hf_config("PartsForCausalLM", require=FULL, **DECODER)
@model
class Parts(llama.Llama):
    pass
'''
SHIPPED: list[tuple[str, str, str, str, str | None]] = [
    ('self.third = RMSNorm("C")', 'self.third, self.more = RMSNorm("C"), Linear("C", "C")', "blocks.{i}.more.weight: no op reads this weight", "", None),
    ("rope, positions, doc_start))", "positions, rope, doc_start))", "rope: table is i32 (B, T), expected f32 (P, R)", "blocks.{i}.attn", None),
    ("self.attn(self.norm1(x), rope", 'self.attn(g.cast(self.norm1(x), dtype="i32"), rope', "linear: x is i32 (B, T, C), expected f32 or bf16", "blocks.{i}.attn.q",
     None),
    ('more = {"window": "4"}', 'more = {"windows": "4"}', "attention has no attribute windows; did you mean window?", "blocks.{i}.attn", "y = self.third("),
    ('more = {"window": "4"}', 'more = {"window": "near[i]"}', 'attention: window: "near[i]": unknown symbol near', "blocks.{i}.attn", "y = self.third("),
    ('more = {"window": "4"}', "more = 4", "attention() argument after ** must be a mapping, not int", "blocks.{i}.attn", "y = self.third("),
    ("**DECODER", '**changed(DECODER, "C")', '"C / H": unknown symbol C', "", None),
    ("Parts(llama.Llama):\n    pass", "Parts(llama.Llama):\n    last_norm = None", "TypeError: 'NoneType' object is not callable", "", "@model\nclass Parts"),
]


def message_of(path: Path) -> str:
    """What `python -m surogate.dsl check` ends with; "": it accepts the file."""
    before = list(sys.path)
    sys.argv = ["surogate.dsl", "check", str(path)]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            dsl()
    except SystemExit as end:
        return str(end.code)
    finally:
        sys.path[:] = before
    return ""


def run_shipped(old: str, new: str, message: str, instance: str, at: str | None, folder: Path) -> str:
    text, path = PARTS.replace(old, new, 1), folder / "wrong.py"
    if text == PARTS:
        return f"the right one has no {old!r}"
    line = text.count("\n", 0, text.find(at or new)) + 1
    path.write_text(text)
    got = message_of(path)
    end = (f", in {instance}" if instance else "") + f", from {path}:{line}"
    return "" if got.startswith("python/surogate/models/") and message in got and "\n" not in got and got.endswith(end) else f"expected {message!r}{end}, got {got}"


def run(base: str, old: str, new: str, message: str, instance: str, at: str | None, folder: Path) -> str:
    if base.count(old) < 1:
        return f"the right one has no {old!r}"
    text = base.replace(old, new, 1)
    begin = text.find(at) if at else text.find(new)
    want = text.count("\n", 0, begin) + 1
    path = folder / "wrong.py"
    path.write_text(text)
    got = message_of(path)
    if "\n" in got or message not in got:
        return f"expected one line with {message!r}, got {got}"
    if instance and not got.endswith(f", in {instance}"):
        return f"expected the instance {instance}, got {got}"
    return "" if got.startswith(f"{path}:{want}: ") else f"expected line {want}, got {got}"


def main() -> None:
    failed = 0
    rows = [(BASE, old, new, message, "", at) for old, new, message, at in WRONG]
    rows += [(base, old, new.replace("&", old), message, instance, at) for base, old, edits in MORE for new, message, instance, at in edits]
    with tempfile.TemporaryDirectory() as folder:
        for base, old, new, message, instance, at in rows:
            if problem := run(base, old, new, message, instance, at, Path(folder)):
                failed += 1
                print(f"FAILED: {new}: {problem}")
        for edit in SHIPPED:
            if problem := run_shipped(*edit, Path(folder)):
                failed += 1
                print(f"FAILED: {edit[1]}: {problem}")
    rows += [(PARTS, *edit) for edit in SHIPPED]
    print(f"{len(rows) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
