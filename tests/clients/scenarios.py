"""What each scenario begins with, and what has to be true after it.

A driver performs the steps of a scenario with one client. It knows nothing of the expected outcome: `failures`
compares the disk, the recording of the protocol, and what the client itself showed.

| scenario | steps of the driver |
| --- | --- |
| prompt, new-file, command, command-failed, question | prompt |
| permission-allowed, permission-refused | prompt; answer the permission request |
| mode-idle | set the mode to plan; prompt |
| mode-mid-turn | prompt; once `started` exists, set the mode to plan |
| mode-under-permission | prompt; at the permission request set the mode to plan, then allow |
| cancel | prompt; once `started` exists, cancel |
| load | prompt; open the session again in a new process, and show it |
| slash-behind-context | prompt with a link to `notes.md` before the text `/plan write it` |
| plan-exit-accepted, plan-exit-refused | prompt; answer the request to leave plan mode |
| plan-exit-form | the same in a client with forms; accept |
| image, image-unsupported | prompt with the image `picture.png` |
| image-file | prompt |
| login | run the login of type `terminal` that Modegate offers; then open a session and print its model |
"""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

GREETING = "Hello from the script."
PERMISSION = "session/request_permission"
# The key that a user types at a login.
SECRET = "sk-not-to-be-shown"
# A driver prints this line before the text of a session that it opened again; only later text counts.
REOPENED = "\f"
DONE = "The reply ends here."


def call(name, **arguments):
    return [{"tool_call": {"id": "c1", "name": name, "arguments": arguments}}, {"stop": "done"}]


def say(text):
    return [{"text": text}, {"stop": "done"}]


WRITE = call("write_file", path="made.txt", content="made\n")
# Runs until a mode change or a cancel ends it. A mode that does not hold lets it write `late.txt`, or the next
# reply write `made.txt`.
LONG_COMMAND = call("shell", command="touch started; sleep 30; touch late.txt")
FAILING = call("shell", command="echo broken; exit 3")
EXIT = call("switch_mode", plan="1. Write made.txt.", steps=["Write made.txt"], mode="code")
PICTURE = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
                           "rkJggg==")
IMAGES = say("Images: {images}. " + DONE)
RECEIVED = f"Images: image/png of {len(PICTURE)} bytes."
# Without its number, which a browser makes.
PLAN = "Write made.txt."
QUESTION = call("ask_user", questions=[{"question": "Which language?", "choices": ["English", "German"]}])


@dataclass(frozen=True)
class Scenario:
    """`read` is text that the client has to show besides, such as what the user allows. `allowed`: whether the last question was answered with consent; `None` without one. `questions` counts only
    where a question is expected. An empty `stop` is any stop reason. With `provider_model`, a provider serves the
    script under this name; without a script, Modegate chooses the model."""

    name: str
    mode: str
    model: list
    made: bool = False
    end_mode: str = ""
    stop: str = "end_turn"
    shown: str = DONE
    read: str = ""
    allowed: bool | None = None
    questions: int = 1
    withdrawn: bool = False
    question: str = PERMISSION
    provider_model: str = ""
    failed_calls: int | None = None

    def script(self):
        return "".join(json.dumps(line) + "\n" for line in self.model)


SCENARIOS = [
    Scenario("prompt", "plan", say(GREETING), shown=GREETING),
    Scenario("new-file", "code", WRITE + say(DONE), made=True),
    Scenario("command", "code", call("shell", command="echo made > made.txt") + say(DONE), made=True),
    Scenario("command-failed", "code", FAILING + say(DONE), failed_calls=1),
    # Without forms the question is a list in the chat, and the turn ends.
    Scenario("question", "plan", QUESTION + say(DONE), shown="2. German"),
    Scenario("permission-allowed", "ask", WRITE + say(DONE), made=True, allowed=True, read="+made"),
    Scenario("permission-refused", "ask", WRITE + say(DONE), allowed=False),
    Scenario("mode-idle", "code", WRITE + say(DONE), end_mode="plan"),
    Scenario("mode-mid-turn", "code", LONG_COMMAND + WRITE + say(DONE), end_mode="plan"),
    Scenario("mode-under-permission", "ask", WRITE + say(DONE), end_mode="plan", withdrawn=True),
    Scenario("cancel", "code", LONG_COMMAND + WRITE + say(DONE), stop="cancelled", shown=""),
    Scenario("load", "plan", say(GREETING), shown=GREETING),
    Scenario("slash-behind-context", "code", WRITE + say(DONE), end_mode="plan"),
    Scenario("plan-exit-accepted", "plan", EXIT + WRITE + say(DONE), made=True, end_mode="code", allowed=True,
             read=PLAN),
    Scenario("plan-exit-refused", "plan", EXIT + WRITE + say(DONE), allowed=False, read=PLAN),
    Scenario("plan-exit-form", "plan", EXIT + WRITE + say(DONE), made=True, end_mode="code", allowed=True,
             question="elicitation/create", read=PLAN),
    Scenario("image", "plan", IMAGES, shown=RECEIVED, provider_model="gpt-6-luna"),
    Scenario("image-unsupported", "plan", IMAGES, stop="error", provider_model="qwen3-coder",
             shown="the model openai/qwen3-coder does not accept images"),
    Scenario("image-file", "plan", call("read_file", path="picture.png") + IMAGES, shown=RECEIVED,
             provider_model="gpt-6-luna"),
    Scenario("login", "plan", [], stop="", shown="The session has the model anthropic/claude-opus-5-5."),
]


@dataclass
class Conversation:
    """What passed between the client and Modegate, from the recordings of all processes of a scenario."""

    mode: str = ""
    stops: list = field(default_factory=list)
    questions: list = field(default_factory=list)
    answers: dict = field(default_factory=dict)
    withdrawn: set = field(default_factory=set)
    methods: set = field(default_factory=set)
    failed_calls: set = field(default_factory=set)
    prompts: set = field(default_factory=set)
    opened: list = field(default_factory=list)


def read(recordings):
    """Reads recordings in the order in which their processes began."""
    seen = Conversation()
    for number, recording in enumerate(recordings):
        # Modegate may be writing the last line.
        complete = recording.read_text().rpartition("\n")[0]
        for line in complete.splitlines()[1:]:
            entry = json.loads(line)
            message = json.loads(entry["line"])
            note_message(seen, message, (number, str(message.get("id"))), entry["dir"] == "out")
    return seen


def note_message(seen, message, key, is_from_agent):
    method, params, result = (message.get(name) or {} for name in ("method", "params", "result"))
    if method and is_from_agent:
        seen.methods.add(method)
    if is_from_agent and method in (PERMISSION, "elicitation/create"):
        seen.questions.append((method, key))
    elif is_from_agent and method == "$/cancel_request":
        seen.withdrawn.add((key[0], str(params.get("requestId"))))
    elif is_from_agent and method == "session/update":
        update = params["update"]
        seen.mode = update.get("currentModeId", seen.mode)
        if update.get("status") == "failed":
            seen.failed_calls.add(update["toolCallId"])
    elif is_from_agent and not method:
        seen.mode = (result.get("modes") or {}).get("currentModeId", seen.mode)
        if key in seen.prompts:
            seen.stops.append(result.get("stopReason", "error"))
    elif method == "session/prompt":
        seen.prompts.add(key)
    elif method in ("session/new", "session/load", "session/resume"):
        seen.opened.append(method)
    elif not method:
        seen.answers[key] = result


def is_consent(answer):
    """True for a permission option that allows or names a mode, and for an accepted form that names a mode."""
    chosen = (answer.get("outcome") or {}).get("optionId", "")
    if answer.get("action") == "accept":
        chosen = " ".join(str(value) for value in (answer.get("content") or {}).values())
    return bool(chosen) and not chosen.startswith("reject")


def failures(scenario, folder, shown):
    """Compares the outcome in the folder of a scenario; returns what differs, in words."""
    project = folder / "project"
    seen = read(sorted(folder.glob("wire-*.jsonl")))
    found = []

    def expect(what, actual, expected):
        if actual != expected:
            found.append(f"{what} is {actual!r}, expected {expected!r}")

    made = project / "made.txt"
    expect("made.txt", made.read_text() if made.exists() else None, "made\n" if scenario.made else None)
    expect("the existence of late.txt", (project / "late.txt").exists(), False)
    expect("the mode", seen.mode, scenario.end_mode or scenario.mode)
    expect("the stop reason", seen.stops[-1:], [scenario.stop] if scenario.stop else seen.stops[-1:])
    expect("the use of a client's terminal", "terminal/create" in seen.methods, False)
    if scenario.name == "load":
        expect("the use of session/new at the end", seen.opened[-1:] == ["session/new"], False)
    if scenario.name == "login":
        settings = folder / "home/.config/modegate/setup.yaml"
        expect("the key in setup.yaml", SECRET in settings.read_text() if settings.exists() else None, True)
        expect("the key on the screen", SECRET in shown, False)
    if scenario.shown not in " ".join(shown.rpartition(REOPENED)[2].split()):
        found.append(f"the client did not show {scenario.shown!r}")
    if scenario.read not in " ".join(shown.split()):
        found.append(f"the client did not show {scenario.read!r}")
    if scenario.failed_calls is not None:
        expect("the number of failed calls", len(seen.failed_calls), scenario.failed_calls)
    asked = scenario.allowed is not None or scenario.withdrawn
    questions = [scenario.question] + [PERMISSION] * (scenario.questions - 1) if asked else []
    expect("the list of questions", [method for method, _ in seen.questions], questions)
    if asked and seen.questions:
        key = seen.questions[-1][1]
        expect("the withdrawal of the question", key in seen.withdrawn, scenario.withdrawn)
        if scenario.allowed is not None:
            expect("consent", is_consent(seen.answers.get(key, {})), scenario.allowed)
    return found
