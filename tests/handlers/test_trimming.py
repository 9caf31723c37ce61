from coda_operator.trimming import MOST_LOOKS, WORTH_TRIMMING, Tide


def test_memory_is_looked_for_once_after_each_burst() -> None:
    tide = Tide()
    counts = [100_000, 100_001, 100_002, 200_000, 150_000, 150_001, 150_002]
    assert [tide.is_time(count) for count in counts] == [False, True, False, False, False, True, False]


def test_a_load_that_never_rests_is_looked_through_now_and_then() -> None:
    tide = Tide()
    times = [tide.is_time(count * WORTH_TRIMMING) for count in range(1, 2 * MOST_LOOKS + 1)]
    assert times == 2 * [*(MOST_LOOKS - 1) * [False], True]
