"""Stages of a program, and of installed packages that the configuration names (`mirror.stages`)."""

from collections.abc import Awaitable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Final

import msgspec

from mcp_mirror.core.replies import ToolResult
from mcp_mirror.core.similar_names import find_nearest
from mcp_mirror.errors import ConfigError
from mcp_mirror.gateway.call import Call, Next, Stage

_ENTRY_POINTS: Final = "mcp_mirror.stages"
"""The entry point group of stages that `mirror.stages` names."""


def load_stages(names: Sequence[str]) -> tuple[Stage, ...]:
    """Load the stages that the configuration names, from the entry point group `mcp_mirror.stages`.

    Raises:
        ConfigError: No installed package has a stage of this name, or several have one; or it cannot be imported or
            called.
    """
    found = tuple(entry_points(group=_ENTRY_POINTS)) if names else ()
    installed = {point.name: point for point in found}
    stages: list[Stage] = []
    for name in names:
        if name not in installed:
            near = find_nearest(name, installed)
            hint = (
                f"Did you mean {near[0]!r}?" if near else f"Install a package with an entry point in `{_ENTRY_POINTS}`."
            )
            raise ConfigError(f"`mirror.stages` names {name!r}, which no installed package provides. {hint}")
        if len(places := {point.value for point in found if point.name == name}) > 1:
            provided = ", ".join(sorted(places))
            raise ConfigError(
                f"`mirror.stages` names {name!r}, which several installed packages provide: {provided}. Uninstall all "
                "but one."
            )
        try:
            stage = installed[name].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"The stage {name!r} of `mirror.stages` cannot be imported: {error}") from error
        except (Exception, SystemExit) as error:  # its module runs any code, and a reload must not end the gateway
            raise ConfigError(
                f"The stage {name!r} of `mirror.stages` cannot be imported: it raised {type(error).__name__}. To read "
                f"the error, import {installed[name].module} with Python."
            ) from error
        if fault := find_stage_fault(stage):
            raise ConfigError(f"The stage {name!r} of `mirror.stages` {fault}")
        stages.append(stage)
    return tuple(stages)


def find_stage_fault(stage: object) -> str | None:
    """Return why an object cannot be a stage, and the next step; None for a function or an object with `__call__`."""
    if isinstance(stage, type):
        return f"is the class {stage.__name__}. Give an object of the class, such as {stage.__name__}()."
    if not callable(stage):
        return f"is a {type(stage).__name__}. Give an `async` function, or an object with `async def __call__`."
    return None


class CustomStage(msgspec.Struct, frozen=True):
    """A stage of a program or of an installed package."""

    stage: Stage

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Return the reply of the stage.

        Raises:
            TypeError: The stage does not pass on JSON text as arguments, or does not return a reply. Without the check,
                later code would fail without its name.
        """
        name = getattr(self.stage, "__name__", type(self.stage).__name__)

        def pass_on(passed: Call) -> Awaitable[ToolResult]:
            arguments: object = passed.arguments
            if not isinstance(arguments, bytes | memoryview):
                what = f"The stage {name!r} passed on arguments that are a {type(arguments).__name__}"
                raise TypeError(f"{what}. Write them as JSON text in `bytes`.")
            return call_next(passed)

        answer: object = self.stage(call, pass_on)
        if not isinstance(answer, Awaitable):
            raise TypeError(f"The stage {name!r} is not `async`. Write `async def`.")
        reply: object = await answer
        if not isinstance(reply, Mapping):
            advice = "Return the reply of `call_next` or another."
            raise TypeError(f"The stage {name!r} returned a {type(reply).__name__}. {advice}")
        for member, value in reply.items():
            if not isinstance(value, bytes | memoryview | tuple):
                what = f"The member {member!r} of the reply of the stage {name!r}"
                raise TypeError(f"{what} is a {type(value).__name__}. Write it as JSON text in `bytes`.")
        return reply
