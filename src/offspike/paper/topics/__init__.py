"""Every table and figure, a file each."""

from offspike.paper.topics import (
    causal,
    cost,
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    table_1,
    table_2,
    table_3,
    table_s1,
    table_s2,
    table_s3,
    table_s4,
    times,
)

__all__ = ["TOPICS"]

_MODULES = (
    table_1, table_2, table_3, table_s1, table_s2, table_s3, table_s4, times,
    figure_1, figure_2, figure_3, figure_4, figure_5, figure_6, causal, cost,
)  # fmt: skip
TOPICS = {module.TOPIC.name: module.TOPIC for module in _MODULES}
