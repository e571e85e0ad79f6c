"""The paper again: every table and figure, measured with our networks, beside the paper's own numbers.

Measuring and showing are apart. A topic (`topics/`) names the *cells* it needs, one pass of one network under one
method each; ``measure`` fills a folder with their raw sums as JSON; the topic turns sums into tables and figures, and
``publish`` writes them into a record, from which ``results`` makes ``docs/results.md``.
"""
