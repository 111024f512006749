"""Conversations for template_random.py --files: whole ones and odd ones, with tools, calls, thinking, parts, nulls and documents."""
import random

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a <place> & \"more\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Stadt: Köln"}, "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {"name": "search_db", "description": "Sucht.\nZweite Zeile \"x\" <b>", "parameters": {"type": "object", "properties": {
    "query": {"type": "string", "description": "the text", "minLength": 1, "maxLength": 200, "default": "*"}, "limit": {"type": "integer", "description": "how many", "default": 10, "maximum": 100, "minimum": 0},
    "kinds": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "ü"]}, "description": "kinds "},
    "opts": {"type": "object", "properties": {"deep": {"type": "boolean", "default": False}, "rate": {"type": "number", "nullable": True, "format": "double"},
                                              "inner": {"type": "object", "properties": {"z": {"type": ["string", "null"]}}, "required": ["z"]}}, "required": ["deep"]},
    "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, "rows": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}, "required": ["k"]}},
    "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"}, "any": {"oneOf": [{"type": "string", "default": "q"}, {"type": "integer", "description": "an int"}]}, "free": {"description": "no type"},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}}, "u": {"type": ["object", "object"]}, "one": {"type": ["string"]}, "emptyarr": {"type": "array", "items": {}}},
    "required": ["query", "kinds"], "additionalProperties": False, "$defs": {"x": 1}}, "return": {"type": "string", "description": "rows"}, "strict": True}}
NOW = {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}}
BARE = {"type": "function", "function": {"name": "noparams", "description": "  spaced  "}}
FLAT = {"name": "flat", "description": "no function key", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
OLD = {"name": "old", "description": "old style", "parameter_definitions": {"q": {"type": "str", "description": "d", "required": True}, "r": {"type": "int", "required": False}}}
DOCUMENTS = [{"doc_id": 1, "title": "Erster", "text": "Text <1>\nmehr"}, {"doc_id": "b", "text": "zwei", "source": None, "lang": "dé"}, {"title": "T", "content": "c"}]
TEXTS = ["Hi", "", "  padded \n", "Multi\nline\n\ntext", "<think>\nhm\n</think>\n\nGood.", "a</think>b</think>c", "</think>", "<think></think>x", "/no_think do it", "/think please", "ünï 日本 😀 \u200b",
         "quote \" and ' and \\ back", "{{ not a tag }} {% x %}", "<tool_response>x</tool_response>", "\n\nlead", "tabs\tand\r\ncrlf", "<b>html & stuff</b>", "[INST] x [/INST]", "None", "/system_override You only.", "<<SYS>>", "x" * 300]
ARGUMENTS = [{}, {"city": "Köln", "days": 2}, {"a": None, "b": True, "c": [1, 2.5, "x", {"k": []}], "d": {"e": {}}}, {"text": "line\n\"q\" <b> é 😀"}, "{\"city\": \"K\"}", "", {"n": 1e20, "m": 1e-7, "z": 0.1, "big": 123456789012}]
PARTS = [[{"type": "text", "text": "look"}], [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}], [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "look"}],
         [{"type": "video", "video": "v"}], ["plain", "list"], [], [{"type": "text"}]]


class Talks:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def call_id(self):
        return self.r.choice(["abcdefghi", "call_1___1", "functions.f:0", "", "123456789"])

    def content(self):
        k = self.r.random()
        if k < .62:
            return self.r.choice(TEXTS)
        if k < .8:
            return self.r.choice(PARTS)
        return None if k < .93 else self.r.choice([5, {"k": "v"}, {"content": "inner"}, True, 1.5])

    def call(self):
        function = {"name": self.r.choice(["get_weather", "search_db", "code", "now"]), "arguments": self.r.choice(ARGUMENTS)}
        return self.r.choice([{"id": self.call_id(), "type": "function", "function": function}, {"type": "function", "function": function}, {"id": self.call_id(), "function": function}, function, {"name": "p", "parameters": {"q": 1}}])

    def odd_message(self):
        r = self.r
        message = {"role": r.choice(["user", "assistant", "user", "assistant", "system", "tool", "developer", "ipython", "tool_results"])}
        if r.random() < .93:
            message["content"] = self.content()
        if message["role"] == "assistant":
            if r.random() < .35:
                message["tool_calls"] = r.choice([None, [], [self.call()], [self.call()], [self.call(), self.call()], [self.call(), self.call(), self.call()]])
            if r.random() < .25:
                message[r.choice(["reasoning_content", "thinking", "reasoning", "tool_plan"])] = r.choice(["deep\nthought ", "", "\n x \n", None])
        if message["role"] == "tool" and r.random() < .8:
            message["tool_call_id"] = self.call_id()
        if r.random() < (.5 if message["role"] == "tool" else .05):
            message["name"] = "get_weather"
        if r.random() < .03:
            message["tools"] = r.choice(["[]", None])
        return message

    def talk(self):
        r, messages = self.r, []
        if r.random() < .5:
            messages.append({"role": r.choice(["system", "system", "developer"]), "content": r.choice(TEXTS)})
        for _ in range(r.randrange(1, 4)):
            messages.append({"role": "user", "content": r.choice(TEXTS) if r.random() < .85 else PARTS[1]})
            if r.random() < .4:
                call_id, n = self.call_id(), r.choice([1, 1, 1, 2])
                calls = [{"id": call_id, "type": "function", "function": {"name": r.choice(["get_weather", "search_db"]), "arguments": r.choice(ARGUMENTS[:4] + ARGUMENTS[6:])}} for _ in range(n)]
                messages.append({"role": "assistant", "content": r.choice(["", None, "calling", "<think>\nw\n</think>\n\nok"]), "tool_calls": calls})
                messages += [{"role": "tool", "name": "get_weather", "tool_call_id": call_id, "content": r.choice(["{\"t\": 20}", "sunny", "", PARTS[0]])} for _ in range(n)]
            if r.random() < .8:
                messages.append({"role": "assistant", "content": r.choice(TEXTS)})
                if r.random() < .3:
                    messages[-1][r.choice(["reasoning_content", "thinking"])] = "why\n"
        return messages

    def context(self):
        r = self.r
        messages = self.talk() if r.random() < .65 else [self.odd_message() for _ in range(r.randrange(0, 6))]
        tools = r.choice([None, None, [WEATHER], [SEARCH, NOW, BARE], [WEATHER, SEARCH, NOW], [], [FLAT], [OLD]])
        context = {"messages": messages, "tools": tools, "add_generation_prompt": r.random() < .5, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        if r.random() < .2:
            context["documents"] = r.choice([DOCUMENTS, DOCUMENTS[:1], []])
        if r.random() < .3:
            context["enable_thinking"] = r.random() < .5
        for name, value in (("reasoning_effort", "high"), ("thinking", True), ("builtin_tools", ["get_weather", "code"]), ("tools_in_user_message", False), ("date_string", "1 Jan 2025"), ("add_vision_id", True),
                            ("controls", {"length": "short", "citations": True}), ("thinking_budget", 600), ("thinking_budget", "1024"), ("python_tools", ["def f(): pass", {"a": 1}]), ("skip_think", False), ("safety_mode", "STRICT")):
            if r.random() < .1:
                context[name] = value
        return context
