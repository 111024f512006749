"""Drives the chat page in a headless browser against a server without a model. With a folder's name it also takes screenshots there."""
import os, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chromium
import fake_api
from fake_api import Api

VIEWS = [("wide", 1280, 800, False), ("narrow", 390, 844, True)]
pictures = sys.argv[1] if len(sys.argv) > 1 else None
with open("src/serve/page.html") as file:
    server = fake_api.start(file.read())
address = f"http://127.0.0.1:{server.server_address[1]}/"
browser = chromium.Browser()
failed = 0


def expect(what, is_so, more=""):
    global failed
    if not is_so:
        failed += 1
        print(f"not ok: {what} {more}")


def shoot(name):
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        if pictures:
            browser.picture(f"{pictures}/{name}-{scheme}.png")


def fits(name):
    over = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    expect(f"{name}: nothing is wider than the page", over[0] <= over[1], over)


def send(text):
    browser.evaluate("document.getElementById('text').focus()")
    browser.write(text)
    browser.key("Enter", 13)


def idle():
    browser.wait("!document.body.classList.contains('busy') && document.querySelector('article.assistant:last-of-type .again')")


said = "[...document.querySelectorAll('article.assistant .body')].at(-1).textContent"
try:
    for view, width, height, touch in VIEWS:
        browser.view(width, height, touch=touch)
        browser.open(address)
        browser.wait("document.querySelector('h1')")
        expect("models are offered", browser.evaluate("[...document.getElementById('model').options].map(o => o.value).join()") == ",".join(Api.models))
        shoot(view + "-empty")
        fits(view)

        send("What does a heap do?")
        idle()
        expect("an answer is streamed as it is", browser.evaluate(said) ==
               fake_api.CODE.replace("\n\n```python\n", "").replace("\n```\n\n", "").replace("`", "").replace("**", ""), browser.evaluate(said))
        expect("a block of code", browser.evaluate("document.querySelectorAll('article.assistant pre code').length") == 1)
        expect("tokens are counted", "tokens" in browser.evaluate("document.querySelector('article.assistant .under').innerText"))
        shoot(view + "-code")
        fits(view + " with code")
        send("some markup, and a " + "w" * 200)
        idle()
        expect("markup is text", browser.evaluate(said) == fake_api.MARKUP and browser.evaluate("document.title") == "surogate chat")
        expect("no element of it", browser.evaluate("document.querySelectorAll('article img, article script, article b').length") == 0)
        fits(view + " with a long word")
        expect("the conversation is sent", [m["role"] for m in Api.asked[-1]["messages"]] == ["user", "assistant", "user"] and
               Api.asked[-1]["messages"][1]["content"] == fake_api.CODE and Api.asked[-1]["stream"] is True)

        send("a long one")
        browser.wait(said + ".length > 300")
        shoot(view + "-streaming")
        browser.key("Escape", 27)
        idle()
        expect("Esc stops it", "stopped" in browser.evaluate("[...document.querySelectorAll('.under')].at(-1).innerText"))
        length = browser.evaluate(said + ".length")
        time.sleep(0.3)
        expect("nothing comes then", browser.evaluate(said + ".length") == length)
        send("another long one")
        browser.wait(said + ".length > 100")
        browser.evaluate("document.getElementById('go').click()")
        idle()
        expect("the button stops it", "stopped" in browser.evaluate("[...document.querySelectorAll('.under')].at(-1).innerText"))
        end = time.time() + 10
        while not Api.gone and time.time() < end:
            time.sleep(0.05)
        expect("the server learns of it", Api.gone > 0)

        send("fail please")
        idle()
        expect("an error in words", browser.evaluate("document.querySelector('.trouble').textContent") == "max_tokens is 0; expected at least 1")
        shoot(view + "-error")
        send("break off")
        idle()
        expect("an answer that breaks off", "broke off" in browser.evaluate("[...document.querySelectorAll('.trouble')].at(-1).textContent"))
        expect("a message without an answer isn't sent again", "fail please" not in [m["content"] for m in Api.asked[-1]["messages"]])
        asked = len(Api.asked)
        browser.evaluate("document.querySelector('.again').click()")
        browser.wait("!document.body.classList.contains('busy')")
        expect("it is asked again", len(Api.asked) == asked + 1 and Api.asked[-1]["messages"][-1]["content"] == "break off")

        browser.evaluate("document.getElementById('gear').click()")
        for name, value in (("system", "You are terse."), ("temperature", "0.3"), ("most", "77")):
            browser.evaluate(f"document.getElementById('{name}').focus()")
            browser.write(value)
        shoot(view + "-settings")
        fits(view + " with settings")
        browser.key("Escape", 27)
        expect("Esc closes the settings", browser.evaluate("document.getElementById('settings').hidden"))
        browser.evaluate("const m = document.getElementById('model'); m.value = m.options[1].value; m.dispatchEvent(new Event('change'))")
        send("a cut one")
        idle()
        sent = Api.asked[-1]
        expect("settings are sent", sent["messages"][0] == {"role": "system", "content": "You are terse."} and sent["temperature"] == 0.3 and
               sent["max_tokens"] == 77 and sent["model"] == Api.models[1], sent)
        expect("a cut answer says so", "cut" in browser.evaluate("[...document.querySelectorAll('.under')].at(-1).innerText"))
        text = "document.getElementById('text')"
        browser.evaluate(text + ".focus()")
        browser.write("one")
        browser.key("Enter", 13, modifiers=8, text="\r")
        browser.write("two")
        expect("Shift and Enter begin a line", browser.evaluate(text + ".value") == "one\ntwo", browser.evaluate(text + ".value"))
        browser.evaluate("document.getElementById('fresh').click()")
        browser.wait("document.querySelector('h1')")
        expect("settings are kept", browser.evaluate("document.getElementById('system').value") == "You are terse.")
        expect("so is the model", browser.evaluate("document.getElementById('model').value") == Api.models[1])

        Api.key = "secret"
        browser.open(address)
        browser.wait("document.querySelector('.trouble')")
        expect("a key is asked for", "API key" in browser.evaluate("document.querySelector('.trouble').textContent"))
        shoot(view + "-key")
        browser.evaluate("const k = document.getElementById('key'); k.value = 'secret'; k.dispatchEvent(new Event('input')); k.dispatchEvent(new Event('change'))")
        browser.wait("document.querySelector('h1') && document.querySelector('h1').textContent.startsWith('Chat')")
        send("hello")
        idle()
        expect("it is sent", browser.evaluate(said) == "Echo: hello")
        Api.key = None
        Api.asked.clear()
        Api.gone = 0
        browser.evaluate("localStorage.clear(), sessionStorage.clear()")
    strange = [what for what in browser.troubles() if not what.startswith(address)]
    expect("nothing from elsewhere, nothing forbidden, no exception", not strange, strange)
finally:
    browser.close()
    server.shutdown()
print("failed" if failed else "all as expected")
sys.exit(failed > 0)
