"""The options of `mcp-mirror eval`."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from mcp_mirror.evals.dialects import ToolsMode
from mcp_mirror.evals.evaluation import Output, run_evaluation
from mcp_mirror.evals.options import Options
from mcp_mirror.evals.report import By, Format

Both = Literal["yes", "no", "both"]

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
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable with its key.")] = None,
    tools: Annotated[ToolsMode | None, typer.Option(help="How the model calls tools. By default native.")] = None,
    profile: Annotated[str | None, typer.Option(help="A model or matrix of a YAML file.", metavar="FILE:NAME")] = None,
    notice: Annotated[str | None, typer.Option(help="Styles of notices, separated by commas.")] = None,
    variant: Annotated[str | None, typer.Option(help="Variants of the profile file, separated by commas.")] = None,
    few_shot: Annotated[Both | None, typer.Option(help="With the examples of the cases. By default no.")] = None,
    gateway: Annotated[Both | None, typer.Option(help="With the gateway. By default yes.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each combination.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first repeat; each later one adds 1.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="By default that of the endpoint.")] = None,
    log: Annotated[Path | None, typer.Option(help="JSON lines, one per run. A run in the log is not repeated.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Concurrent runs.")] = 1,
    by: Annotated[By, typer.Option(help="The rows of the table.")] = "both",
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    require: Annotated[float, typer.Option(min=0, max=1, help="The share of runs that must succeed.")] = 0.0,
) -> None:
    """Run a model on cases, check its calls, and print a table.

    The exit code is 0 if all runs completed, 1 if an endpoint or a server failed in a run or fewer runs succeeded than
    --require demands, 2 if an option, a file or a configuration is not valid.

    Example: mcp-mirror eval evals/cases --model qwen --base-url http://127.0.0.1:8080/v1 --repeats 5
    """
    model_options = _without_none(
        model=model, base_url=base_url, api_key_env=api_key_env, tools=tools, temperature=temperature
    )
    runs = _without_none(styles=_split(notice), variants=_split(variant), repeats=repeats, seed=seed)
    flags = _without_none(few_shot=_FLAGS[few_shot], gateway=_FLAGS[gateway])
    options = Options(cases=tuple(cases or ()), profile=profile, model=model_options, matrix=runs | flags)
    raise typer.Exit(run_evaluation(options, log, jobs, Output(by, form, require)))


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _split(names: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in names.split(",")) if names else None
