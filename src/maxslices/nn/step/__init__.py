"""A step of a model: its arguments, inputs and loss, and what is run or replayed of them."""
