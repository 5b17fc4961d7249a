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
    """The assistant's messages of one attempt.

    The thoughts are drawn once a task, not once an attempt: what differs between attempts at a task is then
    only what they do, and a tiny model spends nothing on telling thoughts apart."""
    rng = random.Random(f"{seed}:{script.instance_id}:wording")
    thoughts = [rng.choice(choices) for choices in (_SEARCH, _LOOK, _FIX, _SUBMIT)]
    name = script.pattern.split()[-1]
    search = call("bash", command=f"grep -n '{script.pattern}' {script.path}")
    said = [f"{thoughts[0].format(name=name)}\n{search}"]
    if script.view is not None:
        first, last = script.view
        look = call("str_replace_editor", command="view", path=script.path, view_range=f"[{first}, {last}]")
        said.append(f"{thoughts[1]}\n{look}")
    for edit in script.edits:
        change = call(
            "str_replace_editor", command="str_replace", path=script.path, old_str=edit.old, new_str=edit.new
        )
        said.append(f"{thoughts[2]}\n{change}")
    said.append(f"{thoughts[3]}\n{call('submit')}")
    return tuple(said)
