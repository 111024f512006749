"""A headless Chromium, driven over a pipe by its DevTools protocol: nothing but Python's own modules."""
import base64, json, os, shutil, subprocess, tempfile, time

PROGRAM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_read, self.to = os.pipe()
        self.source, from_write = os.pipe()

        def fds():  # the browser reads commands from file descriptor 3 and writes to 4
            commands, answers = os.dup(to_read), os.dup(from_write)
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
             "--disable-background-networking", "--remote-debugging-pipe", "--user-data-dir=" + self.folder, "about:blank"],
            preexec_fn=fds, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.number, self.left, self.seen, self.session = 0, b"", [], None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") != self.number:
                self.seen.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def read(self):
        while b"\0" not in self.left:
            more = os.read(self.source, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self.left += more
        line, self.left = self.left.split(b"\0", 1)
        return json.loads(line)

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            raise RuntimeError(script + ": " + json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def holds(self, script):
        """Whether the script's result is true; false also if another page loads meanwhile."""
        try:
            return self.evaluate(f"!!({script})")
        except RuntimeError as error:
            if "navigated" not in str(error):
                raise
            return False

    def wait(self, script, seconds=20):
        end = time.time() + seconds
        while not self.holds(script):
            if time.time() > end:
                raise RuntimeError("never true: " + script + "\n" + str(self.evaluate("document.body.innerText")))
            time.sleep(0.02)

    def view(self, width, height, dark=False, touch=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if touch else 1, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait("location.href != 'about:blank' && document.readyState == 'complete'")

    def key(self, name, code, **more):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      **(more if kind == "keyDown" else {}))

    def write(self, text):
        self.call("Input.insertText", text=text)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def troubles(self):
        """Requests to other hosts, violations of the page's policy, exceptions."""
        found = []
        for event in self.seen:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
            if method == "Log.entryAdded" and params["entry"]["source"] == "security":
                found.append(params["entry"]["text"])
            if method == "Network.requestWillBeSent":
                found.append(params["request"]["url"])
        return found

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
