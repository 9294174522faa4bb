"""An agent of smolagents that writes Python code. It adds a text of its own to the model's turns."""

import json
import sys

from smolagents import CodeAgent, OpenAIServerModel

agent = CodeAgent(tools=[], model=OpenAIServerModel("gpt-x"), stream_outputs="stream" in sys.argv, verbosity_level=0)
print(agent.run(json.load(sys.stdin)["messages"][-1]["content"]))
