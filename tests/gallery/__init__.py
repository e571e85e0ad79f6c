"""Small models, each an idiom seen in the wild: what ``prepare`` and ``convert`` must take, and what they must refuse.

``ACCEPTED``: name -> (build, shapes of the inputs without the batch axis). ``REFUSED``: name -> (build, shapes, what
the message says, the mark of the line that it names).
"""

from gallery import branches, outputs, plain, refused, residual, shapes, zoos

ACCEPTED = {
    **plain.MODELS,
    **residual.MODELS,
    **branches.MODELS,
    **shapes.MODELS,
    **outputs.MODELS,
    **zoos.MODELS,
}
REFUSED = refused.MODELS
