"""``capture``: what an ordinary PyTorch model does, read with ``torch.fx`` and written down as a graph.

A model that asks for sizes (``if x.shape[2] > 4``, ``range(x.size(1))``) is answered from an example, or from its own
``input_shape``: such branches and loops are those of the example, while sizes in the graph stay what they are called.
A branch on the data itself, or on the size of the batch, cannot be written down.
"""

import traceback

from torch import nn

from offspike.capture.factories import FACTORIES, INSTEAD, CaptureError, factory
from offspike.capture.steps import PRODUCTS, SIZES, Step, bare, limits, place, read
from offspike.capture.tracer import Example, Tracer, weight
from offspike.graph import Graph, GraphNetwork

__all__ = [
    "FACTORIES", "INSTEAD", "PRODUCTS", "SIZES", "CaptureError", "Step", "bare", "capture", "captured", "limits",
    "network", "trace", "weight",
]  # fmt: skip


def trace(model: nn.Module, example: Example = None, *, training: bool = False) -> list[Step]:
    """Every call of ``model``, in order, in eval mode unless ``training``.

    A CaptureError, which is a ValueError, names the line that cannot be followed.
    """
    before = {module: dict(vars(module)) for module in model.modules()}  # its mode, and what its code may keep on self
    tracer = Tracer(model, example)
    if tracer.is_leaf_module(model, ""):
        raise CaptureError(f"{type(model).__name__} is a single layer", "wrap it, nn.Sequential(layer)")
    try:
        nodes = list(tracer.trace(model.train(training)).nodes)
    except Exception as error:  # the user's own code runs here and may raise anything
        where = place([(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)])
        raise _refusal(model, error, f" ({where})" if where else "") from error
    finally:
        for module, attributes in before.items():
            vars(module).clear()
            vars(module).update(attributes)
    return read(nodes, model)


def _refusal(model: nn.Module, error: Exception, where: str) -> CaptureError:
    """What to say of an error that the model's own code raised while it was traced."""
    cannot, name = f"{type(model).__name__} cannot be captured", factory(error)
    if isinstance(error, CaptureError):
        return CaptureError(f"{cannot}: {error.what}{where}", error.fix)
    if name is None:
        reason = f"{error}".partition("\n")[0]
        return CaptureError(f"{cannot}: {reason}{where}")
    what, fix = INSTEAD[FACTORIES[name]]
    return CaptureError(f"{cannot}: torch.{name} is {what}{where}", fix)


def capture(model: nn.Module, example: Example = None) -> Graph:
    """The graph of ``model`` as it runs in eval mode; a ValueError names the line that cannot be written down."""
    return Graph(tuple(step.node() for step in trace(model, example)))


def captured(model: nn.Module, example: Example = None) -> GraphNetwork:
    """The model as a network that runs its graph, sharing its layers and tensors."""
    return network(capture(model, example), model)


def network(graph: Graph, model: nn.Module) -> GraphNetwork:
    """The network that runs ``graph`` with the layers and tensors of ``model``."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    leaves = {
        node.target: model.get_submodule(node.target) if node.kind == "module" else tensors[node.target]
        for node in graph.nodes
        if node.kind in ("module", "attribute")
    }
    result = GraphNetwork(graph, leaves, input_shape=getattr(model, "input_shape", None))
    result.training = model.training
    return result
