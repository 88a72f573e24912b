"""HDF5 files: opening them, what links and headers say, data read without the library."""
