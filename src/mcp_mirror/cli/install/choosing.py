"""The choice of clients: a list of what was found, and a question on a terminal."""

from collections.abc import Callable, Sequence

import typer

from mcp_mirror.cli.install.in_place import InPlacePlan
from mcp_mirror.cli.run import print_note
from mcp_mirror.errors import ConfigError


def choose_plans(plans: Sequence[InPlacePlan]) -> list[InPlacePlan]:
    """List the files with their servers and ask which to change.

    Raises:
        ConfigError: The answer is not a number of the list.
    """
    print_note("Found on this machine:")
    for number, plan in enumerate(plans, 1):
        scope = ", of this folder" if plan.target.place.scope == "project" else ""
        print_note(f"  {number}. {plan.target.title}{scope}: {', '.join(plan.changed)}")
        for name, reason in plan.left:
            print_note(f"       {name} stays as it is: {reason}")
    answer = typer.prompt("Which to install for? Numbers, `all` or `none`", default="all", err=True).strip().lower()
    if answer in ("all", "none"):
        return list(plans) if answer == "all" else []
    try:
        numbers = {int(word) for word in answer.replace(",", " ").split()}
    except ValueError:
        numbers = {0}
    if not numbers <= set(range(1, len(plans) + 1)):
        raise ConfigError(f"{answer!r} is not a choice. Write numbers from 1 to {len(plans)}, `all` or `none`.")
    return [plan for number, plan in enumerate(plans, 1) if number in numbers]


def confirm(question: str, *, default: bool) -> bool:
    """Ask a question that is answered by yes or no."""
    ask: Callable[..., bool] = typer.confirm
    return ask(question, default=default, err=True)
