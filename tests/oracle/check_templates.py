#!/usr/bin/env python3
"""Compares the built-in chat templates with their originals, as transformers renders both, on 300 random talks each.

DIR has the originals: axolotl/ (src/axolotl/utils/chat_templates/templates of Axolotl), trl/ (trl/chat_templates of TRL), hub/ (olmo2,
smollm2, zephyr: of the model folders). Formats that no file of these has are written down here, from LLaMA-Factory's template.py and
FastChat's conversation.py.

  python3 tests/oracle/check_templates.py DIR [--write]     # --write: some of the talks become tests/fixtures/templates.json
"""
import json
import random
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "src" / "text" / "template" / "chat"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
WRITTEN_OUT = {"axolotl/deepseek_v3": {"eos_token": "<｜end▁of▁sentence｜>"}}  # originals that don't use the variable of the token
ORIGINALS = {
    "chatml": ["axolotl/chatml"],
    "llama3": ["axolotl/llama3", "trl/llama3"],
    "mistral_v1": ["axolotl/mistral_v1"],
    "mistral_v2v3": ["axolotl/mistral_v2v3"],
    "mistral_v3_tekken": ["axolotl/mistral_v3_tekken"],
    "mistral_v7_tekken": ["axolotl/mistral_v7_tekken"],
    "gemma": ["axolotl/gemma", "trl/gemma", "axolotl/gemma3", "trl/gemma3"],
    "phi3": ["axolotl/phi_35"],
    "qwen2_5": ["axolotl/qwen_25", "trl/qwen2_5"],
    "qwen3": ["trl/qwen3"],
    "qwen3_nothink": ["trl/qwen3_instruct_2507"],
    "phi4": ["axolotl/phi_4"],
    "deepseek3": ["axolotl/deepseek_v3"],
    "olmo2": ["hub/olmo2"],
    "smollm2": ["hub/smollm2"],
    "zephyr": ["hub/zephyr"],
}
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
# Name of a format: (text before the conversation; forms of a system message, a question and an answer; default system message, or "").
FORMATS = {
    "phi4": ("", "<|im_start|>system<|im_sep|>{}<|im_end|>", "<|im_start|>user<|im_sep|>{}<|im_end|>", "<|im_start|>assistant<|im_sep|>{}<|im_end|>", ""),
    "phi4_mini": ("", "<|system|>{}<|end|>", "<|user|>{}<|end|>", "<|assistant|>{}<|end|>", ""),
    "granite3": (
        "",
        "<|start_of_role|>system<|end_of_role|>{}<|end_of_text|>\n",
        "<|start_of_role|>user<|end_of_role|>{}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>{}<|end_of_text|>\n",
        "",
    ),
    "deepseek3": ("<s>", "{}", "<｜User｜>{}<｜Assistant｜>", "{}</s>", ""),
    "vicuna": ("", "{} ", "USER: {} ASSISTANT:", " {}</s>", VICUNA),
    "alpaca": ("", "{}\n\n", "### Instruction:\n{}\n\n### Response:\n", "{}</s>\n\n", ALPACA),
}
TALKS = 300  # number of compared talks, all of which the original renders
HAVE_TOOLS = ["qwen2_5", "qwen3", "qwen3_nothink"]
# These originals drop a system message unless the last message is a question, or add a long one if there is none.
WITHOUT_SYSTEM = ["mistral_v1", "mistral_v2v3", "mistral_v3_tekken"]
WITH_SYSTEM = ["mistral_v7_tekken", "phi4"]
WORDS = ["the", " answer", "\n\n", "  ", "é", "<b>", "{x}", '"q"', "it's", "1+1=2", "\t", "日本", ".", "end\n"]
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": 'd "q" é', "parameters": {"properties": {"a": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "g", "parameters": {}}},
]
rng = random.Random(7)


def text():
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9)))


def answer(name):
    """An answer, preceded by calls and their results if the template supports them."""
    out = {"role": "assistant", "content": text()}
    if name not in HAVE_TOOLS or rng.random() < 0.4:
        return [out]
    if rng.random() < 0.3:
        return [out | {"content": f"<think>\n{text()}\n</think>\n\n{text()}"}]
    if rng.random() < 0.3:
        return [out | {"reasoning_content": text()}]
    arguments = [{"a": text()}, '{"a": 1}', {}]
    calls = [{"type": "function", "function": {"name": "f", "arguments": rng.choice(arguments)}} for _ in range(rng.randint(1, 2))]
    return [out | {"content": rng.choice(["", text()]), "tool_calls": calls}, *({"role": "tool", "content": text()} for _ in calls), out]


def talk(name):
    has_system = name in WITH_SYSTEM or (name not in WITHOUT_SYSTEM and rng.random() < 0.4)
    out = [{"role": "system", "content": text()}] if has_system else []
    for _ in range(rng.randint(1, 3)):
        out += [{"role": "user", "content": text()}, *answer(name)]
    return out if rng.random() < 0.7 else out[: max(i for i, message in enumerate(out) if message["role"] == "user") + 1]


def render(path, variables):
    try:
        return _compile_jinja_template(path.read_text()).render(**variables)
    except Exception as error:  # a template refuses it
        return error


def formatted(name, variables):
    """Renders the conversation in the format FORMATS[name]."""
    first, system, user, assistant, default = FORMATS[name]
    messages = variables["messages"]
    if default and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": default}, *messages]
    forms = {"system": system, "user": user, "assistant": assistant}
    out = first + "".join(forms[message["role"]].replace("{}", message["content"]) for message in messages)
    lead = assistant[: assistant.index("{}")] if name not in ("vicuna", "alpaca", "deepseek3") else ""
    return out + (lead if variables["add_generation_prompt"] else "")


def compare(folder, name, originals, cases):
    """originals: names of templates in `folder`; None stands for the format in FORMATS."""
    path = OURS / f"{name}.jinja"
    for original in originals:
        if original and not (folder / f"{original}.jinja").exists():
            print(f"{name:18} {original:26} isn't in {folder}: not compared")
            continue
        same = refused = count = 0
        while count < TALKS:
            variables = {"messages": talk(name if original else ""), "tools": rng.choice([None, TOOLS]) if name in HAVE_TOOLS else None, **TOKENS, **WRITTEN_OUT.get(original, {})}
            variables["add_generation_prompt"] = variables["messages"][-1]["role"] == "user"
            want = render(folder / f"{original}.jinja", variables) if original else formatted(name, variables)
            if isinstance(want, Exception):
                refused += 1
                if refused > 10 * TALKS:
                    sys.exit(f"{name}: {original} renders hardly a talk: {want}")
                continue
            same += render(path, variables) == want
            if count < 8:
                cases.append({"name": name, "variables": variables, "text": want})
            count += 1
        print(f"{name:18} {original or 'its format':26} {same} of {TALKS} alike{f', {refused} others are refused there' if refused else ''}")
        if same != TALKS:
            sys.exit(1)


def main():
    cases = []
    for name, originals in ORIGINALS.items():
        compare(Path(sys.argv[1]), name, originals, cases)
    for name in FORMATS:
        compare(Path(sys.argv[1]), name, [None], cases)
    if "--write" in sys.argv:
        fixture = ROOT / "tests" / "fixtures" / "templates.json"
        fixture.write_text("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


main()
