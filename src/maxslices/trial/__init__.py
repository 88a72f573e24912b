"""Call a method on made-up or given data, and measure the memory of the call."""
