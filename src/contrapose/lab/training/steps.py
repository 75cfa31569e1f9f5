"""The choice between graphed and eager steps on a GPU."""

from __future__ import annotations

from contrapose.lab.training.compilation import compilation_obstacle
from contrapose.lab.training.context import StepContext
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.graphed import GraphedSteps, graph_obstacle


def choose_steps(context: StepContext) -> EagerSteps | GraphedSteps:
    """Capture the whole step in a CUDA graph if possible, otherwise compile parts of it if possible; log which is used."""
    obstacle = graph_obstacle(context)
    if not obstacle:
        context.log("using one CUDA graph for the whole step")
        return GraphedSteps(context)
    other = compilation_obstacle(context)
    context.log(f"running eagerly, since {obstacle}" + (f"; not compiled, since {other}" if other else ""))
    return EagerSteps(context, compiles=not other)
