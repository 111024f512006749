#!/usr/bin/env python3
"""Do answers of `surogate serve` equal the results of other programs, and do other programs' clients understand them?

  python3 tests/oracle/check_serve.py families PROGRAM     every tiny model of tests/fixtures/families, base and adapter: served greedy
        texts and log-probabilities against transformers and PEFT in fp64, to 1e-5
  python3 tests/oracle/check_serve.py openai URL           OpenAI's client: chats, streams, tools, log-probabilities, errors
  python3 tests/oracle/check_serve.py lm-eval URL TOKENIZER_DIR PROGRAM MODEL_DIR
        lm-eval's local-completions over a task of a local file: its log-likelihoods against those of `surogate score`

URL is a server's address; requests go to its first model. Nothing is downloaded.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request

os.environ["HF_HUB_OFFLINE"] = "1"
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "families")
TOLERANCE = 1e-5


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def first_model(url):
    return ask(url, "/v1/models")["data"][0]["id"]


class Served:
    def __init__(self, program, folder, *flags):
        self.process = subprocess.Popen([program, "serve", folder, "--port", "0", "--device", "cpu", "--dtype", "fp32", *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the server doesn't start: " + folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait() == 0


def with_tokenizer(family, folder):
    """Copies the family's model to `folder`, with a tokenizer of vocab_size tokens, each of one character."""
    shutil.copytree(os.path.join(FAMILIES, family), folder)
    vocab = json.load(open(os.path.join(folder, "config.json")))["vocab_size"]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "post_processor": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                           "fuse_unk": False, "byte_fallback": False, "vocab": {chr(33 + i): i for i in range(vocab)}, "merges": []}}
    json.dump(tokenizer, open(os.path.join(folder, "tokenizer.json"), "w"))


def check_families(program):
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file

    from check_saved import load_exact

    def logprobs_of(model, rows):
        """(B,T-1): ln p of each token after the first, given the tokens before it."""
        with torch.no_grad():
            logits = model(input_ids=rows).logits.double()
        return torch.log_softmax(logits, -1)[:, :-1].gather(2, rows[:, 1:, None])[..., 0]

    worst = 0.0
    for family in sorted(os.listdir(FAMILIES)):
        source = os.path.join(FAMILIES, family)
        if not os.path.isdir(source):
            continue
        rows = load_file(os.path.join(source, "expected.safetensors"))["plain.ids"].long()
        reach = rows.shape[1]
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(scratch, family)
            with_tokenizer(family, folder)
            for name in (family, "tuned"):
                model = load_exact(source, reach)
                if name == "tuned":
                    model = PeftModel.from_pretrained(model, os.path.join(source, "adapter")).double()
                flags = ["--context", str(reach), "--adapter", "tuned=" + os.path.join(source, "adapter")]
                with Served(program, folder, *flags) as served:
                    body = {"model": name, "prompt": rows[:, :16].tolist(), "max_tokens": reach - 16, "temperature": 0, "logprobs": 0,
                            "echo": True, "ignore_eos": True}
                    choices = ask(served.url, "/v1/completions", body)["choices"]
                ids = torch.tensor([[ord(token) - 33 for token in choice["logprobs"]["tokens"]] for choice in choices])
                got = torch.tensor([choice["logprobs"]["token_logprobs"][1:] for choice in choices], dtype=torch.float64)
                want = logprobs_of(model, ids)
                assert ids.shape == rows.shape and (ids[:, :16] == rows[:, :16]).all(), family
                with torch.no_grad():
                    greedy = model(input_ids=ids).logits[:, 15:-1].argmax(-1)
                assert (greedy == ids[:, 16:]).all(), "%s %s: another greedy text" % (family, name)
                difference = (got - want).abs().max().item()
                worst = max(worst, difference)
                print("%-14s %-8s %.1e" % (family, "base" if name == family else "adapter", difference))
                assert difference < TOLERANCE, family
    print("largest difference %.1e" % worst)


def check_openai(url):
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    messages = [{"role": "user", "content": "What is 1?"}]

    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12, seed=4)
    text = whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 12 and whole.choices[0].finish_reason in ("stop", "length")
    streamed, usage, reasons = "", None, []
    for part in client.chat.completions.create(model=model, messages=messages, max_tokens=12, seed=4, stream=True,
                                               stream_options={"include_usage": True}):
        usage = part.usage or usage
        for choice in part.choices:
            streamed += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert streamed == text and usage.total_tokens == whole.usage.total_tokens and reasons[-1] == whole.choices[0].finish_reason

    scored = client.chat.completions.create(model=model, messages=messages, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2)
    tokens = scored.choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 2 and token.logprob == token.top_logprobs[0].logprob for token in tokens)
    several = client.chat.completions.create(model=model, messages=messages, max_tokens=3, n=3, stop=["x", "y"], logit_bias={"5": -100},
                                             presence_penalty=0.5, frequency_penalty=0.5, user="me")
    assert [choice.index for choice in several.choices] == [0, 1, 2]

    prompts = client.completions.create(model=model, prompt=["What", "It"], max_tokens=4, logprobs=2, echo=True, temperature=0)
    for choice in prompts.choices:
        assert choice.logprobs.token_logprobs[0] is None and len(choice.logprobs.top_logprobs) == len(choice.logprobs.tokens)
    parts = list(client.completions.create(model=model, prompt="What", max_tokens=4, stream=True, temperature=0))
    assert "What" + "".join(part.choices[0].text for part in parts) == prompts.choices[0].text

    tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}}]
    try:
        called = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=8)
        assert called.choices[0].message.content is not None or called.choices[0].message.tool_calls
        print("tools: the template prints them")
    except openai.BadRequestError as error:
        assert error.param == "tools"
        print("tools: refused by name, as the template prints none")

    for kind, wrong in ((openai.NotFoundError, {"model": "gpt-4"}), (openai.BadRequestError, {"temperature": 9}),
                        (openai.BadRequestError, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}})):
        try:
            client.chat.completions.create(**{"model": model, "messages": messages, **wrong})
            raise AssertionError(wrong)
        except kind as error:
            assert error.param == next(iter(wrong)) and error.type == "invalid_request_error", (error.param, error.type)
    print("openai %s: all as expected" % openai.__version__)


def check_lm_eval(url, tokenizer, program, folder):
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = first_model(url)
    lm = LocalCompletionsAPI(model=model, base_url=url + "/v1/completions", tokenizer=tokenizer, tokenizer_backend="huggingface",
                             batch_size=4, max_length=256)
    pairs = [("What is %d plus %d?" % (i, i * 7 % 10), " It is %d." % (i + k)) for i in range(1, 13) for k in (i * 7 % 10, 3, 50)]
    with tempfile.TemporaryDirectory() as scratch:
        rows = os.path.join(scratch, "rows.jsonl")
        with open(rows, "w") as file:
            for prompt, completion in pairs:
                file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
        printed = subprocess.run([program, "score", folder, rows, "--json", "--device", "cpu", "--dtype", "fp32"], check=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        sums = [json.loads(line)["sum"] for line in printed.splitlines()]
        requests = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(pairs)]
        got = [value for value, _ in lm.loglikelihood(requests)]
        worst = max(abs(a - b) for a, b in zip(sums, got))
        assert worst < 1e-4, worst

        data = os.path.join(scratch, "test.jsonl")
        with open(data, "w") as file:
            for i in range(0, len(pairs), 3):
                file.write(json.dumps({"question": pairs[i][0], "choices": [c for _, c in pairs[i:i + 3]], "answer": 0}) + "\n")
        task = {"task": "sums", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data}}, "test_split": "test",
                "output_type": "multiple_choice", "doc_to_text": "question", "doc_to_choice": "choices", "doc_to_target": "answer",
                "target_delimiter": "", "metric_list": [{"metric": "acc"}]}
        result = lm_eval.simple_evaluate(model=lm, tasks=[task], bootstrap_iters=0)["results"]["sums"]["acc,none"]
        own = sum(max(range(3), key=lambda k: sums[i + k]) == 0 for i in range(0, len(pairs), 3)) / (len(pairs) // 3)
        assert result == own, (result, own)
    print("lm-eval: %d log-likelihoods, largest difference to score %.1e; acc %.3f is that of score" % (len(pairs), worst, result))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    checks = {"families": check_families, "openai": check_openai, "lm-eval": check_lm_eval}
    if len(sys.argv) < 3 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    checks[sys.argv[1]](*sys.argv[2:])
