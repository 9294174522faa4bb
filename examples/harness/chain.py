"""An agent that knows nothing of rolemesh. It asks for the boss of one person after the other, up to the last one.

``python chain.py "Who is at the top above Mia?"`` asks the model at OPENAI_BASE_URL. The model looks up one boss after
the other, this program answers from the list of staff, and prints the model's last words.
"""

import csv
import re
import sys
from pathlib import Path

from openai import OpenAI

with open(Path(__file__).with_name("staff.csv")) as file:
    BOSSES = {row["name"]: row["boss"] for row in csv.DictReader(file)}

PROMPT = "Find the person at the top. Write boss(name) to look up a boss. Answer with the person who has no boss."
SHOWN = [["Otto", "Ines"], ["Hugo", "Rita", "Karl"]]
"""Chains of the demonstrations; these people are not in the list."""


def told(name, boss):
    return f"The boss of {name} is {boss}." if boss else f"{name} has no boss."


def question(name):
    return f"Who is at the top above {name}?"


history = [{"role": "system", "content": PROMPT}]
for chain in SHOWN:
    history.append({"role": "user", "content": question(chain[0])})
    for name, boss in zip(chain, [*chain[1:], ""], strict=True):
        history.append({"role": "assistant", "content": f"boss({name})"})
        history.append({"role": "user", "content": told(name, boss)})
    history.append({"role": "assistant", "content": f"Answer: {chain[-1]}"})
history.append({"role": "user", "content": sys.argv[1]})

client = OpenAI()
for _ in range(8):
    answer = client.chat.completions.create(model="any", messages=history, max_tokens=12).choices[0].message.content
    history.append({"role": "assistant", "content": answer})
    call = re.fullmatch(r"\s*boss\((\w+)\)\s*", answer)
    if not call:
        break
    name = call[1]
    history.append({"role": "user", "content": told(name, BOSSES[name]) if name in BOSSES else f"Nobody is {name}."})
print(answer)
