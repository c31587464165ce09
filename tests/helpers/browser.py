"""A headless Chromium, driven over its DevTools protocol: no driver, no download, one small dependency."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """The browser's program, if this machine has one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One tab. `says` holds what its console and its network failures said."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._next = 0
        self.says: list[str] = []
        self.asked: list[str] = []  # every address that the page asked for
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        self._next += 1
        self._socket.send(json.dumps({"id": self._next, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._next:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.says.append(json.dumps(params["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.says.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif message["method"] == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> None:
        """Wait until an expression is truthy."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"never came true: {script}; the page says {self.says}"
            time.sleep(0.05)

    def show(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Go there, with a window of that size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def screenshot(self, path: Path) -> None:
        """What is to be seen now, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A fresh browser with one empty tab."""
    program = chromium()
    assert program is not None
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    log = (profile.parent / "browser.log").open("wb")
    process = subprocess.Popen([program, *flags, "about:blank"], stdout=log, stderr=log)
    try:
        with connect(_tab(profile, process), max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The DevTools address of the first tab."""
    import urllib.request

    port = profile / "DevToolsActivePort"
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if port.exists() and "\n" in (text := port.read_text()):
            with urllib.request.urlopen(f"http://127.0.0.1:{text.splitlines()[0]}/json/list") as response:
                tabs = [t for t in json.load(response) if t["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("the browser did not start; see browser.log")
