"""Checks the answers before anything is written. Cookiecutter fills it in and runs it; `rolemesh new` asks `problems`.

It imports nothing but the standard library, and stays valid Python before it is filled in.
"""

import json
import keyword
import re
import sys

YAML_WORDS = ("false", "no", "null", "off", "on", "true", "yes")
LONGEST = 32


def problems(name, author, email, description):
    """What is wrong, each as (answer, cause, remedy)."""
    found = [("name", *wrong) for wrong in _name(name)]
    for answer, value in (("author", author), ("email", email), ("description", description)):
        if not value.strip() or not value.isprintable() or any("{" + mark in value for mark in ("{", "%", "#")):
            found.append((answer, f"{value!r} is not one line of plain text", "give one line, nothing for Jinja in it"))
    if not re.fullmatch(r"[^@\s\"<>\\]+@[^@\s\"<>\\]+\.[^@\s\"<>\\.]+", email):
        found.append(("email", f"{email!r} is no e-mail address", "give one like ada@example.com"))
    if re.search(r"[\"<>\\]", author):
        found.append(("author", f'{author!r} has one of " < > \\ in it', "give the name alone"))
    return found


def _name(name):
    proposal = re.sub(r"[^a-z0-9]+", "-", name.lower())
    proposal = re.sub(r"^(rolemesh(-|$)|[0-9-])+", "", proposal)[:LONGEST].rstrip("-")
    instead = f"for example {proposal or 'my-plugin'!r}"
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        yield f"{name!r} is no plugin name", f"use lower-case letters, digits and single dashes, {instead}"
    elif name.startswith("rolemesh-") or name == "rolemesh":
        yield f"{name!r} would become rolemesh-{name}", f"leave the prefix out, {instead}"
    elif len(name) > LONGEST:
        yield f"{name!r} has {len(name)} letters", f"use at most {LONGEST}"
    elif name in YAML_WORDS:
        yield f"{name!r} is no text in a job file: YAML reads it as another value", f"choose for example 'my-{name}'"
    elif keyword.iskeyword(name):
        yield f"{name!r} is a word of Python, so a flow could not call such a role", f"choose for example 'my-{name}'"


def main(answers):
    """The exit code: 0, or 1 with what is wrong on stderr."""
    found = problems(*(answers[each] for each in ("name", "author", "email", "description")))
    for answer, cause, remedy in found:
        print(f"error: {answer}: {cause}\n  → {remedy}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(r"""{{ cookiecutter | tojson }}""")))
