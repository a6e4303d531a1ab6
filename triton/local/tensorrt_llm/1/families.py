"""Triton's registry of custom gauges."""

import triton_python_backend_utils as pb_utils

from .gauges import Gauge
from .wire import PbMetric


class GaugeFamilies:
    """A factory of gauges; it registers a family with the family's first gauge."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._families: dict[str, PbMetric] = {}

    def gauge(self, name: str, description: str, labels: dict[str, str]) -> Gauge:
        """Create a gauge with the model's labels and these."""
        if name not in self._families:
            self._families[name] = pb_utils.MetricFamily(
                name=name, description=description, kind=pb_utils.MetricFamily.GAUGE
            )
        gauge: Gauge = self._families[name].Metric(labels={**self._labels, **labels})
        return gauge
