"""torch's meter on a fake of torch's peak statistics."""

from maxslices.measure.torch_cuda_memory import TorchMeter


def test_what_was_alive_before_is_not_counted(cuda):
    cuda.alloc(51_200)
    meter = TorchMeter()
    meter.start()
    cuda.alloc(1000)
    cuda.alloc(700)
    cuda.free(1000)
    meter.stop()
    assert meter.allocated_bytes == 2048


def test_nested_measurements_keep_each_their_peak(cuda):
    outer, inner = TorchMeter(), TorchMeter()
    outer.start()
    cuda.alloc(5120)
    cuda.free(5120)
    cuda.alloc(512)
    inner.start()
    cuda.alloc(1024)
    cuda.free(1024)
    inner.stop()
    outer.stop()
    assert inner.allocated_bytes == 1024
    assert outer.allocated_bytes == 5120


def test_a_torch_that_was_not_used_on_the_device_is_unavailable(cuda):
    cuda.initialized = False
    meter = TorchMeter()
    meter.start()
    meter.stop()
    assert meter.allocated_bytes is None


def test_statistics_reset_inside_are_reported_if_a_sample_saw_more(cuda):
    meter = TorchMeter()
    meter.start()
    cuda.alloc(5120)
    meter.sample()
    cuda.free(5120)
    cuda.reset_peak_memory_stats()
    meter.stop()
    assert meter.unseen == ["the code reset torch's peak statistics"]
