"""Check a model's chat template: ``python -m rolemesh_agents.templates FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from rolemesh_agents.errors import AgentError
from rolemesh_agents.templates.check import examine
from rolemesh_agents.templates.template import Template

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Print what the template in a model's folder takes, and whether conversations are token-exact.

    Return 0 if agents can use the template, also where it changes earlier turns; 1 if not; 2 without a folder.
    """
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m rolemesh_agents.templates FOLDER\n\nFOLDER is a model's, with its tokenizer.")
        return 2
    try:
        template = Template.load(arguments[0])
    except AgentError as error:
        print(error)
        return 1
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments[0])
    can = template.abilities
    print(f"calls of tools: format {template.form.name}")
    print(f"tools: {'by the template' if can.tools else 'listed in the system message'}")
    print(f"answers of tools: {'role tool' if can.answers else 'messages of the user'}")
    print(f"stop tokens: {', '.join(tokenizer.convert_ids_to_tokens(list(template.stop_token_ids)))}")
    findings = examine(tokenizer, template)
    for finding in findings:
        print(f"{finding.scenario}: {finding.state}{f' ({finding.reason})' if finding.reason else ''}")
        if finding.state == "differs":
            print(f"    the conversation keeps  {finding.kept!r}")
            print(f"    the template rewrites   {finding.rendered!r}")
    usable = findings[0].state != "refused"
    print("agents can use this template" if usable else "agents cannot use this template")
    return 0 if usable else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
