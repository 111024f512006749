"""The API that the chat page calls, without a model: the answer depends on the question."""
import base64, hashlib, http.server, json, re, threading, time

CODE = """A *heap* keeps the **smallest** item first. In Python it is `heapq`:

```python
import heapq

def smallest(items, count):
    heap = list(items)
    heapq.heapify(heap)                      # O(n)
    return [heapq.heappop(heap) for _ in range(count)]
```

Each `heappop` takes O(log n). So the whole takes O(n + k log n) for k items."""
MARKUP = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script> & <b>bold</b>"
LONG = "Each line of this answer says a little more than the one before it. "


def policy(page):
    """The policy that serve/chat_page.c computes from the page."""
    digest = lambda name: base64.b64encode(hashlib.sha256(re.search(f"<{name}>(.*?)</{name}>", page, re.S)[1].encode()).digest()).decode()
    return (f"default-src 'none'; connect-src 'self'; script-src 'sha256-{digest('script')}'; style-src 'sha256-{digest('style')}'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    page, asked, gone, key, models = "", [], 0, None, ["qwen3-0.6b", "qwen3-0.6b-pirate"]

    def log_message(self, *_):
        pass

    def reply(self, status, kind, body, **fields):
        body = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message):
        self.reply(status, "application/json", json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None}}))

    def allowed(self):
        if not Api.key or self.headers["Authorization"] == "Bearer " + Api.key:
            return True
        self.refuse(401, "this server asks for an API key")
        return False

    def do_GET(self):
        if self.path == "/":
            self.reply(200, "text/html; charset=utf-8", Api.page, Content_Security_Policy=policy(Api.page))
        elif self.path == "/v1/models" and self.allowed():
            self.reply(200, "application/json", json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in Api.models]}))
        elif self.path != "/v1/models":
            self.refuse(404, "there is no " + self.path)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Api.asked.append(body)
        question = body["messages"][-1]["content"]
        if not self.allowed():
            return
        if "fail" in question:
            self.refuse(400, "max_tokens is 0; expected at least 1")
            return
        text = CODE if "heap" in question else MARKUP if "markup" in question else LONG * 60 if "long" in question else "Echo: " + question
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        pieces = re.findall(r"\s*\S+", text)
        try:
            for i, piece in enumerate(pieces):
                self.event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
                time.sleep(0.05 if "long" in question or "slow" in question else 0.002)
                if "break" in question and i == 1:
                    return
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length" if "cut" in question else "stop"}]})
            self.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(pieces), "total_tokens": 9 + len(pieces)}})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            Api.gone += 1
        self.close_connection = True

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def start(page):
    Api.page = page
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
