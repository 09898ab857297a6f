"""`mcp-mirror eval` as the command line has it: its options, and nothing else.

What it does is imported when it is called: a gateway that starts to serve does not wait for it.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

Both = Literal["yes", "no", "both"]
Calls = Literal["native", "json_schema", "json_text"]

_FLAGS: Final[dict[str | None, tuple[bool, ...] | None]] = {
    None: None,
    "yes": (True,),
    "no": (False,),
    "both": (True, False),
}


def evaluate(  # noqa: PLR0913, PLR0917  # the options of a command line
    cases: Annotated[list[str] | None, typer.Argument(help="Case files, folders of them, or globs.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at the endpoint.")] = None,
    base_url: Annotated[str | None, typer.Option(help="The endpoint, such as http://127.0.0.1:8080/v1.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds its key.")] = None,
    tools: Annotated[Calls | None, typer.Option(help="How the model calls tools. By default native.")] = None,
    profile: Annotated[str | None, typer.Option(help="A model or matrix of a YAML file.", metavar="FILE:NAME")] = None,
    notice: Annotated[str | None, typer.Option(help="Styles of notices, with commas between.")] = None,
    variant: Annotated[str | None, typer.Option(help="Variants of the profile's file, with commas.")] = None,
    few_shot: Annotated[Both | None, typer.Option(help="With the cases' examples. By default no.")] = None,
    gateway: Annotated[Both | None, typer.Option(help="Through the gateway. By default yes.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each combination.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first run; each further one's is one more.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="By default the endpoint's.")] = None,
    log: Annotated[
        Path | None, typer.Option(help="JSON lines, one a run; those that it has are not run again.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    by: Annotated[Literal["case", "setting", "both"], typer.Option(help="What a row of the table is.")] = "both",
    form: Annotated[Literal["table", "markdown", "json"], typer.Option("--format", help="Of the table.")] = "table",
    require: Annotated[float, typer.Option(min=0, max=1, help="The share of runs that must do well.")] = 0.0,
) -> None:
    """Let a model work on cases, check what it does, and print a table.

    The exit code is 0 where all was run, 1 where a run failed for the endpoint's or a server's sake, or fewer did well
    than --require says, 2 for what must be mended first.

    Example: mcp-mirror eval evals/cases --model qwen --base-url http://127.0.0.1:8080/v1 --repeats 5
    """
    from mcp_mirror.evals.asking import Asked  # noqa: PLC0415  # see above
    from mcp_mirror.evals.conduct import Output, conduct  # noqa: PLC0415

    called = _given(model=model, base_url=base_url, api_key_env=api_key_env, tools=tools, temperature=temperature)
    runs = _given(styles=_listed(notice), variants=_listed(variant), repeats=repeats, seed=seed)
    flags = _given(few_shot=_FLAGS[few_shot], gateway=_FLAGS[gateway])
    asked = Asked(cases=tuple(cases or ()), profile=profile, model=called, matrix=runs | flags)
    raise typer.Exit(conduct(asked, log, jobs, Output(by, form, require)))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _listed(names: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in names.split(",")) if names else None
