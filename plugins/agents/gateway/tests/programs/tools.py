"""A tool loop with the client of OpenAI, or without one, that calls the environment's tools through the gateway.

With the argument ``impatient`` it goes away in the middle of each request twice, and asks again.
If ``KILLED`` names a file that does not exist, the program makes it before its third turn, and kills the agent's rank.
"""

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from urllib.parse import urlsplit

URL, KEY = os.environ["ROLEMESH_URL"], os.environ["OPENAI_API_KEY"]
headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


def ask(path, **body):
    again = {}
    if "impatient" in sys.argv:
        break_off(path, body)
        again = {"x-stainless-retry-count": "1"}
        break_off(path, {**body, "stream": True} if "messages" in body else body, again, read=40)
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), {**headers, **again})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def break_off(path, body, more=(), read=0):
    """Send a request, and go away after `read` bytes of the answer, or after 30 ms."""
    address, data = urlsplit(URL), json.dumps(body).encode()
    told = {**headers, **dict(more), "Host": address.hostname, "Content-Length": len(data)}
    lines = [f"POST {address.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items()), "", ""]
    with socket.create_connection((address.hostname, address.port)) as line:
        line.sendall("\r\n".join(lines).encode() + data)
        line.recv(read) if read else time.sleep(0.03)


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
