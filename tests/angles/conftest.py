"""A method of another package."""

import numpy as np
import pytest

from maxslices import registry


def remove_stripe_elsewhere(data):
    """Remove what changes from one projection to the next on average."""
    return data - np.diff(data, axis=0, append=data[-1:]).mean(axis=0)


registry.register(remove_stripe_elsewhere, pattern="sinogram", module="another_package.stripe")


@pytest.fixture
def foreign_stripe_method():
    """Name of a registered stripe method that is not of this project's pack."""
    return "remove_stripe_elsewhere"
