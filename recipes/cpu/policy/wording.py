"""How the scripted agents speak: the tool calls in SWE-agent-LM's XML and a few thoughts before them.

Responses never begin or end with a newline: a chat codec may strip or add some there, and then the
ids seen in training would differ from those that are served.
"""

import random

from recipes.cpu.policy.plans import Script

_SEARCH = ("Find {name}.", "Look for {name}.", "Where is {name}?")
_LOOK = ("Look at it.", "Read the code first.", "View the lines.")
_FIX = ("Fix it.", "Change this.", "This is wrong.")
_SUBMIT = ("Done.", "Submit.")


def call(tool: str, /, **parameters: str) -> str:
    """One tool call."""
    lines = [f"<parameter={name}>{value}</parameter>" for name, value in parameters.items()]
    return "\n".join([f"<function={tool}>", *lines, "</function>"])


def responses(script: Script, *, seed: int) -> tuple[str, ...]:
    """The assistant's messages of one attempt; the seed picks the thoughts only."""
    rng = random.Random(f"{seed}:{script.instance_id}")
    name = script.pattern.split()[-1]
    search = call("bash", command=f"grep -n '{script.pattern}' {script.path}")
    said = [f"{rng.choice(_SEARCH).format(name=name)}\n{search}"]
    if script.view is not None:
        first, last = script.view
        look = call("str_replace_editor", command="view", path=script.path, view_range=f"[{first}, {last}]")
        said.append(f"{rng.choice(_LOOK)}\n{look}")
    for edit in script.edits:
        change = call(
            "str_replace_editor", command="str_replace", path=script.path, old_str=edit.old, new_str=edit.new
        )
        said.append(f"{rng.choice(_FIX)}\n{change}")
    said.append(f"{rng.choice(_SUBMIT)}\n{call('submit')}")
    return tuple(said)
