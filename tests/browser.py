"""A real Chromium, driven over its debugging pipe with nothing but the standard library."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WHY_NOT = "Chromium is not installed (Debian: apt-get install chromium)"
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
           "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--remote-debugging-pipe")  # fmt: skip


class Page:
    """One tab. ``events`` keeps everything the browser reports."""

    def __init__(self, read, write):
        self.read, self.write, self.number, self.events, self.rest = read, write, 0, [], b""
        self.session = None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def next(self):
        """The next message; events are kept."""
        while b"\0" not in self.rest:
            data = os.read(self.read, 1 << 16)
            assert data, "the browser has gone"
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path, *, width=1200, height=900, scheme="light", phone=False):
        """Load a file in a window of this size, in light or dark."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.media(scheme)
        self.events.clear()
        self("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.next()

    def media(self, scheme, kind=""):
        self("Emulation.setEmulatedMedia", media=kind, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def js(self, expression):
        """The value of an expression in the page."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path, clip=None):
        options = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png", **options)["data"]))

    def complaints(self):
        """Errors, warnings, exceptions, and requests for anything but the file itself."""
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            spoken = method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
            if spoken or method in ("Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(params)
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                found.append(params["request"]["url"])
        return found


@contextmanager
def browser(profile):
    """A page in a browser of its own, which ends with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}"]
    wired = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["bash", "-c", wired, "bash", *command], pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(profile)},
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        process.terminate()
        process.wait(20)
        os.close(from_read)
        os.close(to_write)
