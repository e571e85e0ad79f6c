"""What numbers a network computes with: on which grids they lie, how large they can be, which whole numbers they are.

Nothing here changes a network. :mod:`offspike.fixed` makes networks whose sums are exact, and proves that they are.
"""
