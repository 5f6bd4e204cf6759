# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium over the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/).

    with Browser() as browser:
        page = browser.open("file:///tmp/report.html", width=390, theme="dark")
        page.evaluate("document.title")

Everything that waits has a limit in seconds and raises Failure when it is over. Needs Debian's packages chromium and
python3-websocket. CHROMIUM names another program.
"""
import atexit
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import websocket

START_LIMIT = 90  # seconds; a busy machine takes many for a cold Chromium
CALL_LIMIT = 60

FLAGS = [
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-quic", "--mute-audio", "--hide-scrollbars", "--password-store=basic",
    # Whatever a page asks for, no name leads anywhere.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    # A page in the background would be drawn, and its timers run, once a second.
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
]

# key: (code, Windows key code, text)
KEYS = {
    " ": ("Space", 32, " "), "[": ("BracketLeft", 219, "["), "]": ("BracketRight", 221, "]"),
    "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowRight": ("ArrowRight", 39, ""), "Home": ("Home", 36, ""),
    "End": ("End", 35, ""), "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"),
}
SHIFT = 8


class Failure(Exception):
    """The browser or a page did not do what it was asked to."""


class Browser:
    """One Chromium with a profile of its own. Both are gone when the `with` block, or the process, ends."""

    def __init__(self):
        name = os.environ.get("CHROMIUM", "chromium")
        self.program = shutil.which(name)
        if not self.program:
            raise Failure(f"wanted the program {name}, found none; run: .ci/setup browser")
        self.profile = pathlib.Path(tempfile.mkdtemp(prefix="zerobox-browser-"))
        self.process = self.socket = None
        self.calls = 0
        self.pages = {}  # by session
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        atexit.unregister(self.close)
        if self.socket:
            self.socket.close(timeout=1)
            self.socket = None
        self._kill()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _kill(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: the renderers too
            self.process.wait()
        self.process = None

    def _start(self):
        # The sandbox needs what root, and many containers, do not have.
        sandboxes = [["--no-sandbox"]] if os.geteuid() == 0 else [[], ["--no-sandbox"]]
        for sandbox in sandboxes:
            url = self._launch(sandbox)
            if url:
                self.socket = websocket.create_connection(url, timeout=CALL_LIMIT, suppress_origin=True,
                                                           http_no_proxy=["127.0.0.1"])
                self.version = self.call("Browser.getVersion")["product"]
                return
        raise Failure(f"{self.program} did not start:\n" + (self.profile / "log").read_text()[-2000:])

    def _launch(self, flags):
        """The address that the browser listens at, or None when it ended at once."""
        port_file = self.profile / "DevToolsActivePort"
        port_file.unlink(missing_ok=True)
        with open(self.profile / "log", "w") as log:
            self.process = subprocess.Popen(
                [self.program, *FLAGS, *flags, f"--user-data-dir={self.profile}", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_LIMIT
        while time.monotonic() < end and self.process.poll() is None:
            lines = port_file.read_text().split() if port_file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.02)
        self._kill()
        return None

    def call(self, method, session=None, limit=CALL_LIMIT, **parameters):
        """Sends one command and returns its result. What the pages say meanwhile goes to them."""
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        end = time.monotonic() + limit
        while True:
            reply = self._receive(end, method)
            if reply.get("id") == message["id"]:
                if "error" in reply:
                    raise Failure(f"{method}: {reply['error'].get('message')}")
                return reply["result"]

    def _receive(self, end, what):
        """One message; an event is given to its page first."""
        try:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            message = json.loads(self.socket.recv())
        except websocket.WebSocketTimeoutException:
            raise Failure(f"{what}: no answer in time") from None
        except (websocket.WebSocketException, OSError) as error:
            raise Failure(f"{what}: the browser is gone: {error}") from None
        if "method" in message and message.get("sessionId") in self.pages:
            self.pages[message["sessionId"]].hear(message["method"], message["params"])
        return message

    def open(self, url, **look):
        """A new page, loaded. For `look` see Page.look."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, target, session)
        try:
            page.begin(url, **look)
        except BaseException:
            page.close()
            raise
        return page


class Page:
    """One tab. `problems` are its console errors and warnings and uncaught exceptions, `requests` all it asked for."""

    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session
        self.problems, self.requests = [], []
        self.loaded = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.browser.pages.pop(self.session, None)
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method, **parameters):
        return self.browser.call(method, session=self.session, **parameters)

    def hear(self, event, data):
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Runtime.exceptionThrown":
            self.problems.append(what_was_thrown(data["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            words = (str(x.get("value", x.get("description", ""))) for x in data["args"])
            self.problems.append("console: " + " ".join(words))
        elif event == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            entry = data["entry"]
            self.problems.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}".strip())
        elif event == "Network.requestWillBeSent":
            self.requests.append(data["request"]["url"])
        elif event == "Network.webSocketCreated":
            self.requests.append(data["url"])

    def begin(self, url, **look):
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(domain + ".enable")
        self.look(**look)
        self.loaded = False
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise Failure(f"{url}: {answer['errorText']}")
        end = time.monotonic() + CALL_LIMIT
        while not self.loaded:
            self.browser._receive(end, f"loading {url}")

    def look(self, width=1280, height=900, theme="light", reduced_motion=False):
        """The size in CSS pixels (below 500 a phone with touch), the theme, and whether motion is unwelcome."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
        ])

    def evaluate(self, expression, limit=CALL_LIMIT):
        """The JSON value of an expression; of a promise, what it brings. Raises Failure for what it throws."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
                           timeout=limit * 1000, limit=limit + 5)
        if "exceptionDetails" in result:
            raise Failure(what_was_thrown(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, condition, limit=20):
        """Waits until a JavaScript expression is true; False when it is not in time."""
        end = time.monotonic() + limit
        while not self.evaluate(condition):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def draw(self, frames=2):
        """Waits until the page was drawn this many times: layout, resize observers and animation frames have run."""
        self.evaluate(f"new Promise(async (done) => {{ for (let i = 0; i < {frames}; i++) "
                      "await new Promise(requestAnimationFrame); done(); })")

    def key(self, key, modifiers=0):
        code, number, text = KEYS[key]
        common = dict(key=key, code=code, windowsVirtualKeyCode=number, modifiers=modifiers)
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def box(self, selector):
        """{x, y, width, height} of an element within the window."""
        box = self.evaluate(f"document.querySelector({json.dumps(selector)})?.getBoundingClientRect().toJSON()")
        if not box:
            raise Failure(f"the page has no {selector}")
        return box

    def accessible_nodes(self):
        """What a screen reader is told: [{role, name, element}] as Chromium computes it, without what it hides."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        text = lambda node, field: str(node.get(field, {}).get("value", ""))
        return [dict(role=text(node, "role"), name=text(node, "name"), element=node["backendDOMNodeId"])
                for node in nodes if not node.get("ignored") and "backendDOMNodeId" in node]

    def outer_html(self, element, length=80):
        return self.call("DOM.getOuterHTML", backendNodeId=element)["outerHTML"][:length]

    def picture(self, path, selector):
        """A PNG of one element, wherever on the page it stands."""
        box = self.box(selector)
        scroll = self.evaluate("({x: scrollX, y: scrollY})")
        clip = dict(x=box["x"] + scroll["x"], y=box["y"] + scroll["y"], width=box["width"], height=box["height"], scale=1)
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


def what_was_thrown(details):
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details.get("text")).strip()
