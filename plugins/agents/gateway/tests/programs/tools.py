"""A tool loop with the client of OpenAI, or without one, that calls the environment's tools through the gateway.

If ``KILLED`` names a file that does not exist, the program makes it before its third turn, and kills the agent's rank.
"""

import json
import os
import signal
import sys
import urllib.request

URL, KEY = os.environ["ROLEMESH_URL"], os.environ["OPENAI_API_KEY"]
headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


def ask(path, **body):
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def completion(**body):
    if "openai" not in sys.argv:
        return ask("/v1/chat/completions", **body)
    import openai

    return openai.OpenAI().chat.completions.create(**body).model_dump(exclude_none=True)


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def killed():
    """Kill the agent's rank, the parent of this program's guard, once in the whole job."""
    try:
        os.close(os.open(os.environ["KILLED"], os.O_CREAT | os.O_EXCL))
    except (KeyError, FileExistsError):
        return
    os.kill(parent(os.getppid()), signal.SIGKILL)


told = json.load(sys.stdin)
history, done, turns = told["messages"], False, 0
while not done:
    if turns == 2:
        killed()
    message = completion(model="policy", messages=history, tools=told["tools"])["choices"][0]["message"]
    turns += 1
    history.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        about = call["function"]
        seen = ask("/call", name=about["name"], arguments=json.loads(about["arguments"]), id=call["id"])
        history.append({"role": "tool", "tool_call_id": call["id"], "content": seen["content"]})
        done = done or seen["done"]
