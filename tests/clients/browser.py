"""A headless Chromium, driven over the DevTools protocol with real mouse and key events."""

import base64
import json
import subprocess
import time
from pathlib import Path

from websockets.sync.client import connect

import driver

# The root user of a container cannot use Chromium's own sandbox. `--disable-dev-shm-usage`: containers have a small
# /dev/shm.
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--window-size=1400,900", "--remote-debugging-port=0"]
# A place in the last visible element that matches; `null` without one. React Aria takes a click at the exact centre
# for one of a screen reader.
FIND = """((selector, text) => {
  const element = [...document.querySelectorAll(selector)].findLast((element) =>
    element.getClientRects().length && (!text || element.innerText.trim().split("\\n")[0] === text));
  if (!element) return null;
  element.scrollIntoView({ block: "nearest" });
  const box = element.getBoundingClientRect();
  return { x: box.x + box.width / 2 + 2, y: box.y + box.height / 2 };
})"""


class Browser:
    """One page in a browser of its own, with the folder `profile`."""

    def __init__(self, profile):
        self.count, self.session = 0, None
        log = open(Path(profile).parent / "chromium.txt", "w")
        self.process = subprocess.Popen(["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"],
                                        stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        port_file = Path(profile, "DevToolsActivePort")
        driver.wait("Chromium", lambda: port_file.exists() and port_file.read_text().count("\n"))
        port, path = port_file.read_text().split()
        self.socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, ping_interval=None)
        pages = self.send("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def send(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv(90))
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def evaluate(self, expression):
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, what, is_met):
        return driver.wait(what, is_met, self.text)

    def open(self, url):
        self.send("Page.navigate", url=url)

    def text(self):
        return self.evaluate("document.body ? document.body.innerText : ''")

    def find(self, selector, text=""):
        return self.evaluate(f"{FIND}({json.dumps(selector)}, {json.dumps(text)})")

    def click(self, selector, text=""):
        """Clicks on the last visible element that matches `selector` and has `text` as its first line, once there is
        one that does not move."""
        def resting():
            place = self.find(selector, text)
            time.sleep(0.05)
            return place if place == self.find(selector, text) else None

        place = self.wait(f"{selector} {text}", resting)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        self.send("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **place)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **place)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def attach(self, selector, path):
        """Chooses a file in the dialog of an `input` element."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path):
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()
