"""Token-exact conversations: chat templates as increments of tokens, and the formats of calls of tools.

Importing this package imports no tokenizer; `Template.load` does.
"""

from rolemesh_agents.templates.abilities import Abilities
from rolemesh_agents.templates.formats import FORMATS, Format
from rolemesh_agents.templates.rendering import TemplateRefusedError
from rolemesh_agents.templates.template import Template, load_template

__all__ = ["FORMATS", "Abilities", "Format", "Template", "TemplateRefusedError", "load_template"]
