"""vLLM on the CPU over a model whose answers are known beforehand: an engine that nobody here wrote."""

import pytest

# Its tests stand in a module of their own, which pytest does not know for one.
pytest.register_assert_rewrite("entry_point_suite")
