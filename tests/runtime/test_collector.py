import gc

from cfac.runtime.collector import Collector


def test_the_policy_is_closed_as_it_was_opened():
    before = gc.get_threshold()
    collector = Collector()
    collector.wake()
    assert gc.get_threshold() == before
    collector.rest()
    collector.rest()
    assert gc.isenabled()
    assert gc.get_threshold()[0] > before[0]
    collector.wake()
    try:
        assert gc.get_threshold() == before
        assert not collector.resting
    finally:
        gc.unfreeze()
