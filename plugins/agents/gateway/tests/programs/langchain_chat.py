"""The same agent with LangChain. Arguments: `responses` for that API, `stream` for streams."""

import json
import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


model = ChatOpenAI(model="gpt-x", use_responses_api="responses" in sys.argv).bind_tools([add])
history = [HumanMessage(json.load(sys.stdin)["messages"][-1]["content"])]
for _ in range(8):
    answer = None
    for piece in model.stream(history) if "stream" in sys.argv else [model.invoke(history)]:
        answer = piece if answer is None else answer + piece
    history.append(answer)
    if not answer.tool_calls:
        break
    history += [add.invoke(call) for call in answer.tool_calls]
print(answer.content)
